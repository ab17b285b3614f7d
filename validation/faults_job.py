"""The job that `validation.faults` records: a small MLP under DistributedDataParallel over gloo, with one cause of delay at a time.

A layer is a real multiplication and a paced operator, which takes a set time for each row without a core, as a device's kernel does: so
three processes fit on two cores. Three is the smallest job in which one rank has a majority of peers against it. All cases are run one
after the other by the same processes, in every round the plain job beside each cause, so that the load of the machine meets them alike.
"""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import lumos.collect

PROCESSES, LAYERS, WIDTH, ROWS = 3, 4, 128, 64
#: Seconds a row in the paced operator, forward; backward takes twice as long.
PACE_S = 50e-6
STEPS, WARM_UP = 6, 2
#: The rank with the cause, and the recorded step (from 0) that an outlier hits.
RANK, HIT = 1, 3


class Case(NamedTuple):
    """A cause and how much of it.

    The amount is multiplications ("extra work"), calls ("tiny operators", "many exchanges"), rows ("uneven tokens", of `ROWS`), megabytes
    ("large exchange"), a factor ("slow process"), operators to compile again ("recompilation"), else seconds. The exchanges are of all
    ranks, the rest is of rank `RANK`.
    """

    cause: str
    amount: float


class Paced(torch.autograd.Function):
    """The identity, which takes `seconds` forward and twice that backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(2 * ctx.seconds)
        return gradients[0], None


class Layer(nn.Module):
    """A multiplication, its paced operator, and where a host is slow, Python before them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.pace, self.python_s = PACE_S, 0.0

    def forward(self, x: Tensor) -> Tensor:
        _busy(self.python_s)
        y: Tensor = Paced.apply(torch.relu(self.linear(x)), self.pace * len(x))  # type: ignore[no-untyped-call]
        return y


class Rows(torch.utils.data.Dataset[Tensor]):
    """Batches of `rows` rows, each read in `seconds`."""

    def __init__(self, rows: int, seconds: float) -> None:
        self.rows, self.seconds = rows, seconds

    def __len__(self) -> int:
        return STEPS + WARM_UP

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self.seconds)
        return torch.ones(self.rows, WIDTH)


def _chain(x: Tensor, length: int) -> Tensor:
    """So many operators, to be compiled."""
    for _ in range(length):
        x = x + 1
    return x


def _busy(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while seconds and time.perf_counter() < until:
        pass


class Job:
    """One rank of the job."""

    def __init__(self, rank: int) -> None:
        torch.manual_seed(0)
        self.rank = rank
        self.layers = [Layer() for _ in range(LAYERS)]
        self.model = DistributedDataParallel(nn.Sequential(*self.layers))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-6)
        #: Compiled without a compiler of machine code: what a new shape costs is that Python is traced again.
        self.compiled = torch.compile(_chain, backend="eager", dynamic=False)
        self.rows = 8
        self.square, self.small = torch.ones(1, 512, 512), torch.ones(8)

    def run(self, case: Case, out: Path | None) -> list[float]:
        """Train with the cause, recorded into `out`. The seconds of each recorded step but the first."""
        here = self.rank == RANK
        amount = {case.cause: case.amount} if here else {}
        for layer in self.layers:
            layer.pace = PACE_S * amount.get("slow process", 1)
            layer.python_s = amount.get("slow host", 0) / LAYERS
        data = Rows(round(amount.get("uneven tokens", ROWS)), amount.get("loader stall", 0))
        everywhere = {case.cause: case.amount}
        ends = []
        self.rows = 8
        torch._dynamo.reset()  # it gives up on a function that it has compiled for eight shapes
        dist.barrier()
        with lumos.collect.profile(str(out), steps=STEPS, warmup=WARM_UP, wait=0) if out else nullcontext() as recording:
            for index, batch in enumerate(torch.utils.data.DataLoader(data, batch_size=None)):
                self._step(batch, amount, everywhere, index == WARM_UP + HIT)
                ends.append(time.perf_counter())
                if recording:
                    recording.step()
        return [b - a for a, b in zip(ends[WARM_UP:], ends[WARM_UP + 1 :], strict=False)]

    def _step(self, batch: Tensor, amount: dict[str, float], everywhere: dict[str, float], hit: bool) -> None:
        time.sleep(amount.get("late rows", 0))
        self.optimizer.zero_grad()
        if "recompilation" in amount:
            self.rows += hit
            self.compiled(torch.ones(self.rows), int(amount["recompilation"]))
        loss = self.model(batch).sum()
        for _ in range(int(amount.get("extra work", 0))):
            torch.bmm(self.square, self.square)
        for _ in range(int(amount.get("tiny operators", 0))):
            self.small.sin_()
        time.sleep(amount.get("sleep", 0))
        if hit:
            time.sleep(amount.get("outlier", 0))
        loss.backward()
        with torch.profiler.record_function("norms") if {"large exchange", "many exchanges"} & everywhere.keys() else nullcontext():
            if "large exchange" in everywhere:
                dist.all_reduce(torch.zeros(int(everywhere["large exchange"] * 2**18)))
            for _ in range(int(everywhere.get("many exchanges", 0))):
                dist.all_reduce(self.small)
        self.optimizer.step()


def run(rank: int, store: str, folder: str, cases: tuple[Case, ...], rounds: int) -> None:
    """One process: every case in every round, the plain job before each; rank 0 writes the seconds of all steps."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=Path(store).as_uri(), rank=rank, world_size=PROCESSES)
    job, plain = Job(rank), Case("plain", 0)
    job.run(plain, None)
    seconds: list[dict[str, Any]] = []
    for turn in range(rounds):
        for number, case in enumerate(cases):
            taken = {}
            for which, each in (("plain", plain), ("with", case)):
                taken[which] = job.run(each, Path(folder) / f"{number}-{turn}-{which}")
            seconds.append({"case": number, "round": turn, **taken})
            if rank == 0:
                print(turn, case, {k: round(1e3 * sorted(v)[len(v) // 2], 1) for k, v in taken.items()}, flush=True)
    if rank == 0:
        (Path(folder) / "seconds.json").write_text(json.dumps(seconds), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
