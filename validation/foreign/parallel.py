"""How a module is spread over ranks: DDP, FSDP2 and tensor parallelism of PyTorch, over a process group that moves nothing.

One rank runs; the others do the same on their parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from math import prod
from typing import Any, cast
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from validation.foreign.experts import expert_parallel
from validation.foreign.handwritten import share_layers
from validation.foreign.job import Job
from validation.foreign.models import SPREAD_BY_PACKAGE
from validation.foreign.streams import note

#: Bytes of DDP's first bucket and of the others (torch.distributed, `_DEFAULT_FIRST_BUCKET_BYTES` and `bucket_cap_mb`).
BUCKETS = [1 << 20, 25 << 20]


@contextmanager
def process_group(job: Job, rank: int = 0) -> Iterator[None]:
    """The process group of all ranks of a job, of which this is the one of that number; none for one rank whose package asks for none."""
    if not job.mesh and job.family not in SPREAD_BY_PACKAGE:
        yield
        return
    dist.init_process_group("fake", rank=rank, world_size=prod(job.mesh.values()), store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
        _clear_sharding_prop_cache()  # it would hand the groups of this rank to the next one, whose groups have other names


def meshes_of(job: Job) -> dict[str, DeviceMesh]:
    """The ranks of a job, by the dimension along which they differ."""
    if not job.mesh:
        return {}
    with unset_fake_temporarily():
        whole = init_device_mesh("cpu", tuple(job.mesh.values()), mesh_dim_names=tuple(job.mesh))
        return {key: whole[key] for key in job.mesh}


def distributed(module: nn.Module, job: Job, mesh: Mapping[str, DeviceMesh]) -> nn.Module:
    """The module, or a chunk of it, on this rank of the job."""
    if job.tp > 1 and job.family not in SPREAD_BY_PACKAGE:
        tensor_parallel(module, mesh["tp"], job)
    if job.ep > 1:
        own = expert_parallel(module, mesh["ep"], mesh.get("dp"))
        cast(Any, DistributedDataParallel)._set_params_and_buffers_to_ignore_for_model(module, own)
    if job.dp * job.cp == 1:
        return module
    if job.zero > 1:
        return sharded(module, mesh["dp"], reshard=job.zero == 3)
    return replicated(module, mesh["dp"].get_group() if job.pp * job.tp > 1 else None)


def tensor_parallel(module: nn.Module, mesh: DeviceMesh, job: Job) -> None:
    """The multiplications of every layer, of the embedding and of the head shared by the ranks, as torchtitan's plan for Llama does. A
    model written by hand does it by hand, in its layers alone."""
    if job.family == "decoder":
        share_layers(module, mesh.get_group())
        return
    names = {
        "llama": (
            ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"),
            ("self_attn.o_proj", "mlp.down_proj"),
        ),
        "bert": (
            ("attention.self.query", "attention.self.key", "attention.self.value", "intermediate.dense"),
            ("attention.output.dense", "output.dense"),
        ),
    }
    family = "llama" if job.family == "qwen2" else job.family  # their modules have the same names
    by_column, by_row = names[family]
    plan: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in by_column}
    plan |= {name: RowwiseParallel() for name in by_row}
    for layer in next(part for part in module.modules() if isinstance(part, nn.ModuleList)):
        parallelize_module(layer, mesh, plan)
    if family == "llama":
        tables = "model.embed_tokens", "embedding"  # of a whole model, of a chunk of a pipeline
        heads = "lm_head", "head"
        outer: dict[str, ParallelStyle] = dict.fromkeys(tables, RowwiseParallel(input_layouts=Replicate()))
        outer |= dict.fromkeys(heads, ColwiseParallel(output_layouts=Replicate()))
        shown = {name for name, _ in module.named_modules()}
        parallelize_module(module, mesh, {name: style for name, style in outer.items() if name in shown})


def sharded(module: nn.Module, mesh: DeviceMesh, *, reshard: bool) -> nn.Module:
    """FSDP2: every layer a group of its own, everything else one more. reshard: whether gathered parameters are freed after a layer's
    forward pass."""
    with unset_fake_temporarily():  # it computes with the numbers of ranks, which are no fakes; the parameters are
        for part in list(module.modules()):
            if isinstance(part, nn.ModuleList):
                for layer in part:
                    fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(module, mesh=mesh)
    return module


def replicated(module: nn.Module, group: dist.ProcessGroup | None) -> nn.Module:
    """DDP. group: the replicas; None for all ranks. What its C++ reads from tensors at the start is left out, and its buckets are those
    with which it would go on after the first step: in the order of the backward pass."""
    assign = cast(Any, dist)._compute_bucket_assignment_by_size

    def backwards(tensors: list[Tensor], _: list[int], sparse: list[bool]) -> Any:
        found, limits = assign(tensors[::-1], BUCKETS, sparse[::-1])
        return [[len(tensors) - 1 - i for i in bucket] for bucket in found][::-1], limits[::-1]

    nothing = patch.object(dist, "_verify_params_across_processes", lambda *_: None)
    with nothing, patch.object(dist, "_compute_bucket_assignment_by_size", backwards):
        wrapped = DistributedDataParallel(module, process_group=group, init_sync=False)
    wrapped.register_comm_hook(None, lambda _, bucket: _all_reduce(bucket, group))
    wrapped.reducer = cast(Any, _WithoutRebuilding(wrapped.reducer))
    return wrapped


def _all_reduce(bucket: Any, group: dist.ProcessGroup | None) -> torch.futures.Future[Tensor]:
    dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


class _WithoutRebuilding:
    """DDP's reducer, whose buckets are as they would be after it has built them anew."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def _rebuild_buckets(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)


@contextmanager
def _without_sync(module: FSDPModule) -> Iterator[None]:
    module.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        module.set_requires_gradient_sync(True)


def postponed(module: nn.Module) -> AbstractContextManager[None]:
    """A microbatch that is not the last exchanges no gradients."""
    if isinstance(module, DistributedDataParallel):
        return cast(AbstractContextManager[None], module.no_sync())
    return _without_sync(module) if isinstance(module, FSDPModule) else _at_once()


@contextmanager
def _at_once() -> Iterator[None]:
    yield


def optimizer_of(module: nn.Module, job: Job) -> torch.optim.Optimizer:
    """The optimizer of the module on this rank: of all its parameters or, where replicas share the update, of a part of them."""
    how: dict[str, Any] = {"lr": 1e-4, "fused": job.fused, "foreach": not job.fused}
    if job.zero != 1:
        return torch.optim.AdamW(parameter_groups(module.parameters()), **how)
    return _Noted(list(module.parameters()), torch.optim.AdamW, **how)


class _Noted(ZeroRedundancyOptimizer):
    """The optimizer, whose wait for the updated parameters leaves a note."""

    def _sync_params(self) -> None:
        super()._sync_params()
        note("arrived")


def parameter_groups(parameters: Iterable[Tensor]) -> list[dict[str, list[Tensor]]]:
    """Parameters that one operator on lists may take together: those spread over the same ranks."""
    groups: dict[object, list[Tensor]] = {}
    for each in parameters:
        groups.setdefault(each.device_mesh if isinstance(each, DTensor) else None, []).append(each)
    return [{"params": group} for group in groups.values()]
