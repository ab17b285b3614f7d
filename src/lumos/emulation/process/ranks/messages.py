"""What ranks tell each other: messages in files, left for those that run beside a rank or later.

The rank that tells may be none of those that run. So the first one that tells as many ranks for the n-th time stands for all that do, and
where none has, and where all tell all, an object is this rank's own, as in a job whose ranks do the same.

Before the first step each stage of a pipeline receives the shapes of its input from the stage before, and of its gradients from the one
after. Gradients have the shapes of what they are gradients of. A stage of a rank that runs earlier than the stage before it (several stages
on a rank) takes this rank's own last output for its input, and says so.
"""

from __future__ import annotations

import os
import pickle
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lumos.collect.loading import when_loaded
from lumos.errors import LumosError

if TYPE_CHECKING:
    from lumos.emulation.process.journal import Journal
    from lumos.emulation.process.settings import EmulationSettings

#: Rank 0 runs beside the last one, which waits so long for it.
_PATIENCE_S = 120.0
_PAUSE_S = 0.01
_sleep = time.sleep


def leave_message(file: Path, message: bytes) -> None:
    """Leave a message for other processes, which is there as a whole or not at all."""
    file.parent.mkdir(exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_bytes(message)
    partial.replace(file)


def awaited_message(file: Path, patience_s: float) -> bytes | None:
    """The message of another process; None where none came."""
    until = time.monotonic() + patience_s
    while not file.exists() and time.monotonic() < until:
        _sleep(_PAUSE_S)
    return file.read_bytes() if file.exists() else None


def objects(settings: EmulationSettings) -> dict[str, Any]:
    """What takes the place of torch.distributed's functions for objects."""
    folder, counts = Path(settings.file).parent / "objects", Counter[int]()

    def told(own: Any, src: int | None, group: Any, place: int | None) -> Any:
        """What the root tells. A file is empty where that is nothing that another process can have, such as a tensor without data."""
        size = torch.distributed.get_world_size(group)
        counts[size] += 1
        file = folder / f"{size}-{counts[size]}.object"
        root = torch.distributed.get_global_rank(group, place or 0) if src is None and group is not None else src or place or 0
        if root == settings.rank:
            try:
                leave_message(file, pickle.dumps(own))
            except (pickle.PicklingError, TypeError, AttributeError, RuntimeError):
                leave_message(file, b"")
            return own
        said = awaited_message(file, 0.0 if root else _PATIENCE_S)
        return pickle.loads(said) if said else own

    def broadcast(objects: list[Any], src: int | None = None, group: Any = None, _: Any = None, group_src: int | None = None) -> None:
        objects[:] = told(objects, src, group, group_src)

    def scatter(
        output: list[Any], values: Any = None, src: int | None = None, group: Any = None, group_src: int | None = None
    ) -> None:  # fmt: skip
        every = told(values, src, group, group_src) or [None]
        output[0] = every[min(torch.distributed.get_rank(group), len(every) - 1)]

    def all_gather(objects: list[Any], value: Any, group: Any = None) -> None:
        objects[:] = [value] * int(torch.distributed.get_world_size(group))

    def gather(value: Any, objects: list[Any] | None = None, *_: Any, group: Any = None, **__: Any) -> None:
        if objects is not None:
            all_gather(objects, value, group)

    return {
        "all_gather_object": all_gather, "gather_object": gather, "scatter_object_list": scatter, "broadcast_object_list": broadcast,
        "send_object_list": lambda *_, **__: None, "recv_object_list": lambda *_, **__: 0,
    }  # fmt: skip


class StageWaitsError(LumosError):
    """A stage has waited for the one before it as long as it may."""


def pass_on_shapes(settings: EmulationSettings, journal: Journal) -> None:
    """Let the stages of torch.distributed.pipelining leave each other messages: a file for each. The ranks of a stage all say the same."""
    when_loaded("torch.distributed.pipelining.stage", lambda module: _stages(module, settings, journal))
    when_loaded("torch.distributed.pipelining.schedules", _schedules)


def _stages(module: Any, settings: EmulationSettings, journal: Journal) -> None:
    if not hasattr(module.PipelineStage, "_send_meta"):
        raise LumosError(f"torch {torch.__version__}: its pipeline stages tell each other nothing: install torch 2.8 to 2.13")
    counts, sent = Counter[tuple[int, int]](), list[Any]()

    def file(sender: int, receiver: int) -> Path:
        counts[sender, receiver] += 1
        return Path(settings.file).parent / "mail" / f"{sender}-{receiver}-{counts[sender, receiver]}.message"

    def send(stage: Any, message: Any, receiver: int) -> None:
        if receiver > stage.stage_index:
            sent.append(message)
            leave_message(file(stage.stage_index, receiver), pickle.dumps(message))

    def receive(stage: Any, sender: int) -> Any:
        if sender > stage.stage_index:
            return module._StageBackwardMeta(backward_metas=module._derive_grad_metas(stage._stage_meta.outputs))
        found = awaited_message(file(sender, stage.stage_index), 0.0 if sent else settings.patience_s)
        if found is not None:
            return pickle.loads(found)
        if not sent:
            raise StageWaitsError(f"pipeline stage {stage.stage_index} waits for the shapes that stage {sender} sends, which never came")
        journal.assume("stage-input", "the input of a later pipeline stage of a rank has the shapes of its earlier stage's output")
        return sent[-1]

    module.PipelineStage._send_meta = send
    module.PipelineStage._recv_meta = receive
    module._PipelineStage._move_submod_to_device = _to_device


def _to_device(stage: Any) -> None:
    """A stage of a traced model goes to its device, where it is none of meta tensors, for which torch takes all without data."""
    if not any(each.is_meta for each in stage.submod.parameters()):
        stage.submod.to(stage.device)


def _schedules(module: Any) -> None:
    if not hasattr(module, "InferenceMode"):
        return  # an earlier version of torch, whose stages exchange nothing before the first step

    def warm_up(_: Any, stages: Any, has_backward: bool, __: bool) -> None:
        for stage in stages:
            if not hasattr(stage, "_user_meta"):
                continue  # of a traced model, which knows all shapes
            dynamic = module.InferenceMode.needs_dynamic(stage._user_meta, has_backward)
            stage._inference_mode = module.InferenceMode.DYNAMIC if dynamic else module.InferenceMode.STATIC

    module._PipelineSchedule._warmup_p2p = warm_up
