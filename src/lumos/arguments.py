"""The types and the meanings of the arguments that the public functions are called with.

A word that several functions take means the same in all of them, and MEANINGS says what; other words of a TypedDict are annotated with
their `Term`. The command line makes its options of both, and `help` shows them.

A function of the façade is offered with a check in front, so that a wrong argument is named before the function works with it: a graph
where a job is needed, a number where a name is. The check reads the annotations that the function has anyway. An argument is checked
where its annotation names classes alone (plain types, abstract ones, the nouns of Lumos); types that exist for type checkers only
(aliases, arrays, literals) and switches, which are anything true or false, are left to the function.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, wraps
from numbers import Integral, Real
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from lumos.choices import one_or_other
from lumos.errors import UsageError
from lumos.vocabulary import Precision, Recompute, Schedule

_Result = TypeVar("_Result")


class Term(NamedTuple):
    """What a word means, beside its type. least, most: bounds of a number. shown: what stands for its value in the help of a verb. off:
    whether a switch can be turned off, because it is on, or as a profile has it, where nothing is said."""

    text: str
    least: float | None = None
    most: float | None = None
    shown: str | None = None
    off: bool = False


#: The word by which files are repaired, which most functions that read have.
REPAIR = Term("Read files that are not valid JSON, and repair what can be repaired.")
_from_one, _from_none = partial(Term, least=1), partial(Term, least=0)
#: The words of models, jobs and plans.
MEANINGS: Mapping[str, Term] = {
    "model": Term("A known model, or the path of a Hugging Face config.json."),
    "cluster": Term("A known cluster, or the path of a .toml file."),
    "gpus": _from_one("Devices of the job."),
    "global_batch": _from_one("Sequences of a step."),
    "seq": _from_one("Tokens of a sequence."),
    "layers": _from_one("Layers of the model."),
    "hidden": _from_one("Width of the model."),
    "ffn": _from_one("Width of the feed-forward part."),
    "heads": _from_one("Attention heads."),
    "vocab": _from_one("Tokens of the vocabulary."),
    "micro_batch": _from_one("Sequences of a microbatch."),
    "microbatches": _from_one("Microbatches of a step and replica."),
    "tp": _from_one("Tensor-parallel ranks."),
    "pp": _from_one("Pipeline stages."),
    "vpp": _from_one("Virtual stages of a device."),
    "first_layers": _from_one("Layers of the first pipeline stage: as many as the others where not given."),
    "last_layers": _from_one("Layers of the last pipeline stage."),
    "cp": _from_one("Context-parallel ranks."),
    "ep": _from_one("Expert-parallel ranks."),
    "dp": _from_one("Replicas (data parallel)."),
    "zero": _from_none("Shards 0 nothing, 1 the optimizer, 2 gradients too, 3 parameters too (FSDP).", most=3),
    "shard": _from_none("Devices that share a set of shards."),
    "sequence_parallel": Term("Split the sequence over the tensor-parallel ranks.", off=True),
    "recompute": Term(f"What the backward pass computes again: {one_or_other(Recompute)}"),
    "recompute_layers": _from_none("Layers of a stage that are recomputed."),
    "precision": Term(f"Types of multiplications and activations: {one_or_other(Precision)}"),
    "schedule": Term(f"Order of the pipeline's passes: {one_or_other(Schedule)}"),
    "lora_rank": _from_none("Train adapters of this rank only."),
    "document": _from_none("Mean tokens of the documents that are packed into a sequence (0: one document)."),
    "cuda_graphs": Term("The passes over the layers launched as CUDA graphs: on or off."),
    "framework": Term("Profile: megatron-core (the default), nemo, fsdp, …"),
    "switches": Term("Switches of the framework's profile.", shown="KEY=VALUE"),
}
#: What words of functions mean where their own text does not say more.
_USUALLY = {
    "job": "Trace files, a folder of them, a job from `lumos.read`, its graph or a run of it.",
    "paths": "Trace files, or a folder with one file per rank.",
    "graph": "The job, or anything that `lumos.read` takes, a graph from `lumos.build`, or a timeline.",
    "timeline": "A run of the job from `lumos.simulate` or `lumos.measured`; of a job, its files or a graph the measured one.",
    "owners": "Which task belongs to which step, from `lumos.analyze.loop.steps.members`; worked out where it is not given.",
    "frozen": "The graph as `lumos.simulation.freeze` gives it; worked out where it is not given.",
    "step": "Only this step, by its name or the number after its #.",
    "repair": REPAIR.text,
    "force": "Answer also where the recording cannot give a sound answer.",
    "progress": "Called with how much is done, and how much there is in all.",
    "output": "Where to write.",
    "folder": "The folder that is read or written.",
    "source": "Files, a folder of them, or a job that was read, its graph or a run of it.",
    "network": "A file that describes the network.",
    "execution_trace": "The execution trace of a rank.",
    "execution_traces": "The execution traces of all ranks, in their order.",
    "kineto": "The profiler's file of a rank, or those of all ranks.",
    "save_model": "A file for the statistics that were learned.",
    "result": "An answer of `lumos.whatif`, `lumos.predict` or `lumos.search`; or a job, its files, its graph or a run of it.",
    "name": "A known name, or the path of a file.",
    "durations": "The time of each task in ns, int64[n]; by default that of the graph.",
    "tables": "CSV files of measured steps.",
    "ray_address": "The address of a running Ray cluster.",
    "first": "A plan: settings by name, 'tp=8,pp=4', or a TOML file.",
    "second": "The plan to compare with.",
    "ranks": "How many processes the job has.",
}


def declared(words: type) -> dict[str, tuple[Any, Term]]:
    """The type and the meaning of each word of a TypedDict, those of MEANINGS first and in its order."""
    hints = get_type_hints(words, include_extras=True)
    kinds = {key: get_args(hint) if get_origin(hint) is Annotated else (hint, MEANINGS[key]) for key, hint in hints.items()}
    return {key: kinds[key] for key in (*(key for key in MEANINGS if key in kinds), *(key for key in kinds if key not in MEANINGS))}


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

    Where it takes a graph or a timeline, a job or its files are as good: they are read and built; where it takes a cluster, so is its name.
    It says that it is of `package`, where users find it, so that it can be pickled by that name, and shows each of its **words, whose
    values are left to the function; None stands for a word that is not given. What cannot be bound to the function's parameters at all
    raises TypeError, as a call of any function does.
    """
    signature = inspect.signature(function)
    words_of = _words(signature, function)
    told = declared(words_of) if words_of else {}
    allowed = {name: types for name, p in signature.parameters.items() if (types := _allowed(p, function))}

    @wraps(function)
    def call(*args: Any, **words: Any) -> _Result:
        bound = signature.bind(*args, **{key: value for key, value in words.items() if value is not None or key not in told})
        for name, given in tuple(bound.arguments.items()):
            several = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            for value in given if several else (given,):
                if name not in allowed or isinstance(value, allowed[name]):
                    continue
                is_name, lumos = isinstance(value, (str, os.PathLike)), sys.modules["lumos"]
                is_job = is_name or isinstance(value, (list, tuple, lumos.Job, lumos.Graph, lumos.Timeline))
                possible = (*(_MADE if is_job else ()), *(_OF_NAMES if is_name else ()))
                nouns = [c.__name__ for c in allowed[name] if c.__name__ in possible]
                if nouns and (made := _made(nouns[0], value, bound)) is not None:
                    bound.arguments[name] = made
                    continue
                remedy = "; give each as an argument of its own" if several else ""
                shown = reprlib.repr(value) if type(value).__module__ == "builtins" else f"<{type(value).__name__}>"  # a trace is no text
                raise UsageError(f"{package}.{function.__name__}: {name} = {shown} is no {_wanted(allowed[name])}{remedy}")
        return function(*bound.args, **bound.kwargs)

    call.__module__ = package
    own = [p for p in signature.parameters.values() if words_of is None or p.kind is not p.VAR_KEYWORD]
    bare = inspect.Parameter("word", inspect.Parameter.KEYWORD_ONLY, default=None)
    named = [bare.replace(name=key, annotation=kind | None) for key, (kind, _) in told.items()]
    call.__signature__ = signature.replace(parameters=[*own, *named])  # type: ignore[attr-defined]
    text = inspect.getdoc(function) or ""
    unsaid = {p.name: _USUALLY[p.name] for p in own if p.name in _USUALLY and not re.search(rf"\b{p.name}\b[^.:]*:", text)}
    lines = (f"    {key}: {meaning}" for key, meaning in {**unsaid, **{key: meaning.text for key, (_, meaning) in told.items()}}.items())
    call.__doc__ = "\n".join((text, "", "Words:", *lines)) if unsaid or told else text
    return call


