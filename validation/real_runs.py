"""Predict real runs from the trace of another: a small GPT on this machine's CPU, changed one setting at a time.

    pip install -e '.[torch]'
    python -m validation.real_runs --record DIR     runs everything (about 15 minutes)
    python -m validation.real_runs DIR --write      predicts, compares, writes its result file

Recording. Two processes of one thread each (gloo) hold all settings at once and go through them in turn, round after
round. A core's speed drifts by tens of percent within seconds where others use the machine too, so in every round each
target's step stands between two steps of the base, each after a step that warms the caches up. Settings of one process run on
rank 0 while rank 1 waits without using the CPU. The base is traced once a round, and its traces are kept.

Two things that a trace of one process cannot show are measured separately, without any training in two processes: what an
all-reduce of several sizes takes (written as a cluster file, link.toml, that `lumos whatif --base-cluster` takes), and by how
much a step of the base slows down while the other process computes the same without exchanging anything (they share
caches, memory and, on virtual machines, often a core; given as `--rank-slowdown`).

Scoring. Predicted: the ratio of changed to base step, each from one trace of the base alone; of the predictions from the
traces of all rounds the median. Measured: the median over the rounds of the ratio of a target's untraced step to the mean of the two
steps of the base around it. Both are periods, what the loop takes for a step: a measured step begins where the step before it
ended. Settings of one process are compared by the time that
their process spent on its core, which other programs on the machine disturb less than the time on the clock; settings of two
processes by the clock, since waiting for each other counts.
Noise: half-width of the 95 % interval of that median (order statistics), as a share of it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import comb
from pathlib import Path
from typing import Any

from msgspec import structs
from tools.document import ROOT, markdown_table
from tools.figures import write_result

from lumos.changes.changes import Changes
from lumos.changes.durations import Durations
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.graph.build import build
from lumos.trace import read

WARMUP, TRACED = 1, 3
#: glibc keeps what is freed, as caching allocators do. Else every large tensor is mapped anew and the operator that writes it
#: pays the page faults, which made twice the micro-batch take 1.9 steps where it takes 1.7 with this.
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 36), "MALLOC_TOP_PAD_": str(1 << 26)}
#: Bytes of the all-reduces that measure the link, and how often each is repeated.
LINK_BYTES, LINK_REPEATS = (1 << 10, 1 << 16, 1 << 20, 1 << 22, 1 << 24), 15
#: Under this name steps<RANK>.json holds the base's steps beside a process that computes the same.
BESIDE = "side by side"


@dataclass(frozen=True)
class Setting:
    """One job. changes: what `lumos whatif --set` is told to get it from the base."""

    name: str
    changes: tuple[str, ...] = ()
    layers: int = 4
    hidden: int = 256
    heads: int = 4
    seq: int = 64
    vocab: int = 1000
    micro_batch: int = 6
    accumulation: int = 1
    processes: int = 1
    recompute: bool = False


BASE = Setting("base")
TARGETS = (
    replace(BASE, name="layers × 2", layers=8, changes=("layers=8",)),
    replace(BASE, name="layers × 4", layers=16, changes=("layers=16",)),
    replace(BASE, name="hidden × 2", hidden=512, changes=("hidden=512", "ffn=2048")),
    replace(BASE, name="sequence × 2", seq=128, changes=("seq=128",)),
    replace(BASE, name="micro-batch × 2", micro_batch=12, changes=("micro_batch=12",)),
    replace(BASE, name="micro-batch / 2", micro_batch=3, changes=("micro_batch=3",)),
    replace(BASE, name="accumulation × 4", accumulation=4, changes=("microbatches=4",)),
    replace(BASE, name="processes 1 → 2", processes=2, changes=("dp=2",)),
    replace(BASE, name="recompute", recompute=True, changes=("recompute=full",)),
    replace(BASE, name="layers × 2, sequence × 2", layers=8, seq=128, changes=("layers=8", "seq=128")),
    replace(BASE, name="layers × 4, recompute", layers=16, recompute=True, changes=("layers=16", "recompute=full")),
    replace(BASE, name="hidden × 2, accumulation × 2", hidden=512, accumulation=2, changes=("hidden=512", "ffn=2048", "microbatches=2")),
    replace(BASE, name="processes 1 → 2, layers × 2", processes=2, layers=8, changes=("dp=2", "layers=8")),
)
SETTINGS = (BASE, *TARGETS)


#: The figure, and the most noise that may be added to it.
FIGURE, MOST_NOISE = 0.05, 0.03

#: A step: seconds, seconds of the process on a core, and how often it was taken off its core meanwhile.
Step = tuple[float, float, int]


# ---------------------------------------------------------------- recording


def record(folder: Path, rounds: int, nice: int) -> None:
    """Run all settings in turn, `rounds` times; write steps<RANK>.json and the base's traces under `folder`.

    nice: priority of the measured steps, below 0 on a machine that is shared (needs root).
    """
    import torch

    os.environ.update(ALLOCATOR)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        torch.multiprocessing.spawn(_worker, args=(str(folder), rounds, nice, str(Path(scratch) / "rendezvous")), nprocs=2)


def _worker(rank: int, folder: str, rounds: int, nice: int, store: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=Path(store).as_uri(), rank=rank, world_size=2)
    groups = {1: [dist.new_group([r]) for r in range(2)][rank], 2: dist.new_group([0, 1])}
    _measure_link(Path(folder), groups[2], rank)
    neighbour = _Job(BASE, groups[1], rank)
    jobs = {s.name: _Job(s, groups[s.processes], rank) for s in SETTINGS if rank < s.processes}
    found: dict[str, list[list[Step]]] = {name: [] for name in (*jobs, BESIDE)}  # of a target, by round: base, target, base
    around = [jobs[BASE.name]] if rank == 0 else []
    for turn in range(rounds + 1):  # the first warms up
        for s in SETTINGS:
            dist.barrier()
            if s is BASE and turn:
                with _priority(nice):
                    found[BESIDE].append(_side_by_side(neighbour, groups[2]))
                dist.barrier()
            if rank >= s.processes:
                continue
            with _priority(nice):
                if s is BASE:
                    steps = jobs[s.name].traced(str(Path(folder) / f"round{turn}"))
                else:
                    steps = [base.warm_step() for base in around]
                    dist.barrier(groups[s.processes])
                    steps.append(jobs[s.name].warm_step())
                    steps += [base.warm_step() for base in around]
                    if turn == 1:  # one trace of every target, to look a miss up
                        jobs[s.name].traced(str(Path(folder) / "targets" / _plain(s.name)))
            if turn:
                found[s.name].append(steps)
        text = json.dumps({"torch": torch.__version__, "settings": [asdict(s) for s in SETTINGS], "steps": found})
        (Path(folder) / f"steps{rank}.json").write_text(text)
    dist.destroy_process_group()


def _plain(name: str) -> str:
    """A setting's name as a folder's."""
    return re.sub(r"[^\w×]+", "-", name.replace("/", "over")).replace("×", "times")


def _side_by_side(job: _Job, group: Any) -> list[Step]:
    """Steps of the base: alone on rank 0, on both ranks at once, alone again. On rank 1 what it ran."""
    import torch.distributed as dist

    steps = []
    for alone in (True, False, True):
        dist.barrier(group)
        if not alone or job.rank == 0:
            steps.append(job.warm_step())
    return steps


def _measure_link(folder: Path, group: Any, rank: int) -> None:
    """Time all-reduces between two processes that do nothing else; rank 0 writes link.toml."""
    import torch
    import torch.distributed as dist

    seconds = {}
    for size in LINK_BYTES:
        data, times = torch.zeros(size // 4), []
        dist.all_reduce(data, group=group)
        for _ in range(LINK_REPEATS):
            dist.barrier(group)
            began = time.perf_counter()
            dist.all_reduce(data, group=group)
            times.append(time.perf_counter() - began)
        seconds[size] = statistics.median(times)
    if rank == 0:
        (folder / "link.toml").write_text(link_file(seconds))


def link_file(seconds: Mapping[int, float]) -> str:
    """The text of a cluster file under whose link an all-reduce of two ranks lasts as measured. seconds: by bytes.

    The latency is that of the smallest size, the rate the geometric mean over the sizes from 1 MiB.
    """
    from lumos.cost.cluster import load_cluster
    from lumos.cost.collective_model import collective

    host = load_cluster("host")
    rate, latency = 1e9, 1e-4
    for _ in range(50):  # both enter the model nearly in proportion: repeated division converges
        link = structs.replace(host, node=structs.replace(host.node, link_bytes_per_s=rate, link_latency_s=latency))
        off = {size: int(collective("all_reduce", 2, size, link).time) * 1e-9 / measured for size, measured in seconds.items()}
        latency /= off[min(off)]
        rate *= statistics.geometric_mean(x for size, x in off.items() if size >= 1 << 20)
    node = ("[node]", f"link_bytes_per_s = {rate:.4g}", f"link_latency_s = {latency:.4g}")
    measured = (f"# all-reduce of two processes, {size} bytes: {s:.6f} s" for size, s in seconds.items())
    return "\n".join(('based_on = "host"', "", *node, "", *measured, ""))


class _Job:
    """A setting's model and data, ready to step."""

    def __init__(self, s: Setting, group: Any, rank: int) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        gpt = _gpt(s)
        self.rank = rank
        self.model = DistributedDataParallel(gpt, process_group=group)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.batches = [torch.randint(s.vocab, (s.micro_batch, s.seq + 1)) for _ in range(s.accumulation)]
        self.recorder = _recorder()

    def step(self) -> Step:
        began, worked, switches = time.perf_counter(), time.process_time(), _switches()
        self.recorder.train_step(self.model, self.optimizer, self.batches, None)
        return time.perf_counter() - began, time.process_time() - worked, _switches() - switches

    def warm_step(self) -> Step:
        """A step whose weights and code are in the caches already."""
        self.step()
        return self.step()

    def traced(self, folder: str) -> list[Step]:
        """Steps under the profiler; the trace goes to `folder`."""
        import torch.profiler as profiler

        self.step()
        schedule = profiler.schedule(wait=0, warmup=WARMUP, active=TRACED)

        def save(p: Any) -> None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            p.export_chrome_trace(str(Path(folder) / f"rank{self.rank}.json.gz"))

        steps = []
        with profiler.profile(activities=[profiler.ProfilerActivity.CPU], schedule=schedule, record_shapes=True, on_trace_ready=save) as p:
            for _ in range(WARMUP + TRACED):
                steps.append(self.step())
                p.step()
        return steps[WARMUP:]


