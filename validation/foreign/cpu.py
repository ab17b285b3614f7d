"""The same on a real machine: other people's models trained on the CPU, before and after a change.

    python -m validation.foreign.cpu --record DIR [--rounds N]     needs torch and transformers; about a minute a round
    python -m validation.foreign.cpu DIR [--write]             predicts, compares; writes its result file

One process of one thread holds a base and its targets at once. In every round each target's step stands between two of the base, each
after one that warms the caches up, since a core's speed drifts by tens of percent within seconds on a machine that is shared. What is
measured is the time of the process on its core. The base is traced once a round, and a prediction is made from each of those traces.

Predicted: the ratio of changed to base step, the median over the traces. Measured: the median over the rounds of a target's step over the
mean of the two around it. Noise: half of the range of that ratio without its outer quarters, as a share of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.document import markdown_table
from tools.figures import write_result
from validation.foreign.job import Job
from validation.foreign.pairs import changed, folder_of

from lumos.changes.changes import Changes
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.errors import LumosError
from lumos.graph.build import build
from lumos.trace import read

#: Errors to reach, as fractions: the median, and the worst beyond its noise.
MEDIAN, WORST = 0.04, 0.12
TRACED = 3
#: glibc keeps what is freed, as the allocators of devices do; else large tensors are mapped anew, and their first writer pays for it.
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 36), "MALLOC_TOP_PAD_": str(1 << 26)}


def _transformer(family: str, **more: int) -> Job:
    sizes = {"layers": 2, "hidden": 192, "heads": 3, "ffn": 768, "micro_batch": 4, "seq": 96, "vocabulary": 1000, **more}
    return Job(family, sizes, clip=False, fused=False)


JOBS: dict[str, tuple[Job, tuple[str, ...]]] = {
    "GPT-2": (_transformer("gpt2"), ("layers=4", "micro_batch=8", "seq=192", "microbatches=2")),
    "Llama": (_transformer("llama", kv_heads=3), ("layers=4", "micro_batch=8", "recompute=full")),
    "BERT": (_transformer("bert"), ("layers=4", "micro_batch=2", "seq=192")),
    "T5": (_transformer("t5"), ("layers=4", "micro_batch=8")),
    "nn.Transformer": (_transformer("translator"), ("layers=4", "micro_batch=8", "microbatches=2")),
    "ViT": (
        Job("vit", {"layers": 2, "hidden": 192, "heads": 3, "ffn": 768, "micro_batch": 4}, clip=False, fused=False),
        ("layers=4", "micro_batch=8"),
    ),
    "ResNet-50": (Job("resnet", {"micro_batch": 2, "image": 96}, clip=False, fused=False), ("micro_batch=4", "microbatches=2")),
    "LSTM": (
        Job("lstm", {"layers": 2, "hidden": 256, "micro_batch": 8, "seq": 24, "vocabulary": 1000}, clip=False, fused=False),
        ("micro_batch=16", "layers=4", "seq=48"),
    ),
    "DLRM": (
        Job("dlrm", {"tables": 4, "width": 32, "width_of_towers": 512, "micro_batch": 512}, clip=False, fused=False),
        ("micro_batch=1024", "microbatches=2"),
    ),
}


def record(folder: Path, rounds: int, words: Sequence[str] = ()) -> None:
    """Run all jobs in turn, `rounds` times each; write DIR/<job>/round<N>/rank0.json.gz and DIR/seconds.json."""
    if any(os.environ.get(key) != value for key, value in ALLOCATOR.items()):  # read when a process starts: start anew
        os.execve(sys.executable, [sys.executable, "-m", "validation.foreign.cpu", *sys.argv[1:]], {**os.environ, **ALLOCATOR})
    warnings.filterwarnings("ignore")
    import torch

    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "seconds.json"
    seconds = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name, (base, changes) in JOBS.items():
        if name in seconds or (words and not any(word in name for word in words)):
            continue
        began = time.perf_counter()
        seconds[name] = _record(base, changes, folder / folder_of(name), rounds)
        path.write_text(json.dumps(seconds, indent=1), encoding="utf-8")
        print(name, f"{time.perf_counter() - began:.0f} s", {c: round(_ratio(r), 3) for c, r in seconds[name].items()}, file=sys.stderr)


def _record(base: Job, changes: Sequence[str], folder: Path, rounds: int) -> dict[str, list[list[float]]]:
    """The seconds of base, target and base of every round, by change."""
    from validation.foreign.models import MODELS
    from validation.foreign.training import step_of

    def ready(job: Job) -> Callable[[], None]:
        return step_of(job, MODELS[job.family](**job.sizes))

    steps = {change: ready(changed(base, change)) for change in changes}
    plain = ready(base)
    out: dict[str, list[list[float]]] = {change: [] for change in changes}
    for turn in range(rounds + 1):  # the first warms up
        if turn:
            _traced(plain, folder / f"round{turn}")
        for change, step in steps.items():
            taken = [_timed(each) for each in (plain, step, plain)]
            if turn:
                out[change].append(taken)
    return out


def _timed(step: Callable[[], None]) -> float:
    """Seconds on a core of a step, after one that warms the caches up."""
    step()
    began = time.process_time()
    step()
    return time.process_time() - began


def _traced(step: Callable[[], None], folder: Path) -> None:
    """Some steps under the profiler, after one that warms it up."""
    import torch.profiler as profiler

    folder.mkdir(parents=True, exist_ok=True)

    def save(recorded: Any) -> None:
        recorded.export_chrome_trace(str(folder / "rank0.json.gz"))

    schedule = profiler.schedule(wait=0, warmup=1, active=TRACED)
    with profiler.profile(
        activities=[profiler.ProfilerActivity.CPU], schedule=schedule, record_shapes=True, on_trace_ready=save
    ) as recording:
        for _ in range(1 + TRACED):
            step()
            recording.step()


@dataclass(frozen=True)
class Score:
    """One change: changed over base step, measured and predicted (None where it was not answered in any round, for the reason `why`).

    held_up: the traced step of the base over its time on a core; more than one where other programs ran meanwhile.
    """

    job: str
    change: str
    measured: float
    noise: float
    predicted: float | None
    held_up: float
    why: str = ""

    @property
    def error(self) -> float | None:
        return None if self.predicted is None else self.predicted / self.measured - 1


def score(folder: Path) -> list[Score]:
    """Every change that was recorded in a folder."""
    seconds: dict[str, dict[str, list[list[float]]]] = json.loads((folder / "seconds.json").read_text(encoding="utf-8"))
    out = []
    for name, changes in seconds.items():
        found: dict[str, list[float]] = {change: [] for change in changes}
        why: dict[str, str] = {}
        traced: list[float] = []
        for path in sorted((folder / folder_of(name)).glob("round*")):
            job = read(str(path))
            graph = build(job)
            for change in changes:
                try:
                    answer = answer_changes(job, graph, Changes(parse_settings(change.split(","))))
                    found[change].append(answer.outcome.step_time_s / answer.base.step_time_s)
                    traced.append(answer.base.step_time_s)
                except LumosError as error:
                    why[change] = str(error).replace(str(path), "").strip()
        on_core = statistics.median(step for rounds in changes.values() for before, _, after in rounds for step in (before, after))
        held_up = statistics.median(traced) / on_core if traced else 1.0
        for change, rounds in changes.items():
            predicted = statistics.median(found[change]) if found[change] else None
            out.append(Score(name, change, _ratio(rounds), _noise(rounds), predicted, held_up, why.get(change, "")))
    return out


def _ratios(rounds: Sequence[Sequence[float]]) -> list[float]:
    return sorted(2 * target / (before + after) for before, target, after in rounds)


def _ratio(rounds: Sequence[Sequence[float]]) -> float:
    return statistics.median(_ratios(rounds))


def _noise(rounds: Sequence[Sequence[float]]) -> float:
    """Half of the range of the middle half of the rounds, as a share of their median."""
    ratios = _ratios(rounds)
    outer = len(ratios) // 4
    return (ratios[-1 - outer] - ratios[outer]) / 2 / statistics.median(ratios)


def section(scores: Sequence[Score]) -> str:
    """The text of its result file."""
    errors = sorted(abs(s.error) for s in scores if s.error is not None)
    within = sum(abs(s.error) <= WORST + s.noise for s in scores if s.error is not None)
    rows = [
        (
            s.job,
            s.change,
            f"{s.measured:.3f}",
            f"± {s.noise:.1%}",
            *(("not answered", "") if s.predicted is None or s.error is None else (f"{s.predicted:.3f}", f"{s.error:+.1%}")),
        )
        for s in scores
    ]
    unanswered = [f"- {s.job}, {s.change}: {s.why}" for s in scores if s.predicted is None]
    figures = f"Median absolute error {statistics.median(errors):.1%} (to reach: {MEDIAN:.0%}), worst {errors[-1]:.1%};" if errors else ""
    lines = [
        "Written by `python -m validation.foreign.cpu DIR --write`. Models of `transformers` and `torch.nn` trained for real by one",
        "process of one thread. Steps as multiples of the base's, in time on a core; in every round a target's step stands between two of",
        "the base's.",
        "",
        f"{len({s.job for s in scores})} families, {len(errors)} of {len(scores)} changes answered. {figures}"
        f" {within} within {WORST:.0%} and their noise.",
        f"Other programs held the traced steps up: they took {min(s.held_up for s in scores):.1f}"
        f" to {max(s.held_up for s in scores):.1f} times their time on a core.",
        "",
        markdown_table(("model", "change", "measured", "noise", "predicted", "error"), rows),
        "",
        *(["Not answered:", "", *unanswered] if unanswered else []),
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("words", nargs="*", help="only models whose name contains one of them")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--write", action="store_true", help="write the result file")
    args = parser.parse_intermixed_args()
    if args.record:
        record(args.folder, args.rounds, args.words)
        return 0
    text = section(score(args.folder))
    print(text)
    if args.write:
        write_result("validation/results/whatif-foreign-cpu.md", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