#: Nouns that are made of a job, and from what the functions of Lumos make them; and nouns that a known name or a file stands for.
_MADE = {"Job": "", "Graph": "Job", "Timeline": "Graph"}
_OF_NAMES = ("Cluster", "Accelerator")


def _made(noun: str, value: Any, bound: inspect.BoundArguments) -> Any:
    """A noun, made of what was given for it; None where that is of no recording. A job that is read serves a parameter `job` too."""
    lumos: Any = sys.modules["lumos"]
    if noun in _OF_NAMES:
        cluster = lumos.load_cluster(value)
        return cluster if noun == "Cluster" else cluster.accelerator
    if isinstance(value, getattr(lumos, noun)):
        return value
    if noun == "Job" and isinstance(value, (lumos.Graph, lumos.Timeline)):
        return value.job
    if noun == "Job":
        return lumos.read(*((value,) if isinstance(value, str | os.PathLike) else value))
    if isinstance(value, lumos.Timeline):
        return value.graph
    of = _made(_MADE[noun], value, bound)
    if noun == "Timeline":
        return lumos.simulate(of) if of.measured_start is None else lumos.measured(of)
    if "job" in bound.signature.parameters:
        bound.arguments.setdefault("job", of)
    return lumos.build(of)


def _words(signature: inspect.Signature, function: Callable[..., object]) -> type | None:
    """The TypedDict of a function's **words."""
    last = next(reversed(list(signature.parameters.values())), None)
    if last is None or last.kind is not last.VAR_KEYWORD:
        return None
    (words,) = get_args(eval(last.annotation, function.__globals__))  # the annotation is Lumos' own
    return words  # type: ignore[no-any-return]


