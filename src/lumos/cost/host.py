"""Launch overhead on the host: the time that the launching thread spends per kernel, which bounds steps of small kernels.

    time = kernels · (launch call + framework time between two launches)

The launch call is the accelerator's `launch_s`. The framework's time depends on the mode and comes from public PyTorch traces
(from the start of one launch to the start of the next on the same thread, median of each trace, with the profiler on): in eager
mode 17 µs (Qwen inference, H100), 33 µs (DLRM, A100; VGG, H100), 57 µs (BERT and ViT inference, H100), so the interval is wide.
Compiled code runs few lines of Python per kernel; a captured graph launches hundreds of kernels with one call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.cost.estimate import Bound, Estimate, nanoseconds
from lumos.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from lumos.cost.cluster import Accelerator


class Mode(NamedTuple):
    """Framework seconds per kernel, without the launch call: median, lowest and highest of the traces."""

    time: float
    low: float
    high: float


#: Modes of launching. No public trace has shapes in the modes "compiled" and "graph"; they are set to about a third and a fiftieth
#: of eager.
HOST_MODES = {"eager": Mode(28e-6, 12e-6, 52e-6), "compiled": Mode(9e-6, 4e-6, 18e-6), "graph": Mode(0.5e-6, 0.2e-6, 1e-6)}


def host_launches(kernels: ArrayLike, accelerator: Accelerator, mode: str = "eager") -> Estimate:
    """Time that one thread needs to launch `kernels` kernels. Raises UsageError for an unknown mode or a negative count,
    LumosError where the accelerator has no launch_s."""
    if mode not in HOST_MODES:
        raise UsageError(f"host launches: mode {mode!r} is not known; valid: {', '.join(HOST_MODES)}")
    count = np.asarray(kernels, float)
    if not np.all(count >= 0):
        raise UsageError("host launches: kernels must be zero or more")
    call = 0.0 if mode == "graph" else float(accelerator.require("launch_s"))
    time, low, high = (nanoseconds(count * (call + extra) * 1e9) for extra in HOST_MODES[mode])
    bound = np.where(count > 0, Bound.HOST, Bound.NOTHING).astype(np.uint8)
    return Estimate(time, low, high, bound, np.zeros_like(time), np.zeros(count.shape, bool))
