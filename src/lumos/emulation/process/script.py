"""Which line of the user's own script is running, and the ways in which it ends before its steps are recorded, for messages."""

from __future__ import annotations

import itertools
import os
import re
import sys
import sysconfig
import tomllib
import traceback
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType, TracebackType

    from lumos.emulation.record import Assumption

_LUMOS = Path(__file__).resolve().parents[2]
#: Where no file is the user's.
_OUTSIDE = (*(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")), _LUMOS)


@cache
def is_of_lumos(file: str) -> bool:
    """Whether a file is Lumos' own."""
    return Path(file).is_relative_to(_LUMOS)


@cache
def _is_of_script(file: str) -> bool:
    """Whether a file is the user's: not of Python, of an installed package, or of Lumos."""
    if file.startswith("<"):
        return False
    path = Path(file).resolve()
    return "site-packages" not in path.parts and not any(path.is_relative_to(folder) for folder in _OUTSIDE)


def line_of_script(frame: FrameType | None = None) -> str:
    """ "train.py:12" of the innermost frame that is the user's, empty where there is none. frame: by default the caller's."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        if _is_of_script(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def line_of_error(trace: TracebackType | None) -> str:
    """The innermost line of the user's that an exception passed, empty where there is none."""
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)]
    return next((f"{file}:{line}" for file, line in reversed(lines) if _is_of_script(file)), "")


def frames_of_error(trace: TracebackType | None) -> list[str]:
    """Where an exception came through, from that line on (or the first one of all) to the operator that raised it: how that is emulated is
    no business of the script's."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(trace)]
    first = max((index for index, (code, _) in enumerate(frames) if _is_of_script(code.co_filename)), default=0)
    own = {code for code, _ in frames if is_of_lumos(code.co_filename)}
    called = itertools.takewhile(lambda frame: frame[0] not in own or frame[0].co_name != "__torch_dispatch__", frames[first:])
    return [f"{code.co_filename}:{line} in {code.co_qualname}" for code, line in called if code not in own]


#: How a script names what captures CUDA graphs, and the end of a step.
CAPTURES = re.compile(r"\bCUDAGraph\b|\bmake_graphed_callables\b|\bcuda\.graph\(")
MARKS_STEPS = re.compile(r"\bcollect\.step\(|\blumos\.collect import .*\bstep\b")


def says(words: re.Pattern[str]) -> bool:
    """Whether a file of the script has these words, which may come to be run later than the steps that are to be recorded."""
    files = {str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
    own = (Path(file) for file in files if file.endswith(".py") and _is_of_script(file))
    return any(words.search(path.read_text(errors="replace")) for path in own if path.is_file())


#: How torch says that a device has no room, which frameworks raise again as exceptions of their own.
FULL_DEVICE = "CUDA out of memory"
_LONGEST = 240  # characters of an exception's text


def script_error(error: BaseException, where: str, held: str = "") -> str:
    """One sentence on why a script could not go on. where: the line of the script. held: what the device's memory holds."""
    kind = f"{'torch.' if type(error).__module__ == 'torch' else ''}{type(error).__name__}"
    whole = " ".join(str(error).split())
    if FULL_DEVICE in whole:
        return f"{where}: {kind}: {whole.partition(' If reserved')[0]} {held}: {_remedies()['DeviceMemory']['say']}"
    text = whole if len(whole) <= _LONGEST else whole.partition(". ")[0]
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    unknown = "see whether the script runs without --emulate; if it does, leave this out while emulating"
    remedy = next(_known(error), unknown)
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}:{error.lineno}"
    return f"{where or 'before the first line of the script'}: {kind}: {short}: {remedy}"


@cache
def _remedies() -> dict[str, dict[str, Any]]:
    return tomllib.loads((Path(__file__).parent / "data" / "remedies.toml").read_text(encoding="utf-8"))


def _known(error: BaseException | None) -> Iterator[str]:
    """The remedies for an exception, then for what it was raised for: by its words, then by its class and those that it is of."""
    while error is not None:
        yield from (known["say"] for known in _remedies().values() if any(words in str(error) for words in known.get("words", ())))
        yield from (_remedies()[base.__name__]["say"] for base in type(error).__mro__ if base.__name__ in _remedies())
        error = error.__cause__ or error.__context__


_leave = os._exit


def too_early(done: int, needed: int, ended: str, assumed: Iterable[Assumption]) -> str:
    """What to say of a script that ended itself after `done` steps. ended: where, empty for its last line."""
    read = list(dict.fromkeys(assumption.where for assumption in assumed if assumption.code.startswith("stand-in") and assumption.where))
    remedy = "let it run longer, or ask for fewer with --steps and --warmup"
    if read:
        remedy = f"it read values that stand-ins took the place of ({', '.join(read[:3])}): let it go on whatever they are"
    return f"the script ended after {done} steps of its optimizer, {needed} are needed{ended}: {remedy}"


def leave(status: int) -> None:
    """End the process at once, so that nothing after the recorded steps is done for nothing, and nothing is saved."""
    sys.stdout.flush()
    (sys.__stderr__ or sys.stderr).flush()
    _leave(status)
