"""Make torch's dispatcher and autograd engine take tensors of a device that this machine has not, and this build of torch may not know.

Tensors without data can claim to be on "cuda", but two tables of the library are asked about the device all the same. The registry of
device guards has no entry for it in a build for CPUs, and one that fails without a driver in a build for CUDA: a guard that does
nothing is put there. The hooks of the accelerator say that none is there: their table of virtual functions is replaced by a copy in
which a few answer otherwise. Both are reached by their symbols in torch's libraries. Which place of a table is whose follows from the order
in which the headers that come with torch declare the functions of a class and its base (Itanium C++ ABI, section 2.5.2).
"""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lumos.emulation.process.operators.composite import kernels_instead
from lumos.emulation.process.versions import REMEDY
from lumos.errors import LumosError

if TYPE_CHECKING:
    from collections.abc import Mapping

_FOLDER = Path(torch.__file__).parent

#: The place of "cuda" in c10::DeviceType.
_CUDA = 1

#: The version of cuDNN that comes with torch 2.13, as cudnnGetVersion returns it.
CUDNN = 91900

#: The header of c10::impl::DeviceGuardImplInterface, below the folder of torch.
_GUARD = "include/c10/core/impl/DeviceGuardImplInterface.h"

#: What its virtual functions answer other than 0: a device is its type, then its index, in a byte each.
_GUARD_ANSWERS: dict[str, float] = {
    "type": _CUDA, "exchangeDevice": _CUDA, "getDevice": _CUDA, "getStream": _CUDA, "getDefaultStream": _CUDA, "exchangeStream": _CUDA,
}  # fmt: skip

#: The headers of at::CUDAHooksInterface, below the folder of torch, the class that it is derived from first.
_HOOKS = ("include/ATen/detail/AcceleratorHooksInterface.h", "include/ATen/detail/CUDAHooksInterface.h")

#: What its virtual functions answer where an accelerator is emulated. A version of torch that does not declare one does not ask it.
_HOOKS_ANSWERS: dict[str, float] = {
    "isAvailable": 1, "hasPrimaryContext": 0, "init": 0, "deviceCount": 1,
    "setCurrentDevice": 0, "getCurrentDevice": 0, "exchangeDevice": 0, "maybeExchangeDevice": 0,
    "compiledWithCuDNN": 1, "supportsDilatedConvolutionWithCuDNN": 1, "supportsBFloat16ConvolutionWithCuDNNv8": 1,
    "supportsBFloat16RNNWithCuDNN": 1, "versionCuDNN": CUDNN, "versionRuntimeCuDNN": CUDNN, "batchnormMinEpsilonCuDNN": 0.0,
}  # fmt: skip

#: Which of them says that there is an accelerator: the first one that a version of torch declares is asked.
_SAYS_THAT_THERE_IS_ONE = ("isBuilt", "hasCUDA")

_FUNCTIONS = 160  # more than the table has; what follows it in memory is copied too and never called
_HEADER = 2  # words before the first function of a table: the offset to the object's top, and its type

#: What the library points to from now on must live as long as the process.
_KEPT: list[object] = []


def open_device(devices: int) -> None:
    """Let operators and autograd take "cuda" tensors without data. devices: how many there are to be, for each of which the engine has a
    thread. Raises LumosError where this torch cannot be opened so."""
    libraries = _FOLDER / "lib"
    suffix = "dylib" if sys.platform == "darwin" else "so"
    try:
        _register_guard(ctypes.CDLL(str(libraries / f"libc10.{suffix}")), _places(_GUARD), devices)
        _answer_hooks(ctypes.CDLL(str(libraries / f"libtorch_cpu.{suffix}")), _places(*_HOOKS))
    except (OSError, ValueError, AttributeError) as error:
        raise LumosError(
            f"torch {torch.__version__} cannot take tensors of a device that it is not built for ({error}): {REMEDY}, or emulate with "
            "--emulate cpu"
        ) from error
    _declare_kernels()