@contextlib.contextmanager
def _priority(nice: int) -> Iterator[None]:
    """All threads of this process at that priority, for as long as it lasts."""
    if not nice:
        yield
        return
    threads = [int(t.name) for t in Path("/proc/self/task").iterdir()]
    for thread in threads:
        os.setpriority(os.PRIO_PROCESS, thread, nice)
    try:
        yield
    finally:
        for thread in threads:
            os.setpriority(os.PRIO_PROCESS, thread, 0)


def _switches() -> int:
    """How often this process lost its core to another so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _recorder() -> Any:
    """examples/record_gpt.py: the model and the training step are its."""
    spec = importlib.util.spec_from_file_location("record_gpt", ROOT / "examples" / "record_gpt.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["record_gpt"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _gpt(s: Setting) -> Any:
    from torch.utils.checkpoint import checkpoint

    module = _recorder()
    gpt = module.GPT(s)
    if s.recompute:
        for block in gpt.blocks:
            inner = block.forward
            block.forward = lambda x, inner=inner: checkpoint(inner, x, use_reentrant=False)
    return gpt


# ---------------------------------------------------------------- scoring


@dataclass(frozen=True)
class Score:
    """One setting: changed / base, predicted and measured; noise and rounds of the measurement."""

    setting: Setting
    predicted: float
    measured: float
    noise: float
    rounds: int

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def score(folder: Path) -> list[Score]:
    """Predict every target from the base's trace, and compare."""
    steps: dict[str, list[list[Step]]] = json.loads((folder / "steps0.json").read_text())["steps"]
    predicted: dict[str, list[float]] = {t.name: [] for t in TARGETS}
    for path in sorted(folder.glob("round[1-9]*")):
        job = read(str(path / "rank0.json.gz"))
        # The base exchanges gradients with itself alone; the header speaks of both processes of the recording.
        job = replace(job, traces=tuple(replace(t, world_size=BASE.processes) for t in job.traces))
        graph = build(job)
        for target in TARGETS:
            found = answer_changes(job, graph, _changes(target, folder, slowdown(steps)))
            predicted[target.name].append(found.outcome.step_time_s / found.base.step_time_s)
    scores = []
    for target in TARGETS:
        ratios = _ratios(steps[target.name], 1 if target.processes == 1 else 0)
        scores.append(Score(target, statistics.median(predicted[target.name]), statistics.median(ratios), _noise(ratios), len(ratios)))
    return scores


