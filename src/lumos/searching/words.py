"""The words of `lumos.search`, typed: what is searched and how. They load nothing, so that the help of the verb is there at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, TypeAlias, TypedDict

from lumos.arguments import Term

#: A value that a choice takes, or several.
SweepSizes: TypeAlias = int | Sequence[int]
Words: TypeAlias = str | Sequence[str]


class SpaceWords(TypedDict, total=False):
    """The values that each choice of a plan may take. A choice that is left out may take any that the search allows."""

    tp: SweepSizes
    pp: SweepSizes
    vpp: SweepSizes
    cp: SweepSizes
    ep: SweepSizes
    dp: SweepSizes
    zero: SweepSizes
    micro_batch: SweepSizes
    recompute: Words
    schedule: Words
    sequence_parallel: bool


class SearchWords(SpaceWords, total=False):
    """What is searched and how; with files of a prediction, cluster and sizes other than theirs."""

    model: str
    cluster: str
    gpus: int
    global_batch: int
    seq: int
    precision: str
    framework: str
    switches: Mapping[str, object]
    refine: Annotated[int, Term("Plans that are simulated in full (10).", least=1)]
    reserve_gb: Annotated[float, Term("Memory of each device that plans may not use, GB.", least=0)]
    tokens: Annotated[float, Term("Tokens of the whole training run: its days and dollars.", least=1)]
    price: Annotated[float, Term("Dollars of a device and hour, in place of a published price.", least=0)]
    engine: Annotated[str, Term("local, or ray (a cluster).")]
    ray_address: Annotated[str, Term("The address of a running Ray cluster.")]
    progress: Annotated[
        Callable[[str, int, int], None], Term("Called with the stage of the search, and how much of the stage is done and in all.")
    ]
