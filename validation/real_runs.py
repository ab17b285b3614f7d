"""Predict real runs from the trace of another: a small GPT on this machine's CPU, changed one setting at a time.

    pip install -e '.[torch]'
    MALLOC_MMAP_THRESHOLD_=65536 python -m validation.real_runs --record DIR      runs everything (about 15 minutes)
    python -m validation.real_runs DIR                                            predicts, compares, writes docs/accuracy.md

Recording. Two processes of one thread each (gloo) hold all settings at once and go through them in turn, round after
round, so that whatever else the machine does disturbs all of them alike. In every round each setting runs a few steps
untraced, then a few under the profiler. Settings of one process run on rank 0 while rank 1 waits without using the CPU.
The base's trace of every round is kept.

Scoring. The prediction is made from one round's trace of the base: the round whose traced step is the median one. It is
compared with the median over the rounds of the changed setting's traced steps, because what a trace shows is a traced
run. The second comparison leaves the profiler out: the predicted ratio of changed to base, against the ratio of the
untraced medians. Noise: half-width of the 95 % interval of the median over the rounds (order statistics), as a share.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tools.document import ROOT

UNTRACED, WARMUP, TRACED = 2, 1, 2


@dataclass(frozen=True)
class Setting:
    """One job. changes: what `lumos whatif --set` is told to get it from the base."""

    name: str
    changes: tuple[str, ...] = ()
    layers: int = 2
    hidden: int = 256
    heads: int = 4
    seq: int = 96
    vocab: int = 1000
    micro_batch: int = 6
    accumulation: int = 1
    processes: int = 1
    recompute: bool = False


BASE = Setting("base")
TARGETS = (
    replace(BASE, name="layers × 2", layers=4, changes=("layers=4",)),
    replace(BASE, name="layers × 4", layers=8, changes=("layers=8",)),
    replace(BASE, name="hidden × 2", hidden=512, changes=("hidden=512", "ffn=2048")),
    replace(BASE, name="sequence × 2", seq=192, changes=("seq=192",)),
    replace(BASE, name="micro-batch × 2", micro_batch=12, changes=("micro_batch=12",)),
    replace(BASE, name="micro-batch / 2", micro_batch=3, changes=("micro_batch=3",)),
    replace(BASE, name="accumulation × 4", accumulation=4, changes=("microbatches=4",)),
    replace(BASE, name="processes 1 → 2", processes=2, changes=("dp=2",)),
    replace(BASE, name="recompute", recompute=True, changes=("recompute=full",)),
    replace(BASE, name="layers × 2, sequence × 2", layers=4, seq=192, changes=("layers=4", "seq=192")),
    replace(BASE, name="layers × 4, recompute", layers=8, recompute=True, changes=("layers=8", "recompute=full")),
    replace(BASE, name="hidden × 2, accumulation × 2", hidden=512, accumulation=2, changes=("hidden=512", "ffn=2048", "microbatches=2")),
    replace(BASE, name="processes 1 → 2, layers × 2", processes=2, layers=4, changes=("dp=2", "layers=4")),
)
SETTINGS = (BASE, *TARGETS)


#: A step: seconds, seconds of the process on a core, and how often it was taken off its core meanwhile.
Step = tuple[float, float, int]


# ---------------------------------------------------------------- recording


def record(folder: Path, rounds: int, nice: int) -> None:
    """Run all settings in turn, `rounds` times; write steps<RANK>.json and the base's traces under `folder`.

    nice: priority of the measured steps, below 0 on a machine that is shared (needs root).
    """
    import torch

    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        sys.exit("set MALLOC_MMAP_THRESHOLD_=65536: without it the profiler's small blocks fragment the heap and slow traced steps")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        torch.multiprocessing.spawn(_worker, args=(str(folder), rounds, nice, str(Path(scratch) / "rendezvous")), nprocs=2)


def _worker(rank: int, folder: str, rounds: int, nice: int, store: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=Path(store).as_uri(), rank=rank, world_size=2)
    groups = {1: dist.new_group([0]), 2: dist.new_group([0, 1])}
    jobs = {s.name: _Job(s, groups[s.processes]) for s in SETTINGS if rank < s.processes}
    found: dict[str, dict[str, list[list[Step]]]] = {s.name: {"untraced": [], "traced": []} for s in SETTINGS}
    for turn in range(rounds + 1):  # the first warms up
        for s in SETTINGS:
            dist.barrier()
            if rank >= s.processes:
                continue
            keep = str(Path(folder) / f"round{turn}") if s is BASE and turn else ""
            with _priority(nice):
                untraced, traced = jobs[s.name].run(keep)
            if turn:
                found[s.name]["untraced"].append(untraced)
                found[s.name]["traced"].append(traced)
        text = json.dumps({"torch": torch.__version__, "settings": [asdict(s) for s in SETTINGS], "steps": found})
        (Path(folder) / f"steps{rank}.json").write_text(text)
    dist.destroy_process_group()


class _Job:
    """A setting's model and data, ready to step."""

    def __init__(self, s: Setting, group: Any) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        gpt = _gpt(s)
        self.model = DistributedDataParallel(gpt, process_group=group)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.batches = [torch.randint(s.vocab, (s.micro_batch, s.seq + 1)) for _ in range(s.accumulation)]
        self.recorder = _recorder()

    def step(self) -> Step:
        began, worked, switches = time.perf_counter(), time.process_time(), _switches()
        self.recorder.train_step(self.model, self.optimizer, self.batches, None)
        return time.perf_counter() - began, time.process_time() - worked, _switches() - switches

    def run(self, keep: str) -> tuple[list[Step], list[Step]]:
        """The untraced and the traced steps; the trace goes to `keep` unless that is empty."""
        import torch.profiler as profiler

        self.step()
        untraced = [self.step() for _ in range(UNTRACED)]
        schedule = profiler.schedule(wait=0, warmup=WARMUP, active=TRACED)

        def save(p: Any) -> None:
            if keep:
                Path(keep).mkdir(parents=True, exist_ok=True)
                p.export_chrome_trace(str(Path(keep) / "rank0.json.gz"))

        traced = []
        with profiler.profile(activities=[profiler.ProfilerActivity.CPU], schedule=schedule, record_shapes=True, on_trace_ready=save) as p:
            for _ in range(WARMUP + TRACED):
                traced.append(self.step())
                p.step()
        return untraced, traced[WARMUP:]


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--nice", type=int, default=0, help="priority of the measured steps, below 0 on a shared machine")
    args = parser.parse_args()
    if args.record:
        record(args.folder, args.rounds, args.nice)
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