def slowdown(steps: Mapping[str, Sequence[Sequence[Step]]]) -> float:
    """By how much the base slows down beside a process that computes the same, on the clock."""
    return statistics.median(_ratios(steps[BESIDE], 0))


def _changes(target: Setting, folder: Path, slower: float) -> Changes:
    """What `lumos whatif` is told."""
    settings = parse_settings(target.changes)
    if target.processes == 1:
        return Changes(settings)
    return Changes(settings, Durations(slow=((0, slower),)), base_cluster=str(folder / "link.toml"))


def _ratios(rounds: Sequence[Sequence[Step]], clock: int) -> list[float]:
    """Changed over base step, ascending; the base's is the mean of the steps before and after."""
    return sorted(2 * changed[clock] / (before[clock] + after[clock]) for before, changed, after in rounds)


def _noise(values: Sequence[float]) -> float:
    """Half-width of the 95 % interval of the median of ascending values, as a share of it (order statistics, binomial)."""
    n = len(values)
    tail, low = 0.0, 0
    while low < n // 2 and tail + comb(n, low) * 0.5**n <= 0.025:
        tail += comb(n, low) * 0.5**n
        low += 1
    low = max(low - 1, 0)
    return (values[n - 1 - low] - values[low]) / 2 / statistics.median(values)


