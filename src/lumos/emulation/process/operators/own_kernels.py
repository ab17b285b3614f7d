"""Kernels of Triton that a script has itself: each launch is an operator of the kernel's name, given the tensors that the kernel is given.

Nothing is compiled. An operator without a rule is priced by the memory that it is given, each tensor once, and a note names it. A kernel
that is tuned takes the first of its configurations, since all are equally fast here.
"""

from __future__ import annotations

import importlib
import types
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from lumos.collect.loading import when_loaded
from lumos.emulation.process.operators.known import tensors_in
from lumos.emulation.process.patches import TORCH

if TYPE_CHECKING:
    from lumos.emulation.process.settings import Device

#: The namespace of these operators.
_NAMESPACE = "triton"


def launch_as_operators(device: Device) -> None:
    """Let the kernels of a script that imports Triton be launched without a device."""

    def launches(module: Any) -> None:
        @TORCH.around(module.JITFunction, "run")
        def run(_: Any, kernel: Any, *args: Any, warmup: bool, **named: Any) -> None:
            given = [each for each in tensors_in((args, named)) if each.is_cuda]
            if given and not warmup:
                with torch.no_grad():
                    _operator(kernel.fn.__name__)(given)

    when_loaded("triton.runtime.jit", launches)
    when_loaded("triton.runtime.driver", lambda module: module.driver.set_active(_driver(device)))


@cache
def _operator(name: str) -> Any:
    """The operator that stands for a kernel: it may write into all that it is given, and gives nothing back."""
    library = torch.library.Library(_NAMESPACE, "FRAGMENT")
    library.define(f"{name}(Tensor(a!)[] given) -> ()")
    torch.library.register_fake(f"{_NAMESPACE}::{name}", lambda _: None, lib=library)
    _kept.append(library)
    return getattr(getattr(torch.ops, _NAMESPACE), name)


#: Libraries of operators last as long as the process.
_kept: list[Any] = []


def _driver(device: Device) -> Any:
    """What Triton asks its driver, as the emulated device answers it."""
    (major, minor), lanes = device.capability, 64 if device.is_amd else 32
    asked = ("hip", device.architecture) if device.is_amd else ("cuda", 10 * major + minor)
    target = importlib.import_module("triton.backends.compiler").GPUTarget(*asked, lanes)
    properties = {
        "max_shared_mem": 232448, "max_num_regs": 65536, "multiprocessor_count": device.processors, "warpSize": lanes, "sm_clock_rate": 1,
        "mem_clock_rate": 1, "mem_bus_width": 1,
    }  # fmt: skip
    return types.SimpleNamespace(
        is_active=lambda: True, get_current_target=lambda: target, get_current_device=torch.cuda.current_device,
        set_current_device=torch.cuda.set_device, get_current_stream=lambda *_: 0, get_device_interface=lambda: torch.cuda,
        get_device_capability=torch.cuda.get_device_capability, utils=types.SimpleNamespace(get_device_properties=lambda _: properties),
        get_active_torch_device=lambda: torch.device("cuda", torch.cuda.current_device()), get_benchmarker=lambda: _equally_fast,
    )  # fmt: skip


def _equally_fast(*_: Any, quantiles: Any = None, **__: Any) -> Any:
    return [1.0] * len(quantiles) if quantiles else 1.0
