"""The training loop around a model, as a function that does one step; on fake tensors, or on real ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed import distributed_c10d
from torch.profiler import record_function
from validation.foreign.context import shared_sequence
from validation.foreign.job import Job
from validation.foreign.model import Batch, Model
from validation.foreign.models import MODELS, SPREAD_BY_PACKAGE
from validation.foreign.parallel import distributed, meshes_of, optimizer_of, postponed
from validation.foreign.pipeline import chunk_model, chunks_of, pipeline_step, recomputed


def fake_step(job: Job, stage: int = 0) -> Callable[[], None]:
    """A step of the job's first rank, or of the first of a stage, to be called on fake tensors, among which it is made."""
    if job.pp > 1:
        meshes = meshes_of(job)
        return pipeline_step(job, stage, chunks_of(job, stage, meshes, to_fake), meshes)
    with unset_fake_temporarily(), torch.device("meta"):
        model = chunk_model(job) if job.chunked else MODELS[job.family](**job.own_sizes, **_born(job))
        model.module.to(torch.bfloat16 if job.precision == "bf16" else torch.float32)
    to_fake(model.module)
    return step_of(job, model)


def _born(job: Job) -> dict[str, int]:
    """What a model is told that its package itself spreads over ranks."""
    return {"tensor": job.tp} if job.family in SPREAD_BY_PACKAGE else {}


def step_of(job: Job, model: Model) -> Callable[[], None]:
    """A step of the job: microbatches, each copied to the device, forward and backward; clipping; the optimizer."""
    if job.recompute and not job.chunked:
        recomputed(model.module)
    wrapped = distributed(model.module.train(), job, meshes_of(job))
    optimizer = optimizer_of(wrapped, job)

    def batch() -> Batch:
        dtype = torch.bfloat16 if job.precision == "bf16" else torch.float32
        return tuple(each.to(dtype) if each.is_floating_point() else each for each in model.batch())

    def microbatch(cpu: Batch, last: bool) -> None:
        with record_function("to device"):
            here = tuple(each.clone() for each in cpu)
        with contextlib.nullcontext() if last else postponed(wrapped):
            with torch.autocast("cpu", torch.bfloat16, enabled="amp" in job.precision):
                loss = model.loss(wrapped, here)
            with record_function("backward"):
                torch.autograd.backward(loss / job.microbatches if job.microbatches > 1 else loss)

    def step() -> None:
        batches = [batch() for _ in range(job.microbatches)]
        with record_function("recorded"), shared_sequence_of(job), model.around():
            for i, each in enumerate(batches):
                microbatch(each, i == len(batches) - 1)
            if job.clip:
                nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0, foreach=True)
            optimizer.step()
            optimizer.zero_grad()

    return step


def shared_sequence_of(job: Job) -> contextlib.AbstractContextManager[None]:
    """What lets the ranks of a job that share sequences attend to all of them."""
    if job.cp == 1:
        return contextlib.nullcontext()
    groups = {group.group_desc: group for group in cast(Any, distributed_c10d)._world.pg_names}
    group = groups.get("mesh_cp", groups["default_pg"])  # where ranks differ in nothing else, that of all of them
    return shared_sequence(group, job.rotation)


def to_fake(module: nn.Module) -> None:
    """Replace the parameters and buffers of a module on the meta device by fake ones; those that are shared stay shared."""
    made: dict[int, Tensor] = {}
    for part in module.modules():
        for name, old in [*part._parameters.items(), *part._buffers.items()]:
            if old is None:
                continue
            if id(old) not in made:
                new = torch.empty(old.shape, dtype=old.dtype)
                made[id(old)] = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
            setattr(part, name, made[id(old)])