def section(scores: Sequence[Score], folder: Path) -> str:
    """The text of its result file."""
    recorded = json.loads((folder / "steps0.json").read_text())
    errors = [abs(s.error) for s in scores]
    held = sum(abs(s.error) <= FIGURE + min(s.noise, MOST_NOISE) for s in scores)
    rows = [
        (s.setting.name, ", ".join(s.setting.changes), f"{s.measured:.3f}", f"{s.predicted:.3f}", f"{s.error:+.1%}", f"± {s.noise:.1%}")
        for s in scores
    ]
    return "\n".join(
        [
            f"A GPT of {BASE.layers} layers (hidden {BASE.hidden}, sequence {BASE.seq}, {BASE.micro_batch} sequences, one process of one thread,",  # noqa: E501
            f"torch {recorded['torch']}); every change predicted from a trace of it alone, then run. Steps as multiples",
            f"of the base's step; {scores[0].rounds} interleaved rounds on a machine shared with other programs; predicted:",
            "the median over the rounds' traces. For two processes the link was measured apart (all-reduces without training),",
            "and so was by how much the base slows down beside a process that computes the same without exchanging:",
            f"× {slowdown(recorded['steps']):.2f}, given as `--rank-slowdown`. The recorder keeps freed memory mapped: in recordings that",
            "did not, twice the micro-batch took 1.9 steps (predicted: 1.7).",
            "",
            f"Mean absolute error {statistics.mean(errors):.1%}, worst {max(errors):.1%} (figure: ≤ {FIGURE:.0%} plus at most {MOST_NOISE:.0%} of noise;"  # noqa: E501
            f" {held} of {len(scores)} within it).",
            "",
            markdown_table(("changed", "`--set`", "measured", "predicted", "error", "noise"), rows),
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--record", action="store_true", help="run the settings first")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--nice", type=int, default=0, help="priority of the measured steps, below 0 on a shared machine")
    parser.add_argument("--write", action="store_true", help="write the result file")
    args = parser.parse_args()
    if args.record:
        record(args.folder, args.rounds, args.nice)
    text = section(score(args.folder), args.folder)
    print(text)
    if args.write:
        write_result("validation/results/whatif-real.md", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
