"""torch.cuda as the emulated accelerator would answer it, and the old names of its tensors (`torch.cuda.FloatTensor`)."""

from __future__ import annotations

import importlib
import sys
import types
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor

from lumos.emulation.process.operators.dispatcher import CUDNN, open_device
from lumos.emulation.process.patches import TORCH, Silent
from lumos.emulation.process.streams import answers as of_streams

if TYPE_CHECKING:

    from lumos.emulation.process.device_memory import DeviceMemory
    from lumos.emulation.process.settings import Device, EmulationSettings
    from lumos.emulation.process.streams import Graphs, Streams

#: A version of NCCL that has whatever torch 2.13 asks for by its version.
_NCCL = (2, 27, 0)

#: A version of ROCm that torch 2.13 is built with.
_ROCM = "7.2.0"

#: Functions of torch.accelerator that torch.cuda has under another name.
_ACCELERATOR = {"current_device_index": "current_device", "set_device_index": "set_device", "get_memory_info": "mem_get_info"}


class Generator(torch.Generator):  # type: ignore[misc]
    """A generator of random numbers for any device. No number is drawn on a device, so the one for CPUs serves, and of a device's state
    only its size counts."""

    def __new__(cls, device: Any = "cpu") -> Any:
        made = super().__new__(cls, "cpu")
        made.shown = torch.device(device)
        return made

    @property
    def device(self) -> Any:
        return self.shown

    def get_state(self) -> Any:
        return super().get_state() if self.shown.type == "cpu" else _device_state()

    def set_state(self, state: Any) -> Any:
        """Take a state; one without data, such as another rank would have sent, changes nothing, and neither does one of a device."""
        return self if isinstance(state, FakeTensor) or self.shown.type != "cpu" else super().set_state(state)

    def clone_state(self) -> Any:
        cloned = Generator(self.shown)
        cloned.set_state(self.get_state())
        return cloned


def _device_state() -> torch.Tensor:
    """The state of a device's generator: a seed and how far it has come, of eight bytes each (ATen's CUDAGeneratorImpl)."""
    return torch.ByteTensor(16).zero_()


def pretend(settings: EmulationSettings, streams: Streams, memory: DeviceMemory, graphs: Graphs) -> None:
    """Let torch.cuda, torch.accelerator and generators answer as `settings.device`. Raises LumosError where this torch cannot be made to.
    """
    device = settings.device
    count = min(settings.world, device.per_node)
    open_device(count)
    here = types.SimpleNamespace(index=settings.rank % device.per_node if settings.world > 1 else 0)
    answers = of_streams(streams) | _identity(device, count) | memory.answers() | graphs.answers() | _current(here)
    for name, answer in answers.items():
        _let_answer(name, answer)
    TORCH.put(torch, "Generator", Generator)

    @TORCH.around(torch, "set_rng_state")
    @TORCH.around(torch.random, "set_rng_state")
    def set_rng_state(choose: Any, state: Any) -> None:
        if not isinstance(state, FakeTensor):
            choose(state)

    for name, function in list(vars(torch.accelerator).items()):
        if isinstance(function, types.FunctionType) and hasattr(torch.cuda, same := _ACCELERATOR.get(name, name)):
            TORCH.put(torch.accelerator, name, getattr(torch.cuda, same))
    _old_types()
    _one_device(torch.device("cuda", here.index))
    nccl, cudnn, parallel = map(importlib.import_module, ("torch.cuda.nccl", "torch.backends.cudnn", "torch.nn.parallel._functions"))
    for owner, name, value in (
        (torch.cuda, "default_generators", tuple(Generator("cuda") for _ in range(count))), (nccl, "version", lambda: _NCCL),
        (torch._C, "_cuda_getDeviceCount", lambda: count), (torch._C, "_scatter", _scatter),
        (torch._C, "_host_emptyCache", lambda: None),
        (cudnn, "is_available", lambda: True), (cudnn, "version", lambda: CUDNN),
        (cudnn, "is_acceptable", lambda tensor: torch._C._get_cudnn_enabled() and tensor.is_cuda),
        (torch.version, "cuda", None if device.is_amd else torch.version.cuda or "12.8"),
        (torch.version, "hip", _ROCM if device.is_amd else None), (torch.backends.cuda, "is_flash_attention_available", lambda: True),
        (parallel, "_get_stream", cache(lambda _: torch.cuda.Stream())),
    ):  # fmt: skip
        TORCH.put(owner, name, value)


def _let_answer(name: str, answer: Any) -> None:
    """Let a function of torch.cuda answer so, also where a part of torch.cuda has it under the same name (`torch.cuda.random`), or has it
    alone. Each has a function of its own: torch's compiler tells functions apart by what they are."""
    asked = getattr(torch.cuda, name, None)
    if isinstance(answer, types.FunctionType):
        answer = types.FunctionType(answer.__code__, answer.__globals__, name, answer.__defaults__, answer.__closure__)
    for part in [module for key, module in sys.modules.items() if key.startswith("torch.cuda.")]:
        if hasattr(part, name) and asked in (None, getattr(part, name)):
            setattr(part, name, answer)
    setattr(torch.cuda, name, answer)


