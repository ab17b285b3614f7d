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
from lumos.emulation.process.streams import Streams, functions

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.emulation.process.device_memory import DeviceMemory
    from lumos.emulation.process.settings import Device, EmulationSettings

#: A version of NCCL that has whatever torch 2.13 asks for by its version.
_NCCL = (2, 27, 0)

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


def _unless_without_data(set_state: Callable[[Any], None]) -> Callable[[Any], None]:
    def set_rng_state(state: Any) -> None:
        if not isinstance(state, FakeTensor):
            set_state(state)

    return set_rng_state


def pretend(settings: EmulationSettings, streams: Streams, memory: DeviceMemory) -> None:
    """Let torch.cuda, torch.accelerator and generators answer as `settings.device`. Raises LumosError where this torch cannot be made to.
    """
    device = settings.device
    count = min(settings.world, device.per_node)
    open_device(count)
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(…, device="cuda") makes its data on the host first
    answers = dict(functions(streams)) | _identity(device, count) | memory.answers() | _random()
    here = types.SimpleNamespace(index=settings.rank % device.per_node if settings.world > 1 else 0)
    for name, answer in (answers | _current(here) | _driver()).items():
        _let_answer(name, answer)
    torch.Generator = Generator
    torch.set_rng_state = torch.random.set_rng_state = _unless_without_data(torch.set_rng_state)
    torch.cuda.default_generators = tuple(Generator("cuda") for _ in range(count))
    for name, function in list(vars(torch.accelerator).items()):
        if isinstance(function, types.FunctionType) and hasattr(torch.cuda, same := _ACCELERATOR.get(name, name)):
            setattr(torch.accelerator, name, getattr(torch.cuda, same))
    install_types()
    nccl: Any = importlib.import_module("torch.cuda.nccl")
    nccl.version = lambda: _NCCL
    _one_device(torch.device("cuda", here.index))
    torch._C._cuda_getDeviceCount = lambda: count
    cudnn: Any = importlib.import_module("torch.backends.cudnn")
    cudnn.is_available = lambda: True
    cudnn.version = lambda: CUDNN
    cudnn.is_acceptable = lambda tensor: torch._C._get_cudnn_enabled() and tensor.is_cuda
    torch.version.cuda = torch.version.cuda or "12.8"
    torch.backends.cuda.is_flash_attention_available = lambda: True
    torch._C._scatter = _scatter
    parallel: Any = importlib.import_module("torch.nn.parallel._functions")
    parallel._get_stream = cache(lambda _: torch.cuda.Stream())


def _let_answer(name: str, answer: Any) -> None:
    """Let a function of torch.cuda answer so, also where a part of torch.cuda has it under the same name (`torch.cuda.random`), or has it
    alone."""
    asked = getattr(torch.cuda, name, None)
    for part in [module for key, module in sys.modules.items() if key.startswith("torch.cuda.")]:
        if hasattr(part, name) and asked in (None, getattr(part, name)):
            setattr(part, name, answer)
    setattr(torch.cuda, name, answer)


def _one_device(device: Any) -> None:
    """Put every tensor of the accelerator on this process's own, whichever index it was asked for with: it has no other. And make none
    with data there first, as torch does where it finds a device."""
    fake_tensor.init_gpu_context = lambda _: None

    def own(asked: Any) -> Any:
        return device if torch.device(asked).type == "cuda" else asked

    if hasattr(FakeTensor, "_normalize_fake_device"):
        normalize = FakeTensor._normalize_fake_device
        FakeTensor._normalize_fake_device = staticmethod(lambda asked: normalize(own(asked)))
        return
    make = FakeTensor.__new__  # of earlier versions of torch, which have no such function

    def on_own(cls: Any, mode: Any, element: Any, asked: Any, *args: Any, **kwargs: Any) -> Any:
        return make(cls, mode, element, own(asked), *args, **kwargs)

    FakeTensor.__new__ = staticmethod(on_own)


