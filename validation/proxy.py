"""How well a proxy benchmark represents the job that it was made from: validation/results/proxy.md.

    LUMOS_TRACES=... python -m validation.proxy [--rounds 10]        (--rounds 0: the public execution traces alone)

Two small jobs (a GPT and a ResNet-shaped network, one process, one thread) are recorded on this machine's CPU and run as
proxies, interleaved: in every round the job is recorded anew and its proxies run right after it, so that other load on
the machine affects both. What is compared is the same on both sides: of 24 steps, the job's without a profiler and the
proxy's, the one of least processor time. Then a proxy of every public execution trace is generated and run on the CPU once,
with a count of the operators that ran for real and the reasons why the others did not.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tools.document import ROOT, markdown_table
from tools.figures import write_result

from lumos.proxy.generation import generate_program
from lumos.proxy.running import run_benchmark

JOBS = ("gpt", "resnet")
SOURCES = ("profiler alone", "with execution trace")

#: Steps of which each side takes the least; other load on the machine only adds to a step.
STEPS = 24

#: Bytes that a proxy of a public execution trace may take here: they were recorded on GPUs of 11 to 80 GB.
MEMORY = 6_000_000_000

#: Fresh mappings for large tensors: without it the profiler's small blocks fragment the heap (docs/collect.md).
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536"}


@dataclass(frozen=True)
class Round:
    """One job recorded once, and one proxy of it run. Times of a step in ns: recorded, its wall time under the profiler; untraced and
    replayed, the least processor time of the job without a profiler and of its proxy."""

    job: str
    source: str
    recorded: int
    untraced: int
    replayed: int
    real: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--keep", help="file for what was measured, from which an interrupted run goes on")
    parser.add_argument("--job", choices=JOBS, help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        record(options.job, options.out)
        return 0
    kept = Kept(Path(options.keep)) if options.keep else Kept(None)
    traces = os.environ.get("LUMOS_TRACES")
    if not traces:
        print("LUMOS_TRACES is not set: no public execution traces are run", file=sys.stderr)
    public = list(coverage(Path(traces), kept)) if traces else []
    rounds = [one for job in JOBS for one in repeated(job, options.rounds, kept)]
    if rounds:
        write_result("validation/results/proxy.md", section(rounds))
    if public:
        write_result("validation/results/proxy-public.md", public_section(public))
    return 0


class Kept:
    """Results in a file, one JSON object a line, so that an interrupted run goes on where it was."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self._results: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def of(self, **facts: Any) -> list[dict[str, Any]]:
        return [result for result in self._results if all(result.get(key) == value for key, value in facts.items())]

    def add(self, result: dict[str, Any]) -> None:
        self._results.append(result)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(result) + "\n")


def repeated(job: str, wanted: int, kept: Kept) -> list[Round]:
    """`wanted` rounds of each proxy of a job."""
    while any(len(kept.of(job=job, source=source)) < wanted for source in SOURCES):
        for one in measure(job):
            kept.add(asdict(one))
    return [Round(**result) for source in SOURCES for result in kept.of(job=job, source=source)[:wanted]]


