"""What a training job is, apart from the code that runs it: no PyTorch is needed to read it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Job:
    """A job of a family of models. sizes: what the model function takes. optimizer: how it is built from the parameters.

    precision: "fp32", "tf32", "bf16" (the model's own type) or "amp" (autocast to bf16). dp: replicas; tp: ranks that share the layers'
    multiplications; zero: 3 where replicas share the parameters (FSDP2), 2 where they keep what a forward pass has gathered (FSDP2 without
    `reshard_after_forward`), 1 where each updates a part of them (`ZeroRedundancyOptimizer`), 0 where each has its own (DDP). pp: stages of
    a pipeline of `torch.distributed.pipelining`, in the order `schedule`; vpp: chunks of each, of which several run interleaved.
    """

    family: str
    sizes: dict[str, int]
    microbatches: int = 1
    precision: str = "fp32"
    recompute: bool = False
    clip: bool = True
    fused: bool = True
    reads_loss: bool = False
    host: float = 1.0
    dp: int = 1
    tp: int = 1
    zero: int = 0
    pp: int = 1
    vpp: int = 1
    schedule: str = "1f1b"

    @property
    def mesh(self) -> dict[str, int]:
        """The sizes of the dimensions along which ranks differ, the outermost first; neighbours in the last one follow each other."""
        return {key: size for key, size in (("pp", self.pp), ("dp", self.dp), ("tp", self.tp)) if size > 1}

    @property
    def ranks_of_stage(self) -> int:
        """The ranks that run the same operators, one after the other."""
        return 1 if self.zero == 1 else self.dp * self.tp

    def changed(self, changes: dict[str, Any]) -> Job:
        """The job after changes: sizes of its model, or fields of its own."""
        own = {k: v for k, v in changes.items() if k not in self.sizes}
        return replace(self, sizes={**self.sizes, **{k: v for k, v in changes.items() if k in self.sizes}}, **own)
