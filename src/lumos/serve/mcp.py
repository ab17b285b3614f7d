"""Six verbs as tools of the Model Context Protocol, so that an assistant can ask about the jobs below one folder.

A tool is the function of `lumos` of that name, with its words as typed arguments. It reads files below the folder that the server was
given, and nothing else; no argument of it is a command. The protocol is spoken on standard input and output.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from pydantic import Field

import lumos
from lumos.arguments import REPAIR, Term, declared
from lumos.changes.words import ChangeWords
from lumos.choices import suggestion
from lumos.cost.cluster import cluster_names
from lumos.errors import LumosError, UsageError
from lumos.model.catalogue import find_model, model_names
from lumos.plan.words import JobWords
from lumos.result import plain

#: The longest list in an answer; of a longer one the first entries are given, and how many are left out.
MOST_ENTRIES = 40


class _Grouped(TypedDict, total=False):
    by: Annotated[str, Term("kernel, pattern, operator, module, stream or rank: a row for each, in place of one for each step and rank.")]
    step: Annotated[str, Term("Only this step, by its name or the number after its #.")]


class _Read(TypedDict, total=False):
    repair: Annotated[bool, REPAIR]


class _Judged(_Read, total=False):
    force: Annotated[bool, Term("Answer also where the recording cannot give a sound answer.")]


class _Changed(ChangeWords, _Judged, total=False):
    pass


class _Compared(_Read, total=False):
    step: Annotated[str, Term("Compare only this step of both jobs.")]
    fail_above: Annotated[float, Term("The share by which `after` may be slower (0.03); the answer's `regression` judges it.", least=0)]


#: The tools: the arguments that are jobs, and the other words of each. What a tool answers stands in the function's own text.
TOOLS: Mapping[str, tuple[tuple[str, ...], type]] = {
    "inspect": (("job",), _Read),
    "diagnose": (("job",), _Judged),
    "breakdown": (("timeline",), _Grouped),
    "whatif": (("job",), _Changed),
    "predict": ((), JobWords),
    "compare": (("before", "after"), _Compared),
}

#: Words that name something that Lumos knows, or a file: how a known name is told, and what to offer for a wrong one.
_NAMES: Mapping[str, tuple[Callable[[str], object], Callable[[], tuple[str, ...]]]] = {
    "model": (find_model, lambda: tuple(model_names())),
    "cluster": (lambda name: name in cluster_names(), lambda: tuple(cluster_names())),
}


def guide() -> str:
    """Which tool answers which question, as an assistant is told."""
    return Path(__file__).with_name("SKILL.md").read_text(encoding="utf-8")


def server(folder: Path) -> MCPServer[Any]:
    """The server of the jobs below a folder. Raises LumosError where it is none."""
    if not folder.is_dir():
        raise LumosError(f"{folder}: no such folder; name the folder that holds the recordings")
    root = folder.resolve()
    return MCPServer("lumos", instructions=guide(), version=lumos.__version__, tools=[_tool(root, verb) for verb in TOOLS])


def below(root: Path, path: str) -> str:
    """The path of a file or folder below `root`. Raises UsageError where it is not there or leads out, itself or by a link in it."""
    target = (root / path).resolve()
    for entry in (target, *(target.rglob("*") if target.is_dir() and target.is_relative_to(root) else ())):
        if not entry.resolve().is_relative_to(root):
            raise UsageError(f"{path}: leads out of the folder that is served; only what lies below it can be read")
    if not target.exists():
        raise UsageError(f"{path}: no such file or folder below the folder that is served")
    return str(target)


def _tool(root: Path, verb: str) -> Tool:
    jobs, words = TOOLS[verb]
    job = "A trace file, or a folder with one file per rank: a path below the folder that is served."
    told = {key: Annotated[str, Field(description=job)] for key in jobs}
    said = {key: Annotated[kind | None, Field(description=meaning.text)] for key, (kind, meaning) in declared(words).items()}
    parameter = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    parameters = [parameter(key, annotation=kind) for key, kind in told.items()]
    parameters += [parameter(key, annotation=kind, default=None) for key, kind in said.items()]

    def ask(**given: Any) -> dict[str, Any]:
        try:
            asked = {key: _allowed(root, key, value, jobs) for key, value in given.items() if value is not None}
            answer = getattr(lumos, verb)(**asked)
        except LumosError as error:
            raise ToolError(str(error)) from error
        result = with_short_lists(msgspec.json.decode(msgspec.json.encode(plain(answer))))
        return result if isinstance(result, dict) else {"rows": result}

    ask.__signature__ = inspect.Signature(parameters, return_annotation=dict[str, Any])  # type: ignore[attr-defined]
    ask.__annotations__ = {**told, **said, "return": dict[str, Any]}
    text = (inspect.getdoc(getattr(lumos, verb)) or "").partition("\n\n")[0]
    made = Tool.from_function(ask, name=verb, description=text)
    made.parameters["additionalProperties"] = False  # a word that does not exist is refused, not passed over
    arguments: Any = made.fn_metadata.arg_model
    arguments.model_config = {**arguments.model_config, "extra": "forbid"}
    arguments.model_rebuild(force=True)
    return made


def _allowed(root: Path, key: str, value: Any, jobs: tuple[str, ...]) -> Any:
    """A value of a word, where it may be used: what names a file names one below `root`."""
    known, offered = _NAMES.get(key.removeprefix("base_"), (None, tuple))
    if key in jobs or (known is not None and not known(value) and (root / value).exists()):
        return below(root, value)
    if known is not None and not known(value):
        raise UsageError(f"{key} {value!r} is neither known nor a file below the folder that is served{suggestion(value, offered())}")
    return value


def with_short_lists(value: Any) -> Any:
    """The same with lists of at most MOST_ENTRIES entries; beside a shorter one stands `…_left_out`, the number of the others."""
    if isinstance(value, dict):
        long = {key: len(item) for key, item in value.items() if isinstance(item, list) and len(item) > MOST_ENTRIES}
        left_out = {f"{key}_left_out": number - MOST_ENTRIES for key, number in long.items()}
        return {key: with_short_lists(item) for key, item in value.items()} | left_out
    return [with_short_lists(item) for item in value[:MOST_ENTRIES]] if isinstance(value, list) else value
