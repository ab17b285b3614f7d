"""The closed loop of what-if: a job A is predicted and written as profiler files; from those files alone `whatif` changes its
plan; the result is compared with the prediction of the changed job B.

    python -m validation.closed_loop [--jobs NAME,…]        writes its result file

Without the words by which the files of a prediction say what was predicted, they are read as recordings, so the changes are made
on measured blocks. It is the one test of pipelines, and of many ranks, against a truth that is known exactly: that blocks are
told apart, that measured times carry over, that layouts are rearranged rightly, and that jitter and clocks do no harm. The files
have no axes of their sizes, so sizes and ranks that share them are refused. `slower` repeats the first job with kernels, links
and host slower than the cost models say (as on a real machine), by factors that `whatif` does not know and must find in the
files.

Jitter lengthens A's step: where p ranks meet, the slowest of them counts, and of sums of n tasks that each vary by s that is
m(p) · s / √n more than the mean (m = 0.56, 1.03, 1.42 for 2, 4, 8 ranks; order statistics of the normal distribution).
`whatif` keeps that share, as the changed job would meet on the same machine; the outright prediction of B has none. So B is
given twice: as predicted, and expanded to all of its ranks with the same jitter (another seed) and simulated.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
from tools.document import markdown_table
from tools.figures import write_result

from lumos.blocks.coefficients import shipped_step_coefficients
from lumos.blocks.price import Pricer
from lumos.changes.changes import Changes
from lumos.changes.predicted import with_settings
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.errors import LumosError
from lumos.graph.build import build
from lumos.plan.configuration import Settings, job_from
from lumos.prediction.predict import Prediction, predict_job
from lumos.prediction.ranks import expand
from lumos.reports.export.kineto import write_kineto
from lumos.simulation import simulate
from lumos.trace import read
from lumos.trace.table import Job

JITTER, CLOCKS_NS = 0.01, 50_000
FIGURE = 0.01


@dataclass(frozen=True)
class Loop:
    """A job and the changes made to it. factors: of the step's coefficients, unknown to the what-if."""

    name: str
    settings: Settings
    changes: tuple[str, ...]
    factors: dict[str, float] = field(default_factory=dict)


def _job(model: str, gpus: int, batch: int, seq: int, **plan: int | str) -> Settings:
    return Settings(model=model, cluster="h100", gpus=gpus, global_batch=batch, seq=seq, **plan)  # type: ignore[arg-type]


GPT = _job("gpt3-6.7b", 8, 16, 2048, tp=2, pp=2)
COMMON = ("tp=4", "tp=1", "pp=4", "pp=1", "dp=4", "cp=2", "microbatches=16", "micro_batch=2", "seq=4096", "recompute=full")
MORE = ("vpp=2", "layers=64", "hidden=8192,ffn=32768", "schedule=gpipe", "zero=0", "precision=fp8", "cuda_graphs=on")
LOOPS = (
    Loop("GPT-3 6.7B, 8 ranks (tp 2, pp 2, dp 2)", GPT, (*COMMON, *MORE)),
    Loop(
        "slower: the same, kernels × 1.2, links × 1.4, host × 1.5",
        GPT,
        COMMON,
        {"gemm": 1.2, "attention": 1.2, "traffic": 1.2, "collective": 1.4, "host": 1.5},
    ),
    Loop(
        "Llama 2 7B, 16 ranks (tp 2, cp 2, pp 2, dp 2)",
        _job("llama2-7b", 16, 16, 8192, tp=2, cp=2, pp=2),
        ("cp=1", "cp=4", "tp=4", "pp=4", "dp=4", "layers=16", "seq=16384"),
    ),
    Loop("Llama 3 8B, 8 ranks (dp 8)", _job("llama3-8b", 8, 32, 4096), ("tp=2", "pp=2", "dp=16", "layers=16", "micro_batch=2")),
    Loop(
        "Llama 3 8B, 8 ranks, FSDP2 (dp 8, zero 3)",
        _job("llama3-8b", 8, 16, 4096, framework="fsdp2", zero=3),
        ("recompute=selective", "recompute=full", "dp=16", "tp=2", "precision=fp8"),
    ),
    Loop(
        "GPT-3 1.3B, 8 ranks, Megatron 2021, fp16, selective recomputation (tp 4, dp 2)",
        _job("gpt3-1.3b", 8, 16, 2048, tp=4, framework="megatron-2021", precision="fp16", recompute="selective"),
        ("recompute=none", "recompute=full", "tp=2", "pp=2", "precision=bf16"),
    ),
    Loop(
        "Mixtral 8x7B, 16 ranks (tp 2, ep 4, pp 2, dp 4)",
        _job("mixtral-8x7b", 16, 32, 2048, tp=2, ep=4, pp=2),
        ("ep=2", "ep=1", "tp=4", "pp=4", "dp=8", "layers=16", "seq=4096"),
    ),
    Loop(
        "GPT-3 13B, 64 ranks (tp 4, pp 4, vpp 2, dp 4)",
        _job("gpt3-13b", 64, 64, 2048, tp=4, pp=4, vpp=2),
        ("vpp=1", "vpp=5", "pp=2", "tp=8", "dp=8", "microbatches=32"),
    ),
)