def _identity(device: Device, count: int) -> dict[str, Any]:
    major, minor = device.capability
    properties = types.SimpleNamespace(
        name=device.name, major=major, minor=minor, total_memory=device.memory, multi_processor_count=device.processors,
        is_integrated=0, is_multi_gpu_board=0, max_threads_per_multi_processor=2048, warp_size=32, regs_per_multiprocessor=65536,
        shared_memory_per_block=49152, shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472, L2_cache_size=0,
        gcnArchName="", uuid="", pci_bus_id=0, pci_device_id=0, pci_domain_id=0,
    )  # fmt: skip
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "_is_compiled": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "is_current_stream_capturing": lambda: False,
        "device_count": lambda: count,
        "get_device_name": lambda *_, **__: device.name,
        "get_device_capability": lambda *_, **__: device.capability,
        "get_device_properties": lambda *_, **__: properties,
        "get_arch_list": lambda: [f"sm_{major}{minor}"],
        "is_bf16_supported": lambda *_, **__: major >= 8,
        "is_tf32_supported": lambda: major >= 8,
        "can_device_access_peer": lambda *_, **__: True,
        **{
            name: lambda *_, **__: 0 for name in ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate")
        },  # by its driver
    }


def _current(here: types.SimpleNamespace) -> dict[str, Any]:
    """The current device. A process has one, whatever index the script selects."""

    def exchange(index: int) -> int:
        before = here.index
        if index >= 0:
            here.index = index
        return int(before)

    def set_device(device: Any) -> None:
        index = torch.device("cuda", device).index if isinstance(device, int) else torch.device(device).index
        if index is not None:
            here.index = index

    return {
        "current_device": lambda: here.index, "set_device": set_device, "_exchange_device": exchange, "_maybe_exchange_device": exchange,
        "_set_device": set_device,
    }  # fmt: skip


class SeveralDevicesError(RuntimeError):
    """The script would use several devices in one process."""


def _scatter(tensor: Any, devices: list[int], _: Any = None, __: int = 0, streams: Any = None) -> tuple[Any, ...]:
    """What nn.DataParallel gives to each of its devices: all of it to the only one that a process has here, by a stream of its own."""
    if len(devices) > 1:
        raise SeveralDevicesError(f"nn.DataParallel uses {len(devices)} devices in one process")
    with torch.cuda.stream(streams[0] if streams else None):
        return (tensor.to(torch.device("cuda", devices[0])),)


class _Runtime:
    """The CUDA runtime, every function of which succeeds: the script asks it to start and stop a profiler of NVIDIA's."""

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: 0


def _driver() -> dict[str, Any]:
    return {
        "cudart": _Runtime, "check_error": lambda _: None, "set_sync_debug_mode": lambda _: None, "get_sync_debug_mode": lambda: 0,
        "CUDAGraph": _Graph, "graph_pool_handle": _Graph,
    }  # fmt: skip


class CudaGraphError(RuntimeError):
    """The script captures a CUDA graph."""


class _Graph:
    """What a script makes before it captures its work as a CUDA graph."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise CudaGraphError("CUDA graphs cannot be captured without a device")


def _random() -> dict[str, Any]:
    return {
        "manual_seed": lambda *_, **__: None, "manual_seed_all": lambda *_, **__: None, "seed": lambda: None, "seed_all": lambda: None,
        "initial_seed": lambda: 0, "get_rng_state": lambda *_, **__: _device_state(), "get_rng_state_all": lambda: [_device_state()],
        "set_rng_state": lambda *_, **__: None, "set_rng_state_all": lambda *_, **__: None,
    }  # fmt: skip


_DTYPES = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16, "Byte": torch.uint8,
    "Char": torch.int8, "Short": torch.int16, "Int": torch.int32, "Long": torch.int64, "Bool": torch.bool,
}  # fmt: skip


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


def install_types() -> None:
    """Let the names make tensors of the emulated device, and be chosen as the default type."""
    for name, dtype in _DTYPES.items():
        known = f"torch.cuda.{name}Tensor"  # by which Tensor.type knows the class
        setattr(torch.cuda, f"{name}Tensor", _Typed(known, (), {"dtype": dtype}))
    choose = torch.set_default_tensor_type

    def set_default_tensor_type(kind: Any) -> None:
        name = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
        word = name.rpartition(".")[2].removesuffix("Tensor")
        if not name.startswith("torch.cuda.") or word not in _DTYPES:
            choose(kind)
            torch.set_default_device("cpu")
            return
        torch.set_default_dtype(_DTYPES[word])
        torch.set_default_device("cuda")

    torch.set_default_tensor_type = set_default_tensor_type
