"""Which line of the user's own script is running, for messages."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType, TracebackType

_LUMOS = Path(__file__).resolve().parents[2]


@cache
def _is_of_script(file: str) -> bool:
    """Whether a file is the user's: not of Python, of an installed package, or of Lumos."""
    if file.startswith("<"):
        return False
    path = Path(file).resolve()
    outside = (*(Path(sysconfig.get_path(each)) for each in ("stdlib", "purelib", "platlib")), _LUMOS)
    return "site-packages" not in path.parts and not any(path.is_relative_to(each) for each in outside)


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


#: What to do about an exception of these names, which say that a script needs what an emulated one has not.
_REMEDIES = {
    "DataDependentOutputException": "its result depends on values, which tensors do not have here: use what follows from shapes instead",
    "DynamicOutputShapeException": "its shape depends on values, which tensors do not have here: give it a fixed size",
    "UnsupportedOperatorException": "nothing says what shape its result has: declare it with torch.library.register_fake",
    "UnsupportedFakeTensorException": "it needs a tensor with data: leave it out while emulating",
    "NotImplementedError": "it runs on a device only: leave it out while emulating, or declare its shape with torch.library.register_fake",
    "ConnectionRefusedError": "have what it loads on this machine, or leave it out while emulating",
    "EndlessReadsError": "a value is 1 here and a truth value False, so a loop that waits for another never ends: bound its rounds",
    "SparseGradientError": "sparse matrices cannot be emulated: leave out sparse=True of an embedding, or use a dense matrix",
    "NestedTensor": "tensors of several lengths in one (torch.nested) cannot be emulated: pad them to one length",
    "CudaGraphError": "leave the capture out while emulating, and call in each step what it captures",
    "SeveralDevicesError": "use DistributedDataParallel, with a process for each device, or emulate one device with --ranks 1",
    "OutOfMemoryError": "it made tensors with data: make them on the device, or smaller",
}
#: Words of exceptions that have no class of their own, or another one by the time that they reach the script, and whose remedy they have.
_WORDS = {
    "shape_env must not be None": "NestedTensor",
    "no fake impl": "UnsupportedOperatorException",
    "makes no connection": "ConnectionRefusedError",
}
_LONGEST = 240  # characters of an exception's text


def script_error(error: BaseException, where: str) -> str:
    """One sentence on why a script could not go on. where: the line of the script."""
    kind = type(error).__name__
    text = " ".join(str(error).split()).partition(". ")[0]
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    known = next((name for words, name in _WORDS.items() if words in text), kind)
    remedy = _REMEDIES.get(known, "see whether the script runs without --emulate; if it does, leave this out while emulating")
    return f"{where or 'before the first line of the script'}: {kind}: {short}: {remedy}"