@dataclass(frozen=True)
class Score:
    """One change of one job, seconds."""

    job: str
    change: str
    predicted_s: float
    truth_s: float
    jittered_s: float
    low_s: float
    high_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.truth_s - 1

    @property
    def error_with_jitter(self) -> float:
        return self.predicted_s / self.jittered_s - 1


def run(loop: Loop, refused: list[str]) -> list[Score]:
    """Write the job, change it, compare. refused: gets the changes that were not answered."""
    job = job_from(loop.settings)
    coefficients = shipped_step_coefficients()
    changed = msgspec.structs.replace(coefficients, **{key: getattr(coefficients, key) * f for key, f in loop.factors.items()})
    base = predict_job(job, Pricer(job.cluster, changed), coarse=False)
    ranks = "all" if job.plan.devices <= 16 else "stages"
    with tempfile.TemporaryDirectory() as folder:
        write_kineto(folder, base, ranks=ranks, jitter=JITTER, clock_offset_ns=CLOCKS_NS, seed=1)
        traces = _like_recorded(read(folder))
    graph = build(traces)
    scores = []
    for change in loop.changes:
        settings = parse_settings(change.split(","))
        try:
            found = answer_changes(traces, graph, Changes(settings)).outcome
        except LumosError as error:
            print(f"{loop.name}: {change}: refused: {error}", file=sys.stderr)
            refused.append(f"{loop.name}: `{change}`")
            continue
        other = with_settings(job, settings, None)
        truth = predict_job(other, Pricer(other.cluster, changed), coarse=False)
        times = truth.time.time_s, jittered(truth)
        scores.append(Score(loop.name, change, found.step_time_s, *times, found.step_time_low_s, found.step_time_high_s))
        print(f"{loop.name}: {change}: {scores[-1].error:+.2%}, {scores[-1].error_with_jitter:+.2%}", file=sys.stderr)
    return scores


def _like_recorded(job: Job) -> Job:
    """The job of which nothing says what was predicted."""
    known = ({"origin": "modelled", "sizes": trace.metadata["lumos"]["sizes"]} for trace in job.traces)
    return replace(job, traces=tuple(replace(t, metadata={**t.metadata, "lumos": k}) for t, k in zip(job.traces, known, strict=True)))


def jittered(truth: Prediction) -> float:
    """The step of a prediction, s, with all of its ranks and with jitter."""
    graph = expand(truth.timeline.graph, truth.job.plan, truth.collectives, JITTER, seed=2).graph
    timeline = simulate(graph)
    plain = truth.timeline.end.max() - truth.timeline.start.min()
    return truth.time.time_s * float(timeline.end.max() - timeline.start.min()) / float(plain)


def section(scores: Sequence[Score], refused: Sequence[str]) -> str:
    """The text of the result file."""
    errors = [abs(s.error) for s in scores]
    with_jitter = [abs(s.error_with_jitter) for s in scores]
    inside = statistics.mean(s.low_s <= s.truth_s <= s.high_s for s in scores)
    rows = [
        (
            s.job,
            s.change.replace(",", ", "),
            *(f"{time * 1e3:.1f} ms" for time in (s.truth_s, s.jittered_s, s.predicted_s)),
            f"{s.error:+.2%}",
            f"{s.error_with_jitter:+.2%}",
        )
        for s in scores
    ]
    lines = [
        "`predict --kineto` writes job A, with 1 % of jitter on every duration and 50 µs between the ranks' clocks; `whatif` changes it",
        "on measured blocks, from rows that do not say what was predicted; the prediction of the changed job B is the truth: outright,",
        "without jitter, and with the jitter that A has,",
        "which `whatif` keeps (a step in which ranks meet is longer with jitter than without, by what the slowest of them takes more).",
        "",
        f"Mean absolute error {statistics.mean(errors):.2%}, worst {max(errors):.2%} over {len(scores)} changes (figure: ≤ {FIGURE:.0%});"
        f" {sum(e <= FIGURE for e in errors)} within it."
        f" Against B with jitter: mean {statistics.mean(with_jitter):.2%}, worst {max(with_jitter):.2%}."
        f" The 80 % interval holds {inside:.0%}.",
        "",
        f"Refused, since the rows show no axes of sizes: {len(refused)} changes.",
        "",
        markdown_table(("job A", "change", "B outright", "B with jitter", "from A's files", "error", "with jitter"), rows),
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", help="only jobs whose name contains one of these words, comma-separated; writes nothing")
    args = parser.parse_args()
    words = args.jobs.split(",") if args.jobs else [""]
    refused: list[str] = []
    scores = [s for loop in LOOPS if any(w in loop.name for w in words) for s in run(loop, refused)]
    text = section(scores, refused)
    print(text)
    if not args.jobs:
        write_result("validation/results/whatif-loop.md", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
