"""Parts of a program, and programs without the names of the job that they come from."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from lumos.errors import UsageError
from lumos.proxy.program import Program, RankProgram, RecordedOperator, is_operator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Namespaces of PyTorch's own operators, whose names are public and say nothing about a job.
PUBLIC = ("aten", "c10d", "_c10d_functional")


def only_blocks(program: Program, globs: Sequence[str]) -> Program:
    """The operators whose names match a glob, with the operators that they called, and without the time between them.

    Raises UsageError where none matches.
    """
    ranks = [keep(rank, lambda operator: any(fnmatchcase(operator.name, glob) for glob in globs)) for rank in program.ranks]
    if not any(rank.operators for rank in ranks):
        raise UsageError(f"{', '.join(globs)}: no operator of the step has such a name; names are like aten::mm")
    return replace(program, ranks=ranks)


def keep(rank: RankProgram, wanted: Callable[[RecordedOperator], bool]) -> RankProgram:
    """The outermost wanted operators, with all that they called. The result is not a whole step, so it has no recorded time."""
    number = {id(operator): i for i, operator in enumerate(rank.walk())}
    chosen = list(_outermost(rank.operators, wanted))
    kept = [operator for root in chosen for operator in root.walk()]
    new_number = {number[id(operator)]: i for i, operator in enumerate(kept)}
    for operator in kept:
        operator.after = [new_number[n] for n in operator.after if n in new_number]
        operator.backward = new_number.get(operator.backward, -1)
        operator.start_ns = -1
    return replace(rank, operators=chosen, recorded_ns=-1, before_ns=0)


def _outermost(operators: Sequence[RecordedOperator], wanted: Callable[[RecordedOperator], bool]) -> Iterator[RecordedOperator]:
    for operator in operators:
        if wanted(operator):
            yield operator
        else:
            yield from _outermost(operator.children, wanted)


def obfuscated(program: Program) -> Program:
    """The program with every name that is not PyTorch's own hashed, and without text arguments of those operators.

    The salt is random and not stored, so that names cannot be found by guessing. The program is changed in place.
    """
    salt = secrets.token_bytes(16)

    def hide(name: str) -> str:
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), key=salt, digest_size=6).hexdigest()
        return f"hidden::{digest}" if is_operator(name) else f"range {digest}"

    for rank in program.ranks:
        rank.step = "step"
        for operator in rank.walk():
            if is_operator(operator.name) and operator.name.split("::")[0] in PUBLIC:
                continue
            operator.name, operator.schema = hide(operator.name), ""
            operator.inputs = None if operator.inputs is None else [_without_text(value) for value in operator.inputs]
    return program


def _without_text(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_text(item) for item in value]
    return None if isinstance(value, str) else value
