"""Conditions on results: expressions over the keys of `lumos predict --json`, which are parsed and never run as code.

An expression compares keys (dotted), numbers and strings: `memory.peak_bytes < 70e9 and tp <= 8`. Allowed are and, or, not,
comparisons (also chained, and `in` a list), + − * / and parentheses.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lumos.choices import suggestion
from lumos.errors import UsageError

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition on a result. keys: the dotted keys that it reads."""

    text: str
    tree: ast.expr
    keys: frozenset[str]

    def __call__(self, result: Mapping[str, Any]) -> bool:
        """Whether the condition holds. Raises UsageError for an unknown key, or values that cannot be compared."""
        try:
            return bool(_value(self.tree, result, self.text))
        except (TypeError, ZeroDivisionError) as error:
            raise UsageError(f"--require {self.text!r}: {error}") from error


def parse_constraint(text: str) -> Constraint:
    """Parse the expression of a condition. Raises UsageError where it is not one."""
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"--require {text!r} is not an expression; give one like 'memory.peak_bytes < 70e9'") from error
    return Constraint(text, tree, frozenset(_keys(tree, text)))


def _keys(node: ast.expr, text: str) -> set[str]:
    """The keys of an expression. Raises UsageError for anything but comparisons of keys and constants."""
    match node:
        case ast.BoolOp(values=parts) | ast.List(elts=parts) | ast.Tuple(elts=parts):
            inner = parts
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=part):
            inner = [part]
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARE for op in ops):
            inner = [left, *others]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            inner = [left, right]
        case ast.Constant(value=bool() | int() | float() | str()):
            inner = []
        case ast.Name() | ast.Attribute():
            return {_key(node, text)}
        case _:
            raise UsageError(f"--require {text!r}: {ast.unparse(node)!r} is not allowed; compare result keys with numbers or strings")
    return {key for part in inner for key in _keys(part, text)}


def _key(node: ast.expr, text: str) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_key(node.value, text)}.{node.attr}"
    raise UsageError(f"--require {text!r}: {ast.unparse(node)!r} is not a key")


def _value(node: ast.expr, result: Mapping[str, Any], text: str) -> Any:
    match node:
        case ast.BoolOp(op=op, values=parts):
            holds = (bool(_value(part, result, text)) for part in parts)
            return all(holds) if isinstance(op, ast.And) else any(holds)
        case ast.UnaryOp(op=ast.Not(), operand=part):
            return not _value(part, result, text)
        case ast.UnaryOp(operand=part):
            return -_value(part, result, text)
        case ast.Compare(left=left, ops=ops, comparators=others):
            values = [_value(part, result, text) for part in (left, *others)]
            return all(_COMPARE[type(op)](a, b) for op, a, b in zip(ops, values, values[1:], strict=False))
        case ast.BinOp(left=left, op=op, right=right):
            return _ARITHMETIC[type(op)](_value(left, result, text), _value(right, result, text))
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_value(part, result, text) for part in parts]
        case ast.Constant(value=value):
            return value
        case _:
            return _look_up(_key(node, text), result, text)


def _look_up(key: str, result: Mapping[str, Any], text: str) -> Any:
    value: Any = result
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            known = list(value) if isinstance(value, Mapping) else []
            hint = suggestion(part, known) if known else "; it has no parts"
            raise UsageError(f"--require {text!r}: key {key!r} is not known{hint}")
        value = value[part]
    return value
