"""What a training job is, apart from the code that runs it: no PyTorch is needed to read it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Job:
    """A job of a family of models. sizes: what the model function takes. optimizer: how it is built from the parameters.

    precision: "fp32", "tf32", "bf16" (the model's own type) or "amp" (autocast to bf16). dp: replicas; tp: ranks that share the layers'
    multiplications; zero: 3 where replicas share the parameters (FSDP2), 0 where each has its own (DDP).
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

    @property
    def mesh(self) -> dict[str, int]:
        """The sizes of the dimensions along which ranks differ, the outermost first; neighbours in the last one follow each other."""
        return {key: size for key, size in (("dp", self.dp), ("tp", self.tp)) if size > 1}

    def changed(self, changes: dict[str, Any]) -> Job:
        """The job after changes: sizes of its model, or fields of its own."""
        own = {k: v for k, v in changes.items() if k not in self.sizes}
        return replace(self, sizes={**self.sizes, **{k: v for k, v in changes.items() if k in self.sizes}}, **own)
