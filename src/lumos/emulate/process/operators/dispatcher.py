"""Make torch's dispatcher and autograd engine take tensors of a device that this build of torch has no support for.

Tensors without data can claim to be on "cuda" in a build of torch for CPUs, but two tables of the library are asked about the device
all the same. The registry of device guards has no entry for it: torch itself enters a guard that does nothing where the present one
has no devices, so a guard that answers 0 to everything is put there first. The hooks of the accelerator say that none is built in:
their table of virtual functions is replaced by a copy in which a few answer otherwise.

Both are reached by their symbols in torch's libraries, which other versions of torch may lay out otherwise; `open_device` tries
the result.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import torch

from lumos.emulate.process.operators.composite import kernels_instead
from lumos.errors import LumosError

#: The place of "cuda" in c10::DeviceType.
_CUDA = 1

#: The version of cuDNN that comes with torch 2.13, as cudnnGetVersion returns it.
CUDNN = 91900

#: The places of virtual functions in at::CUDAHooksInterface (ATen/detail/AcceleratorHooksInterface.h and CUDAHooksInterface.h of torch
#: 2.13), counted from the first, and what they answer.
_ANSWERS: dict[str, tuple[int, float]] = {
    "isBuilt": (2, 1), "isAvailable": (3, 1), "hasPrimaryContext": (4, 0), "init": (5, 0), "deviceCount": (6, 1),
    "setCurrentDevice": (7, 0), "getCurrentDevice": (8, 0), "exchangeDevice": (9, 0), "maybeExchangeDevice": (10, 0),
    "compiledWithCuDNN": (28, 1), "supportsDilatedConvolutionWithCuDNN": (30, 1), "supportsBFloat16ConvolutionWithCuDNNv8": (32, 1),
    "supportsBFloat16RNNWithCuDNN": (33, 1), "versionCuDNN": (34, CUDNN), "versionRuntimeCuDNN": (35, CUDNN),
    "batchnormMinEpsilonCuDNN": (41, 0.0),
}  # fmt: skip

_FUNCTIONS = 160  # more than the table has; what follows it in memory is copied too and never called
_HEADER = 2  # words before the first function of a table: the offset to the object's top, and its type

#: What the library points to from now on must live as long as the process.
_KEPT: list[object] = []


def open_device() -> None:
    """Let operators and autograd take "cuda" tensors without data. Raises LumosError where this torch cannot be opened so."""
    folder = Path(torch.__file__).parent / "lib"
    suffix = "dylib" if sys.platform == "darwin" else "so"
    try:
        _register_guard(ctypes.CDLL(str(folder / f"libc10.{suffix}")))
        _answer_hooks(ctypes.CDLL(str(folder / f"libtorch_cpu.{suffix}")))
        _declare_kernels()
    except (OSError, ValueError, AttributeError) as error:
        raise LumosError(
            f"torch {torch.__version__} cannot take tensors of a device that it is not built for ({error}): "
            "install the CPU build of torch 2.13, or emulate with --emulate cpu"
        ) from error


def _declare_kernels() -> None:
    """Let the dispatcher know of the kernels that a build with support for the device has and this one has not, where an operator would be
    taken apart without one. None is ever called: tensors without data are asked first."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a kernel of the emulated device was called")

    library = torch.library.Library("aten", "IMPL", "CUDA")
    for name in kernels_instead("CUDA"):
        library.impl(name, never)
    library.impl("record_stream", lambda *_: None)  # which FSDP calls on plain tensors too
    _KEPT.append(library)


def _register_guard(library: ctypes.CDLL) -> None:
    registry = (ctypes.c_void_p * (_CUDA + 1)).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    if registry[_CUDA] is None:
        table = (ctypes.c_void_p * _FUNCTIONS)(*[_function(0)] * _FUNCTIONS)
        guard = (ctypes.c_void_p * 1)(ctypes.addressof(table))
        _KEPT.extend((table, guard))
        registry[_CUDA] = ctypes.addressof(guard)
    torch._C._ensureCUDADeviceGuardSet()


def _answer_hooks(library: ctypes.CDLL) -> None:
    get = library["_ZN2at6detail12getCUDAHooksEv"]
    get.restype = ctypes.c_void_p
    hooks = ctypes.c_void_p.from_address(get())
    start = int(hooks.value or 0) - _HEADER * ctypes.sizeof(ctypes.c_void_p)
    table = (ctypes.c_void_p * _FUNCTIONS).from_buffer_copy((ctypes.c_void_p * _FUNCTIONS).from_address(start))
    for place, answer in _ANSWERS.values():
        table[_HEADER + place] = _function(answer)
    _KEPT.append(table)
    hooks.value = ctypes.addressof(table) + _HEADER * ctypes.sizeof(ctypes.c_void_p)


def _function(answer: float) -> int | None:
    """The address of a C function that returns `answer` whatever its arguments."""
    kind = ctypes.c_double if isinstance(answer, float) else ctypes.c_int64
    function = ctypes.CFUNCTYPE(kind, ctypes.c_void_p)(lambda _: answer)
    _KEPT.append(function)
    return ctypes.cast(function, ctypes.c_void_p).value
