"""What a device holds for long within its power limit, where the limit is not that of the devices whose kernels were measured.

The tables of kernels show the rate of long multiplications under a device's own power limit (`lumos.cost.gemm`). A device without tables
of its own borrows those of a relative (`Accelerator.fitted_as`), with a power limit of its own. Nearly all of the power of arithmetic
is switched capacitance, capacitance * voltage^2 * clock (Weste and Harris, CMOS VLSI Design, chapter 5), in proportion to the number of
units. At a fixed voltage the clock that a limit allows is in proportion to power; where voltage rises with the square root of the
clock, to the square root of power. Accelerators under load work between the two, close to their least voltage, so

    clock / clock of the relative = ((power / peak) / (power of the relative / its peak)) ^ 0.75

with peaks of 16 bit, which stand for the number of units times the boost clock. The exponent is the mean of the two, not fitted. Limits:
cooling, and what memory and links draw, are not modelled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.cost.cluster import cluster_names, load_cluster
from lumos.cost.coefficients import GENERIC, shipped_coefficients
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from lumos.cost.cluster import Accelerator

#: Growth of the clock with power: logarithm against logarithm.
CLOCK_EXPONENT = 0.75


def measured_relative(accelerator: Accelerator, dtype: DType = DType.BF16) -> str | None:
    """The name of the accelerator whose measured multiplications in `dtype` stand for this one's (its own, if it was measured)."""
    measured = shipped_coefficients().get("gemm", {})
    return next((name for name in (accelerator.name, *accelerator.fitted_as) if dtype in measured.get(name, {})), None)


def held_clock(accelerator: Accelerator, dtype: DType = DType.BF16) -> float:
    """The clock under load / that of the measured device, or, where none stands for it, / its own at the limit of its data sheet; 1 for a
    device at that limit, and where no limit is published."""
    relative = measured_relative(accelerator, DType.FP8 if dtype.quantised else DType.BF16)
    return _against(accelerator, relative) if relative is not None else _under_own_limit(accelerator)


def attention_clock(accelerator: Accelerator) -> float:
    """The clock at which a device computes attention / that of the devices whose attention was measured; at most 1.

    Where the vendor says what long multiplications reach in 16 bit, it is their share of the peak over that of the measured devices:
    what limits the clock of the one limits the clock of the other. Otherwise as `held_clock`."""
    if accelerator.name in shipped_coefficients().get("attention", {}):
        return min(1.0, _under_own_limit(accelerator))
    if DType.BF16 not in accelerator.achievable_flops:
        return min(1.0, held_clock(accelerator))
    measured = shipped_coefficients()["gemm"][GENERIC][DType.BF16].values["sustained"]
    assert isinstance(measured, float)
    share = accelerator.achievable_flops[DType.BF16] / accelerator.peak(DType.BF16) / measured
    return min(1.0, share * _under_own_limit(accelerator))


def _under_own_limit(accelerator: Accelerator) -> float:
    """The clock under a device's power limit / that under the limit of its data sheet, where a cluster of its name states one."""
    return _against(accelerator, accelerator.name) if accelerator.name in cluster_names() else 1.0


def _against(accelerator: Accelerator, other: str) -> float:
    """The clock of a device / that of the device of the cluster `other`, by their power limits; 1 where one of them is not published."""
    own, others = _power_per_flop(accelerator), _power_per_flop(load_cluster(other).accelerator)
    return 1.0 if own is None or others is None else float((own / others) ** CLOCK_EXPONENT)


def _power_per_flop(accelerator: Accelerator) -> float | None:
    """Watts for each FLOP/s of the 16-bit peak; None where one of them is not published."""
    peak = max(accelerator.peak_flops.get(DType.BF16, 0.0), accelerator.peak_flops.get(DType.FP16, 0.0))
    return accelerator.power_w / peak if accelerator.power_w and peak else None