def _declare_kernels() -> None:
    """Let the dispatcher know of the kernels that a build with support for the device has and this one may not have, where an operator
    would be taken apart without one. None is ever called: tensors without data are asked first."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a kernel of the emulated device was called")

    library = torch.library.Library("aten", "IMPL", "CUDA")
    for name in kernels_instead("CUDA"):
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA"):
            library.impl(name, never)
    _KEPT.append(library)


def _register_guard(library: ctypes.CDLL, at: Mapping[str, int], devices: int) -> None:
    """Let a guard that does nothing take the place of the one of this build, if any: torch asks it wherever a tensor claims the device.
    Later versions bring one, and take it where the present one finds no devices."""
    registry = (ctypes.c_void_p * (_CUDA + 1)).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    brings_one = hasattr(torch._C, "_ensureCUDADeviceGuardSet")
    if not (brings_one and registry[_CUDA]):
        table = (ctypes.c_void_p * _FUNCTIONS)(*[_function(0)] * _FUNCTIONS)
        answers = {} if brings_one else _GUARD_ANSWERS | {"deviceCount": devices}
        for name, answer in answers.items():
            table[at[name]] = _function(answer)
        guard = (ctypes.c_void_p * 1)(ctypes.addressof(table))
        _KEPT.extend((table, guard))
        registry[_CUDA] = ctypes.addressof(guard)
    if brings_one:
        torch._C._ensureCUDADeviceGuardSet()


def _answer_hooks(library: ctypes.CDLL, at: Mapping[str, int]) -> None:
    get = library["_ZN2at6detail12getCUDAHooksEv"]
    get.restype = ctypes.c_void_p
    hooks = ctypes.c_void_p.from_address(get())
    start = int(hooks.value or 0) - _HEADER * ctypes.sizeof(ctypes.c_void_p)
    table = (ctypes.c_void_p * _FUNCTIONS).from_buffer_copy((ctypes.c_void_p * _FUNCTIONS).from_address(start))
    says = [name for name in _SAYS_THAT_THERE_IS_ONE if name in at][:1]
    for name, answer in (_HOOKS_ANSWERS | dict.fromkeys(says, 1)).items():
        if name in at:
            table[_HEADER + at[name]] = _function(answer)
    _KEPT.append(table)
    hooks.value = ctypes.addressof(table) + _HEADER * ctypes.sizeof(ctypes.c_void_p)


def _function(answer: float) -> int | None:
    """The address of a C function that returns `answer` whatever its arguments."""
    kind = ctypes.c_double if isinstance(answer, float) else ctypes.c_int64
    function = ctypes.CFUNCTYPE(kind, ctypes.c_void_p)(lambda _: answer)
    _KEPT.append(function)
    return ctypes.cast(function, ctypes.c_void_p).value


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ROCM = re.compile(r"^\s*#\s*if(?:def\s+USE_ROCM|\s+defined\(USE_ROCM\)).*?^\s*#\s*endif", re.DOTALL | re.MULTILINE)
_VIRTUAL = re.compile(r"\bvirtual\b[^;{}()]*?(~?\w+)\s*\(")


def _places(*headers: str) -> dict[str, int]:
    """The place of each virtual function, counted from the first. headers: below the folder of torch, that of the outermost base class,
    then that of each class derived from the one before, each with the virtual functions of that class alone. Raises ValueError where they
    declare none, and OSError where there are none."""
    places: dict[str, int] = {}
    count = 0
    for header in headers:
        inherited, text = frozenset(places), (_FOLDER / header).read_text(encoding="utf-8")
        for match in _VIRTUAL.finditer(_ROCM.sub("", _COMMENT.sub("", text))):
            name = match[1]
            if name in inherited or (inherited and name.startswith("~")):
                continue
            places.setdefault(name, count)
            count += 2 if name.startswith("~") else 1
    if not places:
        raise ValueError(f"{headers[-1]} declares no virtual functions")
    return places
