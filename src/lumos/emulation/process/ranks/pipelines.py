"""Pipeline stages that tell each other what shapes they pass on.

Before the first step each stage receives the shapes of its input from the stage before, and of its gradients from the one after. Ranks
are run after each other, so what a stage sends is left in a folder for those that run later. Gradients have the shapes of what they are
gradients of. A stage of a rank that runs earlier than the stage before it (several stages on a rank) takes this rank's own last
output for its input, and says so.
"""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lumos.collect.loading import when_loaded
from lumos.emulation.process.ranks.objects import awaited_message, leave_message
from lumos.errors import LumosError

if TYPE_CHECKING:
    from lumos.emulation.process.journal import Journal
    from lumos.emulation.process.settings import EmulationSettings


class StageWaitsError(LumosError):
    """A stage has waited for the one before it as long as it may."""


def leave_messages(settings: EmulationSettings, journal: Journal) -> None:
    """Let the stages of torch.distributed.pipelining leave each other messages."""
    mail = Mail(Path(settings.file).parent / "mail", settings.patience_s)
    when_loaded("torch.distributed.pipelining.stage", lambda module: _stages(module, mail, journal))
    when_loaded("torch.distributed.pipelining.schedules", _schedules)


class Mail:
    """What stages leave for each other: a file for each message. The ranks of a stage all say the same."""

    def __init__(self, folder: Path, patience_s: float) -> None:
        self._folder, self._patience = folder, patience_s
        self._counts = Counter[tuple[int, int]]()
        self.last: Any = None

    def send(self, message: Any, sender: int, receiver: int) -> None:
        """Leave a message of one stage for another."""
        self.last = message
        leave_message(self._file(sender, receiver), pickle.dumps(message))

    def receive(self, sender: int, receiver: int) -> Any:
        """The next message of one stage for another; None where it has left none although this rank cannot run after it."""
        found = awaited_message(self._file(sender, receiver), self._patience if self.last is None else 0.0)
        if found is None and self.last is None:
            raise StageWaitsError(f"pipeline stage {receiver} waits for the shapes that stage {sender} sends, which never came")
        return None if found is None else pickle.loads(found)

    def _file(self, sender: int, receiver: int) -> Path:
        self._counts[sender, receiver] += 1
        return self._folder / f"{sender}-{receiver}-{self._counts[sender, receiver]}.message"


def _stages(module: Any, mail: Mail, journal: Journal) -> None:
    stages = module.PipelineStage
    if not hasattr(stages, "_send_meta"):
        raise LumosError(f"torch {torch.__version__}: its pipeline stages tell each other nothing: install torch 2.8 to 2.13")

    def send(stage: Any, message: Any, receiver: int) -> None:
        if receiver > stage.stage_index:
            mail.send(message, stage.stage_index, receiver)

    def receive(stage: Any, sender: int) -> Any:
        if sender > stage.stage_index:
            return module._StageBackwardMeta(backward_metas=module._derive_grad_metas(stage._stage_meta.outputs))
        return _received(mail, journal, sender, stage.stage_index)

    stages._send_meta = send
    stages._recv_meta = receive


def _received(mail: Mail, journal: Journal, sender: int, receiver: int) -> Any:
    message = mail.receive(sender, receiver)
    if message is None:
        journal.assume("stage-input", "the input of a later pipeline stage of a rank has the shapes of its earlier stage's output")
        return mail.last
    return message


def _schedules(module: Any) -> None:
    if not hasattr(module, "InferenceMode"):
        return  # an earlier version of torch, whose stages exchange nothing before the first step

    def warm_up(_: Any, stages: Any, has_backward: bool, __: bool) -> None:
        for stage in stages:
            dynamic = module.InferenceMode.needs_dynamic(stage._user_meta, has_backward)
            stage._inference_mode = module.InferenceMode.DYNAMIC if dynamic else module.InferenceMode.STATIC

    module._PipelineSchedule._warmup_p2p = warm_up
