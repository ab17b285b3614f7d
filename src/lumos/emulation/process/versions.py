"""What differs between the versions of torch that scripts are emulated with, as far as torch does not say it itself.

Wherever its headers, its declarations of operators or its modules tell, they are asked.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lumos.emulation.process.outside import OUTSIDE
from lumos.emulation.process.settings import EmulationSettings
from lumos.errors import LumosError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The oldest and the newest version that were tried.
_OLDEST, _NEWEST = (2, 6), (2, 13)

#: What to do where a version cannot be served.
REMEDY = f"install torch {_OLDEST[0]}.{_OLDEST[1]} to {_NEWEST[0]}.{_NEWEST[1]}, as its build for CPUs or for CUDA"

#: Major and minor version of the torch that is installed.
TORCH_VERSION = tuple(int(part) for part in str(torch.__version__).split(".")[:2])


@contextlib.contextmanager
def served() -> Iterator[None]:
    """Within it, a process is made ready. Where the installed torch cannot be served, because it is too old or laid out otherwise than the
    versions that were tried, the process says so and ends, before a line of the script runs for real."""
    try:
        if TORCH_VERSION < _OLDEST:
            raise LumosError(f"torch {torch.__version__} is too old to be emulated with: {REMEDY}")
        if torch.version.hip:
            raise LumosError(f"torch {torch.__version__} is a build for ROCm, which no accelerator can be emulated with: {REMEDY}")
        yield
        return
    except LumosError as error:
        message = str(error)
    except (AttributeError, ImportError, TypeError) as error:
        message = f"torch {torch.__version__} is laid out otherwise than the versions that can be emulated with ({error}): {REMEDY}"
    OUTSIDE.take_back()
    Path(EmulationSettings.here().file).with_suffix(".error").write_text(message, encoding="utf-8")
    os._exit(1)


def allows_tf32(kind: str) -> bool:
    """Whether torch lets fp32 be multiplied in TF32 now, in "matmul", "conv" or "rnn"; versions before 2.9 have a switch for cuBLAS and one
    for cuDNN. ROCm's libraries multiply fp32 as it is, unless a variable of theirs is set."""
    if torch.version.hip:
        return False
    if hasattr(torch._C, "_get_fp32_precision_getter"):
        return bool(torch._C._get_fp32_precision_getter("cuda", kind) == "tf32")
    return bool(torch._C._get_cublas_allow_tf32() if kind == "matmul" else torch._C._get_cudnn_allow_tf32())
