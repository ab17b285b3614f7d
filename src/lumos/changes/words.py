"""The words of `lumos.whatif`, typed: what a user says of a change. They load nothing, so that the help of verbs is there at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypedDict

from lumos.arguments import Term


class SettingWords(TypedDict, total=False):
    """The settings of `lumos whatif --set`. `changes.settings` says what each means and which jobs can follow it."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    vocab: int
    seq: int
    micro_batch: int
    microbatches: int
    dp: int
    tp: int
    pp: int
    vpp: int
    first_layers: int
    last_layers: int
    cp: int
    ep: int
    zero: int
    shard: int
    schedule: str
    precision: str
    recompute: str
    cuda_graphs: bool | Literal["on", "off"]


class ChangeWords(SettingWords, total=False):
    """Everything that can be changed."""

    scale: Annotated[
        Mapping[str, float | Literal["peers", "steps", "usual"]],
        Term("Multiply the time of tasks whose name matches; peers, steps, usual: give them that of equal work.", shown="GLOB=F"),
    ]
    drop: Annotated[str | Sequence[str], Term("Leave tasks out, with their launches.", shown="GLOB")]
    fuse: Annotated[str | Sequence[str], Term("Make one kernel of neighbouring kernels.", shown="GLOB")]
    rank_slowdown: Annotated[Mapping[int, float], Term("Multiply all work of a rank.", shown="RANK=F")]
    cluster: Annotated[str, Term("Run it on this cluster instead: a name, or a .toml file.", shown="CLUSTER")]
    base_cluster: Annotated[str, Term("Where the job was recorded, if the trace does not say.", shown="CLUSTER")]
    network: Annotated[
        Mapping[Literal["bandwidth", "latency"], float], Term("Change the network: bandwidth=x2,latency=x0.5.", shown="KEY=xF")
    ]
    repeat: Annotated[bool, Term("Compare what a loop of the step takes, also where the trace has one step only.")]
    host_factor: Annotated[float, Term("How much longer the CPU's work takes on another cluster.", shown="F")]
    base: Annotated[Mapping[str, int | str], Term("Say what was recorded, where Lumos asks or cannot see it.", shown="KEY=VALUE")]
