"""Functions of torch that know tensors with data only, or that an emulated script must not run as they are: it profiles nothing, and has no
workers beside it.

`flex_attention` stands for attention by the kernel that torch would choose without a mask. What torch works out about a whole tensor, of
which each rank holds a part, is no work of the device.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import types
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from lumos.collect.loading import when_loaded
from lumos.emulation.process.operators.known import pin
from lumos.emulation.process.operators.stand_ins import ALL_SELECTED
from lumos.emulation.process.patches import TORCH, Silent

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.emulation.process.journal import Journal


def parameters(mode: Any) -> None:
    """Parameters never have data, and one that is moved to the device stays the same object, so that what shares it still does."""
    for module in ("torch.utils._foreach_utils", "torch.optim.optimizer"):
        importlib.import_module(module)._foreach_supported_types.append(FakeTensor)
    data = torch.Tensor.data

    def put(tensor: Any, other: Any) -> None:
        data.__set__(tensor, other)
        if isinstance(other, FakeTensor):
            tensor.fake_device = other.fake_device

    FakeTensor.data = property(data.__get__, put)

    def become(one: Any, other: Any) -> None:
        torch._C._swap_tensor_impl(one, other)
        one.__dict__, other.__dict__ = other.__dict__, one.__dict__
        one.__class__, other.__class__ = other.__class__, one.__class__

    @TORCH.around(torch.utils, "swap_tensors")
    def swap_tensors(swap: Any, one: Any, other: Any) -> None:
        if not (isinstance(one, FakeTensor) and isinstance(other, FakeTensor)):
            with mode.storages.owners.without(one, other):
                swap(one, other)
        elif one.is_meta == other.is_meta:
            one.data = other
        else:  # which torch's own function refuses, since the mode has weak references to both
            become(one, other)

    @TORCH.around(torch.nn.Parameter, "__new__")
    def parameter(make: Any, cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if cls is torch.nn.Parameter and isinstance(data, FakeTensor) and type(data) is not FakeTensor:  # as of a module that is moved
            made = data.detach().requires_grad_(requires_grad)
            made.__class__, made.__dict__ = type(data), {**made.__dict__, **data.__dict__}
        else:
            made = make(cls, mode.from_tensor(data) if type(data) is torch.Tensor else data, requires_grad)
        mode.storages.owners.parameter(made)
        return made

    @TORCH.around(torch.Tensor, "_make_subclass")
    def subclass(make: Any, cls: Any, data: Any, requires_grad: bool = False, *more: Any, **named: Any) -> Any:
        if not isinstance(data, FakeTensor):
            return make(cls, data, requires_grad, *more, **named)
        made = data.detach().requires_grad_(requires_grad)
        made.__class__ = _without_data(cls)
        if isinstance(made, torch.nn.Parameter):
            mode.storages.owners.parameter(made)
        return made

    @TORCH.around(torch.Tensor, "as_subclass")
    def as_subclass(make: Any, data: Any, cls: Any) -> Any:
        if not isinstance(data, FakeTensor):
            return make(data, cls)
        made = torch.ops.aten.alias.default(data)
        made.__class__ = _without_data(cls)
        return made

    _lazy(mode, become)


@functools.cache
def _without_data(cls: Any) -> Any:
    """The class of tensors without data that are of a class which adds methods and attributes, which torch makes of no subclass's."""
    if issubclass(cls, FakeTensor) or cls is torch.Tensor:
        return FakeTensor if cls is torch.Tensor else cls
    made: Any = types.new_class(cls.__name__, (cls, FakeTensor))
    made.__torch_function__ = inspect.getattr_static(cls, "__torch_function__")  # which torch takes away where operators are taken over
    return made


