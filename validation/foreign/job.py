"""What a training job is, apart from the code that runs it: no PyTorch is needed to read it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Job:
    """A job of a family of models. sizes: what the model function takes. optimizer: how it is built from the parameters.

    precision: "fp32", "tf32", "bf16" (the model's own type), "amp" (autocast to bf16) or "tf32 amp" (the same of a script that lets
    what stays in fp32 multiply in tf32). dp: replicas; tp: ranks that share the layers'
    multiplications; zero: 3 where replicas share the parameters (FSDP2), 2 where they keep what a forward pass has gathered (FSDP2 without
    `reshard_after_forward`), 1 where each updates a part of them (`ZeroRedundancyOptimizer`), 0 where each has its own (DDP). pp: stages of
    a pipeline of `torch.distributed.pipelining`, in the order `schedule`; vpp: chunks of each, of which several run interleaved. chunked:
    the script of a pipeline, which also with one stage has its model as a chunk. ep: of the replicas, those that have a part of the experts
    each (`experts`). cp: ranks that share the sequences of a replica (`context`), whose keys and values go around as `rotation` says.
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
    chunked: bool = False
    ep: int = 1
    cp: int = 1
    rotation: str = "allgather"

    @property
    def mesh(self) -> dict[str, int]:
        """The sizes of the dimensions along which ranks differ, the outermost first; neighbours in the last one follow each other."""
        sizes = ("pp", self.pp), ("dp", self.dp // self.ep), ("ep", self.ep), ("cp", self.cp), ("tp", self.tp)
        return {key: size for key, size in sizes if size > 1}

    @property
    def own_sizes(self) -> dict[str, int]:
        """The sizes of what one rank runs: of a sequence that ranks share it has its part."""
        return {key: size // self.cp if key == "seq" else size for key, size in self.sizes.items()}

    @property
    def ranks_of_stage(self) -> int:
        """The ranks that run the same operators, one after the other."""
        return 1 if self.zero == 1 or self.cp > 1 else self.dp * self.tp

    def changed(self, changes: dict[str, Any]) -> Job:
        """The job after changes: sizes of its model, or fields of its own."""
        own = {k: v for k, v in changes.items() if k not in self.sizes}
        return replace(self, sizes={**self.sizes, **{k: v for k, v in changes.items() if k in self.sizes}}, **own)
