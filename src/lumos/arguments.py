"""The types of the arguments that the public functions are called with.

A function of the façade is offered with a check in front, so that a wrong argument is named before the function works with it: a graph
where a job is needed, a number where a name is. The check reads the annotations that the function has anyway. An argument is checked
where its annotation names classes alone (plain types, abstract ones, the nouns of Lumos); types that exist for type checkers only
(aliases, arrays, literals) and switches, which are anything true or false, are left to the function.
"""

from __future__ import annotations

import ast
import inspect
import os
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from numbers import Integral, Real
from types import NoneType
from typing import Any, TypeVar

from lumos.errors import UsageError

_Result = TypeVar("_Result")

#: Classes by the words of annotations: what is accepted, as a wider class where one exists (the integers of NumPy are `Integral`).
_CLASSES: Mapping[str, Any] = {
    "None": NoneType,
    "str": str,
    "int": Integral,
    "float": Real,
    "os.PathLike": os.PathLike,
    "Sequence": Sequence,
    "Mapping": Mapping,
    "Callable": Callable,
}

#: What a person calls a value of these classes.
_WORDS: Mapping[Any, str] = {
    str: "text",
    Integral: "whole number",
    Real: "number",
    os.PathLike: "path",
    Sequence: "sequence",
    Mapping: "mapping",
    Callable: "function",
}

#: Which function gives a noun, by the noun's name.
_SOURCES = {"Job": "read", "Graph": "build", "Timeline": "simulate", "Cluster": "load_cluster", "Model": "load_model"}


@cache
def checked(function: Callable[..., _Result], package: str) -> Callable[..., _Result]:
    """The function with a check in front: UsageError names the first argument whose type its annotation does not allow.

    It says that it is of `package`, where users find it, so that it can be pickled by that name. What cannot be bound to the function's
    parameters at all raises TypeError, as a call of any function does. The values of **words are left to the function.
    """
    signature = inspect.signature(function)
    allowed = {name: types for name, p in signature.parameters.items() if (types := _allowed(p, function))}

    @wraps(function)
    def call(*args: Any, **words: Any) -> _Result:
        for name, given in signature.bind(*args, **words).arguments.items():
            several = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            for value in given if several else (given,):
                if name in allowed and not isinstance(value, allowed[name]):
                    each = "; give each as an argument of its own" if several else ""
                    raise UsageError(f"{package}.{function.__name__}: {name} = {_shown(value)} is no {_wanted(allowed[name])}{each}")
        return function(*args, **words)

    call.__module__ = package
    return call


def _allowed(parameter: inspect.Parameter, function: Callable[..., object]) -> tuple[type, ...]:
    """The classes that an annotation allows; none where it names anything else."""
    if parameter.kind is parameter.VAR_KEYWORD:
        return ()
    classes = [_class(name, function) for name in _members(ast.parse(parameter.annotation, mode="eval").body)]
    return tuple(found for found in classes if found is not None) if None not in classes else ()


def _members(annotation: ast.expr) -> list[str]:
    """The names in a union, without what they hold: `Sequence[str] | None` is a Sequence or None."""
    if isinstance(annotation, ast.BinOp):
        return [*_members(annotation.left), *_members(annotation.right)]
    return [ast.unparse(annotation.value if isinstance(annotation, ast.Subscript) else annotation)]


def _class(name: str, function: Callable[..., object]) -> type | None:
    """The class of that name where the function is defined, or among the nouns of Lumos. None where it is no class, or a switch."""
    found = _CLASSES.get(name) or function.__globals__.get(name) or getattr(sys.modules["lumos"], name, None)
    return found if isinstance(found, type) else None


def _shown(value: object) -> str:
    """The value itself, cut where it is long; of anything but plain values only the class, as a trace is no text to read."""
    return reprlib.repr(value) if type(value).__module__ == "builtins" else f"<{type(value).__name__}>"


def _wanted(allowed: tuple[type, ...]) -> str:
    """The classes in words, with the function that gives a noun."""
    classes = [c for c in allowed if c is not NoneType and not (c is str and os.PathLike in allowed)]
    gives = [f"lumos.{_SOURCES[c.__name__]} gives one" for c in classes if c.__name__ in _SOURCES]
    return "; ".join([" or ".join(_WORDS.get(c, c.__name__) for c in classes), *gives[:1]])