def _one_device(device: Any) -> None:
    """Put every tensor of the accelerator on this process's own, whichever index it was asked for with: it has no other. And make none
    with data there first, as torch does where it finds a device."""
    TORCH.put(fake_tensor, "init_gpu_context", lambda _: None)

    def own(asked: Any) -> Any:
        return device if torch.device(asked).type == "cuda" else asked

    if hasattr(FakeTensor, "_normalize_fake_device"):
        normalize = FakeTensor._normalize_fake_device
        FakeTensor._normalize_fake_device = staticmethod(lambda asked: normalize(own(asked)))
    else:  # an earlier version of torch
        make = FakeTensor.__new__
        FakeTensor.__new__ = staticmethod(
            lambda cls, mode, element, asked, *more, **named: make(cls, mode, element, own(asked), *more, **named)
        )


def _identity(device: Device, count: int) -> dict[str, Any]:
    major, minor = device.capability
    properties = types.SimpleNamespace(
        name=device.name, major=major, minor=minor, total_memory=device.memory, multi_processor_count=device.processors,
        is_integrated=0, is_multi_gpu_board=0, max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536,
        shared_memory_per_block=49152, shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472, L2_cache_size=0,
        warp_size=64 if device.is_amd else 32, gcnArchName=device.architecture, uuid="", pci_bus_id=0, pci_device_id=0, pci_domain_id=0,
    )  # fmt: skip
    yes = dict.fromkeys(("is_available", "is_initialized", "_is_compiled", "can_device_access_peer"), lambda *_, **__: True)
    of_driver = ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate", "get_sync_debug_mode")
    nothing = (
        "init", "_lazy_init", "check_error", "set_sync_debug_mode", "manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state",
        "set_rng_state_all",
    )  # fmt: skip
    return yes | dict.fromkeys(nothing, lambda *_, **__: None) | dict.fromkeys(of_driver, lambda *_, **__: 0) | {
        "device_count": lambda: count, "get_device_name": lambda *_, **__: device.name,
        "get_device_capability": lambda *_, **__: device.capability, "get_device_properties": lambda *_, **__: properties,
        "get_arch_list": lambda: [device.architecture], "is_bf16_supported": lambda *_, **__: major >= 8,
        "is_tf32_supported": lambda: major >= 8, "cudart": Silent, "_is_in_bad_fork": lambda: False,
        "get_rng_state": lambda *_, **__: _device_state(), "get_rng_state_all": lambda: [_device_state()], "initial_seed": lambda: 0,
    }  # fmt: skip


def _current(here: types.SimpleNamespace) -> dict[str, Any]:
    """The current device. A process has one, whatever index the script selects."""

    def exchange(index: int) -> int:
        before, here.index = here.index, index if index >= 0 else here.index
        return int(before)

    def set_device(device: Any) -> None:
        index = torch.device("cuda", device).index if isinstance(device, int) else torch.device(device).index
        exchange(-1 if index is None else index)

    return {"current_device": lambda: here.index} | dict.fromkeys(("set_device", "_set_device"), set_device) | dict.fromkeys(
        ("_exchange_device", "_maybe_exchange_device"), exchange
    )


class SeveralDevicesError(RuntimeError):
    """The script would use several devices in one process."""


def _scatter(tensor: Any, devices: list[int], _: Any = None, __: int = 0, streams: Any = None) -> tuple[Any, ...]:
    """What nn.DataParallel gives to each of its devices: all of it to the only one that a process has here, by a stream of its own."""
    if len(devices) > 1:
        raise SeveralDevicesError(f"nn.DataParallel uses {len(devices)} devices in one process")
    with torch.cuda.stream(streams[0] if streams else None):
        return (tensor.to(torch.device("cuda", devices[0])),)


_TYPES = ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")


class _Typed(type):
    """The class of such names: calling one makes a tensor, and a tensor is an instance of the one of its type and device."""

    dtype: Any

    def __call__(cls, *given: Any, **_: Any) -> Any:
        """A tensor of these sizes, without values, or of the values in a sequence."""
        if len(given) == 1 and not isinstance(given[0], (int, torch.Size)):
            return torch.as_tensor(given[0], dtype=cls.dtype, device="cuda")
        return torch.empty(*(given or (0,)), dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype


def _old_types() -> None:
    """Let the old names make tensors of the emulated device, and be chosen as the default type."""
    dtypes = {f"torch.cuda.{name}Tensor": getattr(torch, f"{name}Tensor").dtype for name in _TYPES}
    for name, dtype in dtypes.items():  # by which Tensor.type knows the class
        setattr(torch.cuda, name.rpartition(".")[2], _Typed(name, (), {"dtype": dtype}))

    @TORCH.around(torch, "set_default_tensor_type")
    def set_default_tensor_type(choose: Any, kind: Any) -> None:
        name = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
        if name in dtypes:
            torch.set_default_dtype(dtypes[name])
        else:
            choose(kind)
        torch.set_default_device("cuda" if name in dtypes else "cpu")
