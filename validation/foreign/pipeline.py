"""A rank of a pipeline: PyTorch's own schedules over layers of `transformers`, cut as their users cut them.

A rank has one chunk of consecutive layers, or several in turns; the first has the embedding too and the last the head. What the schedule
does with messages leaves named ranges among the operators, as streams and events do (`validation.foreign.streams`): one around those that
it issues together, and one where it waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining._utils import InferenceMode
from torch.nn.functional import cross_entropy
from torch.profiler import record_function
from validation.foreign.job import Job
from validation.foreign.model import Model
from validation.foreign.models import MODELS
from validation.foreign.nodes import AWAIT, MESSAGES
from validation.foreign.parallel import distributed, parameter_groups

SCHEDULES: dict[str, Any] = {
    "1f1b": pipelining.Schedule1F1B,
    "gpipe": pipelining.ScheduleGPipe,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
}


class _Chunk(nn.Module):
    """Some layers of a language model, with its embedding where they are the first and its head where they are the last."""

    def __init__(self, whole: Any, family: str, low: int, high: int) -> None:
        super().__init__()
        body = whole.model if family == "llama" else whole.transformer
        layers = body.layers if family == "llama" else body.h
        first, last = low == 0, high == len(layers)
        self.layers = nn.ModuleList(layers[low:high])
        self.embedding = (body.embed_tokens if family == "llama" else body.wte) if first else None
        self.positions = body.wpe if first and family == "gpt2" else None
        self.rotary = body.rotary_emb if family == "llama" else None
        self.norm = (body.norm if family == "llama" else body.ln_f) if last else None
        self.head = whole.lm_head if last else None

    def forward(self, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[1]).unsqueeze(0)
        if self.embedding is not None:
            x = self.embedding(x)
        if self.positions is not None:
            x = x + self.positions(place)
        more = {"position_embeddings": self.rotary(x, position_ids=place)} if self.rotary is not None else {}
        for layer in self.layers:
            x = layer(x, attention_mask=None, **more)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


def recomputed(module: nn.Module) -> None:
    """Let the layers of a model run again in its backward pass."""
    cast(Any, module).gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def _whole(job: Job) -> nn.Module:
    """The model that is cut into chunks."""
    module = MODELS[job.family](**job.own_sizes).module
    if job.recompute:
        recomputed(module)
    return module


def chunks_of(job: Job, stage: int, meshes: Mapping[str, DeviceMesh], to_fake: Callable[[nn.Module], None]) -> list[nn.Module]:
    """The chunks of a rank. Their parameters are fake."""
    places = job.pp * job.vpp
    layers = job.sizes["layers"]
    edges = [round(i * layers / places) for i in range(places + 1)]
    out: list[nn.Module] = []
    for place in range(stage, places, job.pp):
        with unset_fake_temporarily(), torch.device("meta"):
            chunk = _Chunk(_whole(job), job.family, edges[place], edges[place + 1])
            chunk.to(torch.bfloat16 if job.precision == "bf16" else torch.float32)
        to_fake(chunk)
        out.append(distributed(chunk.train(), job, meshes))
    return out


def chunk_model(job: Job) -> Model:
    """All layers of a model as the only chunk of a pipeline's script, which then needs no schedule."""
    sizes = job.own_sizes
    chunk = _Chunk(_whole(job), job.family, 0, sizes["layers"])
    rows, length = sizes["micro_batch"], sizes["seq"]
    return Model(chunk, lambda: (torch.randint(0, 1000, (rows, length)),), lambda module, batch: _loss(module(batch[0]), batch[0]))


def schedule_of(job: Job, stage: int, chunks: Sequence[nn.Module], meshes: Mapping[str, DeviceMesh]) -> Any:
    """PyTorch's schedule for the chunks of a rank."""
    rows, length, places = job.sizes["micro_batch"], job.own_sizes["seq"], job.pp * job.vpp
    group = meshes["pp"].get_group() if len(meshes) > 1 else None
    dtype = torch.bfloat16 if job.precision == "bf16" else torch.float32
    tokens = torch.zeros(rows, length, dtype=torch.long)
    stream = torch.empty(rows, length, job.sizes["hidden"], dtype=dtype)
    heads = [part for chunk in chunks for name, part in chunk.named_modules() if name.split(".")[-1] == "head"]
    vocabulary = int(heads[0].weight.shape[0]) if stage == job.pp - 1 else 0
    stages = []
    for place, chunk in zip(range(stage, places, job.pp), chunks, strict=True):
        last = place == places - 1
        of_head = torch.bfloat16 if "amp" in job.precision else dtype
        out = torch.empty(rows, length, vocabulary, dtype=of_head) if last else stream.clone().requires_grad_()
        into = tokens if place == 0 else stream.clone().requires_grad_()
        stages.append(pipelining.PipelineStage(chunk, place, places, torch.device("cpu"), input_args=into, output_args=out, group=group))
    of = SCHEDULES["interleaved" if job.vpp > 1 else job.schedule]
    schedule = of(stages if job.vpp > 1 else stages[0], job.microbatches, loss_fn=_loss)
    schedule._warmup_p2p = _all_known
    return schedule


def _all_known(stages: Sequence[Any], *_: Any) -> None:
    """What the ranks agree on before their first step, without the numbers by which they do, which fake tensors do not have: all shapes are
    given."""
    for stage in stages:
        stage._inference_mode = InferenceMode.STATIC


def _loss(out: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(out[:, :-1].flatten(0, 1).float(), target[:, 1:].flatten())


def pipeline_step(job: Job, stage: int, chunks: Sequence[nn.Module], meshes: Mapping[str, DeviceMesh]) -> Callable[[], None]:
    """A step of one rank of the pipeline, to be called on fake tensors."""
    schedule = schedule_of(job, stage, chunks, meshes)
    parameters = parameter_groups(p for chunk in chunks for p in chunk.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=job.fused, foreach=not job.fused)
    rows, length = job.sizes["micro_batch"] * job.microbatches, job.own_sizes["seq"]

    def step() -> None:
        batch = torch.randint(0, 1000, (rows, length))
        with record_function("recorded"), noted_messages():
            given: tuple[Tensor, ...] = ()
            wanted: dict[str, Any] = {}
            if stage in (0, job.pp - 1):
                with record_function("to device"):
                    here = batch.clone()
                given = (here,) if stage == 0 else ()
                wanted = {"target": here, "losses": []} if stage == job.pp - 1 else {}
            with torch.autocast("cpu", torch.bfloat16, enabled="amp" in job.precision):
                schedule.step(*given, **wanted, return_outputs=False)
            optimizer.step()
            optimizer.zero_grad()

    return step


@contextmanager
def noted_messages() -> Iterator[None]:
    """Let messages and the waits for them leave ranges, and backward passes be seen."""
    numbers = count()
    issue, backward = schedules._batch_p2p, torch.autograd.backward

    def issued(ops: list[Any], desc: str | None = None) -> list[Any]:
        if not ops:
            return []
        number = next(numbers)
        with record_function(f"{MESSAGES} {number}"):
            issue(ops, desc)
        return [number]

    def awaited(works: list[Any]) -> None:
        for number in works:
            with record_function(f"{AWAIT} {number}"):
                pass

    def on_its_thread(*args: Any, **kwargs: Any) -> None:
        with record_function("backward"):
            backward(*args, **kwargs)

    with (
        patch.object(schedules, "_batch_p2p", issued),
        patch.object(schedules, "_wait_batch_p2p", awaited),
        patch.object(torch.autograd, "backward", cast(Any, on_its_thread)),
    ):
        yield