def measure(job: str) -> Iterator[Round]:
    """Record the job, then run its proxies: from the profiler's file alone, and with the execution trace."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "job"
        command = [sys.executable, "-m", "validation.proxy", "--job", job, "--out", str(out)]
        done = subprocess.run(command, env={**os.environ, **MALLOC}, check=True, capture_output=True, text=True, cwd=ROOT)
        untraced = int(done.stdout.splitlines()[-1])
        file, executed = out / "rank0.json.gz", out / "rank0.et.json.gz"
        for source, given in zip(SOURCES, ((), (str(executed),)), strict=True):
            proxy = Path(folder) / source.replace(" ", "-")
            generate_program([str(file)], proxy, execution_traces=given)
            result = run_benchmark(proxy, options=("--device", "cpu", "--warmup", "2", "--repeat", str(STEPS)))
            replayed = min(result["processor_ns"])
            print(f"{job}, {source}: {untraced / 1e6:.1f} ms of processor time, {replayed / 1e6:.1f} replayed", file=sys.stderr)
            yield Round(job, source, result["recorded_step_ns"], untraced, replayed, result["coverage"]["real"])


def coverage(traces: Path, kept: Kept) -> Iterator[dict[str, Any]]:
    """Every public execution trace as a proxy on the CPU."""
    files = [
        *sorted((traces / "execution-traces").glob("*.et.json.gz")),
        traces / "chakra" / "pytorch-et-1.0.2.json.gz",
        traces / "dlrm-8xv100" / "et-rank0.json.gz",
        traces / "resnet-2080ti" / "execution_trace.json.gz",
        traces / "vgg13-h100" / "execution_trace.json.gz",
    ]
    for file in files:
        name = f"{file.parent.name}/{file.name.removesuffix('.json.gz')}"
        if not kept.of(name=name):
            with tempfile.TemporaryDirectory() as folder:
                program, _ = generate_program([str(file)], folder, max_memory_bytes=MEMORY)
                result = run_benchmark(folder, processes=1, options=("--device", "cpu", "--warmup", "0", "--repeat", "1"))
            print(f"{name}: {result['operators']}", file=sys.stderr)
            recorded = sum(1 for _ in program.ranks[0].walk())
            kept.add(
                {
                    "name": name,
                    "recorded": recorded,
                    **{key: result[key] for key in ("operators", "memory", "peak_memory_bytes", "not_real")},
                }
            )
        yield kept.of(name=name)[0]


def section(rounds: list[Round]) -> str:
    import torch

    rows = []
    for job, source in sorted({(r.job, r.source) for r in rounds}):
        mine = [r for r in rounds if (r.job, r.source) == (job, source)]
        errors = [r.replayed / r.untraced - 1 for r in mine]
        own = [r.untraced for r in mine]
        rows.append(
            (
                f"{job}, {source}",
                str(len(mine)),
                f"{statistics.median(r.recorded for r in mine) / 1e6:.1f}",
                f"{statistics.median(own) / 1e6:.1f} ± {half_width(own) / statistics.median(own):.1%}",
                f"{statistics.median(r.replayed for r in mine) / 1e6:.1f}",
                f"{statistics.median(errors):+.1%} ± {half_width(errors):.1%}",
                f"{min(r.real for r in mine):.2%}",
            )
        )
    text = [
        f"Generated by `python -m validation.proxy` (torch {torch.__version__}, {os.cpu_count()} cores, one thread a job). "
        f"Steps in ms, medians over interleaved rounds: recorded (wall time under the profiler), and the least processor time of {STEPS} "
        "steps of the job without a profiler and of its proxy. The error is that of the proxy, the median of each round's; ± "
        "is the half-width of a 95 % interval, beside the job that of its own noise. Between operators a proxy spins the least that was "
        "recorded there in any of the steps. Figures to reach: step ≤ 10 %; operator time run for real ≥ 98 %.",
        "",
        markdown_table(("job", "rounds", "recorded", "without a profiler", "proxy", "error", "operator time run for real"), rows),
    ]
    return "\n".join(text)


def public_section(public: list[dict[str, Any]]) -> str:
    return "\n".join(
        [
            f"Public execution traces, generated and run on the CPU within {MEMORY / 1e9:g} GB, once each. They hold no times, so shares "
            "are of operators; what was recorded on a GPU runs on the CPU. Memory is the most that the process grew; where a recording "
            "does not fit, tensors share storage.",
            "",
            markdown_table(
                ("execution trace", "nodes", "run for real", "skipped", "memory", "why skipped"), [public_row(r) for r in public]
            ),
        ]
    )


def public_row(result: dict[str, Any]) -> tuple[str, ...]:
    operators, memory = result["operators"], result["memory"]
    total = sum(operators.values())
    why = "; ".join(f"{row['count']} × `{row['name']}`: {row['reason']}" for row in result["not_real"]) or "–"
    how = f"{result['peak_memory_bytes'] / 1e9:.2f} GB" + (", shared" if memory["shared"] else "")
    missing = operators["skipped"] + operators["stand_in"]
    return (result["name"], f"{result['recorded']:,}", f"{operators['real']:,} ({operators['real'] / total:.1%})", f"{missing:,}", how, why)


def half_width(values: list[float]) -> float:
    """Half of the 95 % interval of the median, by order statistics (normal approximation of the binomial)."""
    ordered, n = sorted(values), len(values)
    reach = 1.96 * math.sqrt(n) / 2
    low, high = max(0, math.floor(n / 2 - reach)), min(n - 1, math.ceil(n / 2 + reach) - 1)
    return (ordered[high] - ordered[low]) / 2


def record(job: str, out: str) -> None:
    """Train the job on the CPU and record it; prints the least processor time of a step without a profiler, ns. The first step is left
    out, in which memory is new."""
    import time

    import torch

    import lumos.collect

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, batch = (gpt if job == "gpt" else resnet)(torch)
    optimizer = torch.optim.AdamW(model.parameters()) if job == "gpt" else torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    warmup, steps = 2, 4
    clocks = []
    with lumos.collect.profile(out, steps=steps, warmup=warmup, wait=STEPS + 1, execution_trace=True) as recording:
        for _ in range(STEPS + 1 + warmup + steps):
            optimizer.zero_grad()
            model(*batch).backward()
            optimizer.step()
            clocks.append(time.process_time_ns())
            recording.step()
    print(min(after - before for before, after in pairwise(clocks[: STEPS + 1])))


def gpt(torch: Any) -> tuple[Any, tuple[Any, ...]]:
    """The decoder of examples/record_gpt.py, small."""
    sys.path.insert(0, str(ROOT / "examples"))
    from record_gpt import GPT, Settings

    settings = Settings(".", 4, 256, 4, 128, 1024, 4, 1, 4, 6, 2, 1, 1, 25.0)
    return GPT(settings), (torch.randint(1024, (4, 128)), torch.randint(1024, (4, 128)))


def resnet(torch: Any) -> tuple[Any, tuple[Any, ...]]:
    """Convolutions with batch norms and residual connections, in three stages, on images of 64 × 64."""
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, width: int, wider: int, stride: int) -> None:
            super().__init__()
            self.first = nn.Conv2d(width, wider, 3, stride, 1, bias=False)
            self.second = nn.Conv2d(wider, wider, 3, 1, 1, bias=False)
            self.norms = nn.ModuleList([nn.BatchNorm2d(wider), nn.BatchNorm2d(wider)])
            self.skip = nn.Conv2d(width, wider, 1, stride, bias=False) if stride > 1 or width != wider else nn.Identity()

        def forward(self, x: Any) -> Any:
            inner = torch.relu(self.norms[0](self.first(x)))
            return torch.relu(self.norms[1](self.second(inner)) + self.skip(x))

    class ResNet(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            widths = [(32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
            self.stem = nn.Sequential(nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
            self.blocks = nn.Sequential(*(Block(*shape) for shape in widths))
            self.head = nn.Linear(128, 100)

        def forward(self, images: Any, labels: Any) -> Any:
            pooled = self.blocks(self.stem(images)).mean((2, 3))
            return nn.functional.cross_entropy(self.head(pooled), labels)

    return ResNet(), (torch.randn(16, 3, 64, 64), torch.randint(100, (16,)))


if __name__ == "__main__":
    sys.exit(main())