def _allowed(parameter: inspect.Parameter, function: Callable[..., object]) -> tuple[type, ...]:
    """The classes that an annotation allows; none where it names anything else."""
    if parameter.kind is parameter.VAR_KEYWORD:
        return ()
    classes = [_class(name, function) for name in _members(ast.parse(parameter.annotation, mode="eval").body)]
    return tuple(kind for kind in classes if kind is not None) if None not in classes else ()


def _members(annotation: ast.expr) -> list[str]:
    """The names in a union, without what they hold: `Sequence[str] | None` is a Sequence or None."""
    if isinstance(annotation, ast.BinOp):
        return [*_members(annotation.left), *_members(annotation.right)]
    return [ast.unparse(annotation.value if isinstance(annotation, ast.Subscript) else annotation)]


def _class(name: str, function: Callable[..., object]) -> type | None:
    """The class of that name where the function is defined, or among the nouns of Lumos. None where it is no class, or a switch."""
    named = _CLASSES.get(name) or function.__globals__.get(name) or getattr(sys.modules["lumos"], name, None)
    return named if isinstance(named, type) else None


def _wanted(allowed: tuple[type, ...]) -> str:
    """The classes in words, with the function that gives a noun."""
    classes = [c for c in allowed if c is not NoneType and not (c is str and os.PathLike in allowed)]
    gives = [f"lumos.{_SOURCES[c.__name__]} gives one" for c in classes if c.__name__ in _SOURCES]
    return "; ".join([" or ".join(_WORDS.get(c, c.__name__) for c in classes), *gives[:1]])