def _lazy(mode: Any, become: Callable[[Any, Any], None]) -> None:
    """Parameters and buffers of lazy modules are nowhere until they have a shape, and know where and in which type they are to be made.
    become: lets one tensor be another."""
    kinds = torch.nn.parameter.UninitializedParameter, torch.nn.parameter.UninitializedBuffer

    def make(new: Any, cls: Any, *given: Any, device: Any = None, dtype: Any = None, **named: Any) -> Any:
        made = new(cls, *given, device="cpu", dtype=dtype, **named)
        made.to_be = torch.empty(0, device=device, dtype=dtype)
        return made

    for kind in kinds:
        TORCH.around(kind, "__new__")(make)

    @TORCH.around(torch.nn.Module, "_apply")
    def convert(apply: Any, module: Any, function: Any, *given: Any, **named: Any) -> Any:
        every = ((held, *item) for held in (module._parameters, module._buffers) for item in held.items())
        lazy = [entry for entry in every if isinstance(entry[2], kinds)]
        for held, key, parameter in lazy:
            held[key], parameter.to_be = None, function(parameter.to_be)
        apply(module, function, *given, **named)
        for held, key, parameter in lazy:
            held[key] = parameter
        return module

    @TORCH.around(torch.nn.parameter.UninitializedTensorMixin, "materialize")
    def materialize(_: Any, tensor: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        made = tensor.to_be.new_empty(shape, device=device, dtype=dtype)
        become(tensor, torch.nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else made)
        if isinstance(tensor, torch.nn.Parameter):
            mode.storages.owners.parameter(tensor)


def values(mode: Any) -> None:
    """Arrays, numbers and texts of tensors without data, and tensors made of a sequence in which tensors stand, as of the losses of several
    batches: those are read one by one. Values count as finite."""

    @TORCH.around(torch.Tensor, "numpy")
    def as_array(numpy: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        is_forced = bool(args) or kwargs.get("force", False)
        if tensor.is_cuda and not is_forced:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.")
        if tensor.requires_grad and not is_forced:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        known = mode.known.copied(tensor) if isinstance(tensor, FakeTensor) else tensor
        if known is not None:
            return numpy(known, *args, **kwargs)
        library: Any = importlib.import_module("numpy")
        mode.journal.assume("stand-in-array", "an array made from a tensor is full of ones: tensors have no data here")
        name = str(tensor.dtype).removeprefix("torch.").replace("bfloat16", "float32")
        return library.broadcast_to(library.ones((), dtype=name), tuple(tensor.shape))

    torch.Tensor.__array__ = lambda tensor, dtype=None, **_: tensor.numpy() if dtype is None else tensor.numpy().astype(dtype)

    @TORCH.around(torch.Tensor, "__format__")
    def formatted(text: Any, tensor: Any, specification: str) -> str:
        return format(tensor.item(), specification) if isinstance(tensor, FakeTensor) and tensor.dim() == 0 else text(tensor, specification)

    def read(data: Any) -> Any:
        if isinstance(data, FakeTensor):
            return data.tolist()
        nested = isinstance(data, (list, tuple)) and any(isinstance(element, (list, tuple, FakeTensor)) for element in data)
        return [read(element) for element in data] if nested else data

    torch.utils._device._device_constructors()  # by which `with torch.device(…)` knows these functions, kept as they are
    torch._C._set_only_lift_cpu_tensors(mode.kind != "cpu")  # of each thread: data are on the host first, those of a list as index too

    @TORCH.around(torch, "tensor")
    @TORCH.around(torch, "as_tensor")
    def made(make: Any, data: Any, *args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        torch._C._set_only_lift_cpu_tensors(mode.kind != "cpu")  # also in a backward pass
        out = make(data if isinstance(data, torch.Tensor) else read(data), *args, **kwargs)
        return pin(out) if pin_memory else out

    @TORCH.around(torch.Tensor, "isfinite")
    @TORCH.around(torch, "isfinite")
    def isfinite(check: Any, tensor: Any) -> Any:
        finite = check(tensor)
        if isinstance(finite, FakeTensor):
            mode.known.know(finite, True)
        return finite

    for name in ("tensor", "as_tensor", "isfinite"):  # as torch.jit.script knows them, which torch's own optimizers come through
        torch.jit._builtins._register_builtin(getattr(torch, name), f"aten::{name}")
    torch._C._jit_set_texpr_fuser_enabled(False)  # which would compile kernels of TorchScript for the device
    torch.backends.mha.set_fastpath_enabled(False)  # which packs padded sequences by the values of their mask
    # transformers makes masks that need no value where it meets tensors without data; a real run reads the values.
    when_loaded("transformers.utils.import_utils", lambda loaded: setattr(loaded, "is_fake_tensor", lambda _: False))


def higher_order(journal: Journal, mode: Any) -> None:
    """Functions that take functions, and shapes of whole distributed tensors. mode: the one that the script runs in."""

    def random(_: Any, __: Any, ___: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        """The operator on this rank's part of a distributed tensor, between two offsets of the generator, which draws no numbers here."""
        with mode:
            return operator(*args, **kwargs)

    def parts(module: Any) -> None:
        if hasattr(module, "run_dtensor_rng_op"):  # earlier versions of torch call the operator itself
            module.run_dtensor_rng_op.py_impl(type(mode))(random)

    def whole(module: Any) -> None:
        @TORCH.around(module.ShardingPropagator, "_propagate_tensor_meta_non_cached")
        def shape_of_whole(find: Any, *args: Any, **kwargs: Any) -> Any:
            with mode.journal.closed(), mode.closed():
                return find(*args, **kwargs)

    def shards(module: Any) -> None:
        module._chunk_with_empty = Shards

    def selections(module: Any) -> None:
        @TORCH.around(module.FakeImplCtx, "new_dynamic_size")
        def all_selected(_: Any, __: Any, **bounds: Any) -> Any:
            """The size of a result by values that nobody knows, of an operator of a library's."""
            journal.assume(*ALL_SELECTED)
            return mode.rows if bounds.get("max") is None else min(mode.rows, bounds["max"])

    def lengths(module: Any) -> None:  # of a number for tensors with data as well, which those without take over
        torch.Tensor.nested_int_memo = property(lambda offsets: module._tensor_symint_registry[offsets])

    when_loaded("torch.nested._internal.nested_tensor", lengths)
    when_loaded("torch._library.fake_impl", selections)
    when_loaded("torch.nn.attention.flex_attention", lambda module: _flexible(module, journal))
    when_loaded("torch.distributed.fsdp._fully_shard._fsdp_param", shards)
    when_loaded("torch._prims.rng_prims", parts)
    when_loaded("torch.distributed.tensor._sharding_prop", whole)


class Shards:
    """The parts of a parameter that the ranks of a group hold, each made where it is asked for. A rank takes its own and the first one,
    for which torch makes one for every rank."""

    def __init__(self, tensor: Any, count: int, dim: int) -> None:
        self._tensor, self._dim, self._size = tensor, dim, -(-tensor.shape[dim] // count)

    def __getitem__(self, rank: int) -> Any:
        left = self._tensor.shape[self._dim] - rank * self._size
        if left <= 0:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, rank * self._size, min(self._size, left))


def _flexible(module: Any, journal: Journal) -> None:
    def flex_attention(
        query: Any, key: Any, value: Any, score_mod: Any = None, block_mask: Any = None, scale: float | None = None,
        enable_gqa: bool = False, return_lse: bool = False, kernel_options: Any = None, *, return_aux: Any = None,
    ) -> Any:  # fmt: skip
        del kernel_options
        if score_mod is not None or block_mask is not None:
            journal.assume(
                "flex-attention", "flex_attention takes the time of attention without a mask: what its functions hide is not known"
            )
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scale, enable_gqa=enable_gqa)
        if return_aux is None and not return_lse:
            return out
        sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        if return_aux is None:
            return out, sums
        return out, module.AuxOutput(**{name: sums for name in ("lse", "max_scores") if getattr(return_aux, name)})

    module.flex_attention = flex_attention


def profilers(journal: Journal, stepped: Callable[[bool], None]) -> None:
    """Profilers of the script's own, which would meet the emulation's. stepped: called where one is told that a step has ended
    (True), or will be (False)."""

    class Profile(Silent):
        """A profiler that records nothing."""

        def __init__(self, *_: Any, schedule: Any = None, **__: Any) -> None:
            journal.assume("no-own-profiler", "the script's own profiler records nothing")
            if schedule is not None:
                stepped(False)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def step(self) -> None:
            stepped(True)

    @TORCH.around(torch.autograd.profiler.record_function, "__enter__", "__exit__")
    def range_(mark: Any, *given: Any) -> Any:
        """By operators that the mode would take over: inside of a row that ends before the range does."""
        with unset_fake_temporarily():
            return mark(*given)

    def disabled(init: Any, *given: Any, **named: Any) -> Any:
        return init(*given, **named | {"mode": "disabled"})  # a tracker of experiments starts a program, also without a connection

    when_loaded("wandb", lambda module: TORCH.put(module, "init", functools.partial(disabled, module.init)))
    torch.profiler.profile = torch.autograd.profiler.profile = Profile
    torch.autograd.profiler.emit_nvtx = lambda *_, **__: contextlib.nullcontext()
    torch.cuda.nvtx._nvtx = Silent()


#: Arguments of a data loader that are about its workers, and about the memory that they fill.
_OF_WORKERS = (
    "num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "timeout", "multiprocessing_context", "pin_memory_device",
)  # fmt: skip


def loaders(journal: Journal, mode: Any) -> None:
    """Data loaders run for real, in this process: their workers would have to be emulated too."""
    data = importlib.import_module("torch.utils.data.dataloader")
    code = data.DataLoader.__init__.__code__
    kinds: dict[int, tuple[bool, bool]] = {}  # by data set: whether others load it, and into pinned memory

    @TORCH.around(data.DataLoader, "__init__")
    def init(make: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        given = dict(zip(code.co_varnames[1 : code.co_argcount], args, strict=False)) | kwargs
        make(loader, **{name: value for name, value in given.items() if name not in _OF_WORKERS})
        kinds[id(loader.dataset)] = bool(given.get("num_workers")), mode.kind != "cpu" and bool(given.get("pin_memory"))
        if given.get("num_workers"):
            journal.assume("no-workers", "data loaders run in the process itself, and their work is not part of the record")

    @TORCH.around(data._BaseDataLoaderIter, "__next__")
    def following_batch(following: Any, iterator: Any) -> Any:
        apart, pins = kinds.get(id(iterator._dataset), (False, False))
        with mode.aside(hidden=apart):
            batch = following(iterator)
        if pins:
            with mode.journal.closed() if apart else contextlib.nullcontext():
                batch = data._utils.pin_memory.pin_memory(batch)
        return mode.batch_of(batch)
