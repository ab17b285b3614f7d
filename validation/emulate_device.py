"""How well the emulation knows a device's work: validation/results/emulate-*.md.

    LUMOS_TRACES=… LUMOS_MEASURED=… python -m validation.emulate_device [operators] [steps] [peaks] [memory]

Three questions. What an operator costs: every operator with shapes in recordings of real devices is given to the rules that say which
kernels it launches, and the cost models price them. What a step takes: torch's own FSDP2 and tensor parallelism on a Llama, as published by
torchtitan, eager and compiled, emulated from a script (`emulated/llama.py`), against the published time, and against `lumos predict` of
the same configuration. What memory it takes: the peak of that Llama against published ones, the allocator against the reserved memory of
recordings, and the peak of another script against torch's own tracker.
No constant of the rules was fitted to the times of these recordings. Their launches (tiles, grids, shared memory, registers) were read:
which products in fp32 are split along k, the tiles of kernels that permute, which kernels multiply images of odd channels and that memory
is cleared for these, and how many blocks of attention a core holds. The coefficients that price memory-bound kernels on H100 were fitted to
kernels of the same recordings, and those of a whole step to published runs, torchtitan's among them (docs/cost-models.md,
validation/results/runs.md).
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from tools.document import ROOT, markdown_table
from tools.figures import write_result
from validation.emulated.recorded import Measured, measured_operators

import lumos
from lumos.blocks.price import Pricer, kernel_by_kernel
from lumos.cost.cluster import load_cluster
from lumos.cost.from_trace import accelerator_of
from lumos.emulation.accelerators import emulated_device
from lumos.emulation.device.kernels import Kernels
from lumos.emulation.peak import peak
from lumos.emulation.process.allocator import CachingAllocator
from lumos.emulation.run import Launched, records
from lumos.errors import LumosError
from lumos.operators.kernels import kernels_of
from lumos.trace import read

#: Recordings with shapes on devices whose attention, multiplications or memory-bound kernels were measured, one of each job.
RECORDINGS = (
    "h100-inference/bert-small",
    "h100-inference/vit-nsfw",
    "h100-inference/qwen1.5-0.5b",
    "vgg13-h100/kineto",
    "switch-moe-a100/forward-4x128-tokens",
    "resnet-ddp-mi300x/rank0",
)
#: Kernels whose work depends on results, which a recording does not have.
_BY_RESULT = ("indexSelectLargeIndex", "DeviceRadixSortOnesweepKernel", "pooling_or_scan_kernel")


class Priced(NamedTuple):
    """A recording: ns of its operators as recorded and as priced, both by operator; how many operators there were.

    Calls with equal inputs count with their median, since now and then a kernel is held up for milliseconds.
    """

    name: str
    device: str
    recorded: dict[str, int]
    priced: dict[str, int]
    operators: int

    @property
    def error(self) -> float:
        return sum(self.priced.values()) / sum(self.recorded.values()) - 1

    @property
    def off(self) -> float:
        """How much the operators are off, each for itself, so that none makes up for another: a share of their recorded time."""
        return sum(abs(self.priced[name] - ns) for name, ns in self.recorded.items()) / sum(self.recorded.values())


def priced(name: str) -> Priced:
    """Price the operators of a recording."""
    trace = read(Path(os.environ["LUMOS_TRACES"]) / f"{name}.json.gz").traces[0]
    cluster = load_cluster(accelerator_of(trace).name)
    kernels, pricer = Kernels(cluster.accelerator), Pricer(cluster, kernel_by_kernel())
    calls: dict[str, list[Measured]] = defaultdict(list)
    for one in measured_operators(trace):
        if _known(one) and kernels(one.operator):
            calls[f"{one.operator.name} {one.operator.inputs}"].append(one)
    recorded: dict[str, int] = defaultdict(int)
    modelled: dict[str, int] = defaultdict(int)
    for same in calls.values():
        operator = same[0].operator
        work = [launch.work for launch in kernels(operator)]
        recorded[operator.name] += round(len(same) * statistics.median(one.ns for one in same))
        modelled[operator.name] += len(same) * sum(price.times.best for price in pricer(work))
    operators = sum(map(len, calls.values()))
    folder, _, file = name.rpartition("/")
    return Priced(folder if file in ("kineto", "rank0") else file, cluster.name, recorded, modelled, operators)


def _known(one: Measured) -> bool:
    return not any(each.kernel in _BY_RESULT for each in kernels_of(one.operator.name) or ())


def operators_section(found: list[Priced]) -> str:
    """The table of recordings, and the operators that take most of their time."""
    rows = [
        (
            p.name,
            p.device,
            f"{p.operators:,}",
            f"{sum(p.recorded.values()) / 1e6:.2f} ms",
            f"{sum(p.priced.values()) / 1e6:.2f} ms",
            f"{p.error:+.1%}",
            f"{p.off:.1%}",
        )
        for p in found
    ]
    inference = [p for p in found if p.name in ("bert-small", "vit-nsfw", "qwen1.5-0.5b")]
    whole, apart = statistics.median(abs(p.error) for p in inference), statistics.median(p.off for p in inference)
    by_name: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for p in found:
        for name in p.recorded:
            by_name[name][0] += p.recorded[name]
            by_name[name][1] += p.priced[name]
    most = sorted(by_name.items(), key=lambda item: -item[1][0])[:16]
    return "\n\n".join(
        (
            f"Device time of the three models of `h100-inference`, median |error|: {apart:.1%} with each operator counted for itself, as "
            f"in the last column (to reach: ≤ 12 %), and {whole:.1%} of their sum, in which errors can make up for each other. "
            "Left over are: the one convolution of vit-nsfw, in 16 bits over an image of three channels, whose kernel runs on 48 of 132 "
            "cores, where the cost model knows one of its generation that runs on 84; flash attention over lengths that are no multiple of "
            "its tiles (197, 141 and 559 tokens), of which no table has a measurement and whose code alone was counted; copies that "
            "convert types, permute or join (a quarter of the time of `aten::cat`, for rotary embeddings); and the one multiplication of "
            "bert-small whose rows are no multiple of 16 bytes (30,522 columns), whose kernel loads four bytes at a time: it may take from "
            "as long as with aligned rows to four times as long, and counts with the middle of both factors.",
            markdown_table(("recording", "device", "operators", "recorded", "priced", "error", "by operator"), rows),
            "The operators that take most time, over these recordings:",
            markdown_table(
                ("operator", "recorded", "priced", "error"),
                [(f"`{name}`", f"{a / 1e6:.2f} ms", f"{b / 1e6:.2f} ms", f"{b / a - 1:+.0%}") for name, (a, b) in most],
            ),
        )
    )


class Step(NamedTuple):
    """A published run: its step as measured, as emulated, and as predicted from its configuration, s."""

    name: str
    ranks: int
    measured: float
    emulated: float
    predicted: float


def published_steps() -> list[Step]:
    """The runs of torchtitan in 16 bits, without those of asynchronous tensor parallelism, which fuses collectives into multiplications:
    the emulation has them one after the other."""
    path = Path(os.environ["LUMOS_MEASURED"]) / "torchtitan.csv"
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["precision"] == "BF16" and "async" not in row["notes"]]
    scored = {row["id"]: row for row in lumos.validate(path).to_dict()["rows"]}
    return [_step(row, float(scored[row["id"]]["predicted_s"])) for row in rows]


def _step(row: dict[str, str], predicted: float) -> Step:
    ranks = int(row["n_gpus"])
    options = {"layers": row["layers"], "hidden": row["hidden"], "heads": row["heads"], "kv": row["kv_heads"], "ffn": row["ffn"]}
    options |= {"vocab": row["vocab"], "seq": row["seq_len"], "batch": row["micro_batch"], "tp": row["tp"]}
    arguments = [word for key, value in options.items() for word in (f"--{key}", value)]
    arguments += ["--compile"] if "torch.compile" in row["notes"] else []
    with tempfile.TemporaryDirectory() as folder:
        emulate("h100-96gb", ranks, folder, [str(ROOT / "validation/emulated/llama.py"), *arguments], steps=2)
        answer = lumos.replay(lumos.build(lumos.read(folder)))
        return Step(row["id"], ranks, float(row["step_time_s"]), answer.step_time_ns / 1e9, predicted)


def emulate(cluster: str, ranks: int, folder: str, script: list[str], steps: int = 1) -> None:
    """Emulate a script into a folder with the command that users have. Raises LumosError with what it said."""
    command = [
        "lumos",
        "collect",
        "--emulate",
        cluster,
        "--ranks",
        str(ranks),
        "--steps",
        str(steps),
        "-o",
        folder,
    ]
    done = subprocess.run([*command, "--", sys.executable, *script], capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise LumosError(f"{script[0]}: cannot be emulated: {done.stderr.strip()[-500:]}")


def steps_section(steps: list[Step]) -> str:
    """The table of published runs."""
    rows = [
        (
            s.name,
            str(s.ranks),
            f"{s.measured:.3f} s",
            f"{s.emulated:.3f} s",
            f"{s.emulated / s.measured - 1:+.1%}",
            f"{s.predicted:.3f} s",
            f"{s.emulated / s.predicted - 1:+.1%}",
        )
        for s in steps
    ]
    against = [
        statistics.median(abs(s.emulated / other - 1) for s in steps for other in (getattr(s, key),)) for key in ("measured", "predicted")
    ]
    return "\n\n".join(
        (
            "Steps of torch's FSDP2 and tensor parallelism, eager and compiled, median |error| against the published time: "
            f"{against[0]:.1%}; against `predict`: {against[1]:.1%} (to reach: ≤ 8 % each). Runs in 8 bits, and one whose collectives "
            "are fused into multiplications, are not compared.",
            markdown_table(("run", "ranks", "published", "emulated", "error", "predicted", "emulated / predicted"), rows),
        )
    )


class Reserved(NamedTuple):
    """What a device reserved, bytes, and what the emulated allocator reserves for the same requests. grown: by how much in the window."""

    name: str
    measured: int
    emulated: int
    grown: int


def reserved(name: str) -> Reserved | None:
    """The allocations of a recording, given to the allocator in their order; what was there before and stays, as one piece. None for a
    recording without memory."""
    with gzip.open(Path(os.environ["LUMOS_TRACES"]) / f"{name}.json.gz") as file:
        events = [row for row in json.load(file)["traceEvents"] if row.get("name") == "[memory]" and row["args"]["Device Type"] == 1]
    rows = [row["args"] for row in sorted(events, key=lambda row: row["ts"])]
    if not rows:
        return None
    first: dict[int, int] = {}
    for row in rows:
        first.setdefault(row["Addr"], row["Bytes"])
    before = {address: -size for address, size in first.items() if size < 0}
    allocator = CachingAllocator(1 << 40, 0)
    allocator.take(rows[0]["Total Allocated"] - rows[0]["Bytes"] - sum(before.values()), 0)
    live = {address: allocator.take(size, 0) for address, size in before.items()}
    for row in rows:
        if row["Bytes"] > 0:
            live[row["Addr"]] = allocator.take(row["Bytes"], 0)
        else:
            allocator.give(live.pop(row["Addr"]))
    held = [row["Total Reserved"] for row in rows]
    return Reserved(name, max(held), allocator.statistics()["reserved_bytes"]["all"]["peak"], max(held) - held[0])


def tracked() -> tuple[dict[str, int], dict[str, int], int]:
    """The peak of `emulated/tracked.py` by kind, from torch's MemTracker and from the emulation, and what the allocator reserves."""
    script = str(ROOT / "validation/emulated/tracked.py")
    said = subprocess.run([sys.executable, script, "--tracked"], capture_output=True, text=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        (process,) = records(Launched([sys.executable, script], emulated_device("h100"), 1, 1, 1, Path(folder), 300.0))
    found = peak(process)
    return json.loads(said), {str(kind): size for kind, size in found.by_kind().items()}, found.reserved_bytes


class Published(NamedTuple):
    """A published run of Llama 3 8B on eight devices in 16 bits: which, the most that its allocator reserved, in GiB, and how it is
    emulated: options of `emulated/llama.py`, and whether segments of memory grow."""

    name: str
    reserved: float
    options: tuple[str, ...]
    expandable: bool


#: How torchtitan of each run differs, by the device: it compiles the loss since April 2025 (its pull request 1033), gathers the first
#: and the last layers for themselves since July 2025 (1094), and asks for segments that grow, which torch on ROCm has since 2026 alone
#: (its pull request 173330).
_RUNS = {
    "H100": (("--compile", "--eager-loss"), True),
    "MI300X": (("--compile", "--apart"), False),
    "B200": (("--compile", "--apart"), True),
}
#: A run of March 2025 that torchtitan's pull request 996 prints, on eight H100.
_OF_PULL_REQUEST = Published("H100, pull request 996", 49.58, (), True)


def published_peaks() -> list[Published]:
    """torchao's runs of torchtitan. They print what torchtitan's log says, which is the peak of reserved memory in GiB."""
    with (Path(os.environ["LUMOS_MEASURED"]) / "torchao.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["precision"] == "BF16"]
    names = (f"{row['gpu']}, {re.search(r'torch [^ ,+]+', row['notes']).group()}" for row in rows)  # type: ignore[union-attr]
    sizes = (re.search(r"peak memory ([\d.]+) GB", row["notes"]) for row in rows)
    runs = zip(rows, names, sizes, strict=True)
    return [Published(name, float(size.group(1)), *_RUNS[row["gpu"]]) for row, name, size in runs if size] + [_OF_PULL_REQUEST]


def emulated_peak(run: Published) -> tuple[float, float]:
    """The most that `emulated/llama.py` has allocated and reserved on each of eight H100 as in a run, in GiB."""
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = f"expandable_segments:{run.expandable}"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "validation/emulated/llama.py"), "--batch", "1", *run.options]
        (process,) = records(Launched(command, emulated_device("h100"), 8, 1, 1, Path(folder), 1800.0))
    del os.environ["PYTORCH_CUDA_ALLOC_CONF"]
    most = peak(process)
    return most.allocated_bytes / 2**30, most.reserved_bytes / 2**30


def peaks_section(published: list[Published], emulated: list[tuple[float, float]]) -> str:
    """The table of peaks that were published."""
    errors = [most / run.reserved - 1 for run, (_, most) in zip(published, emulated, strict=True)]
    rows = [
        (
            run.name,
            " ".join(run.options).replace("--", "") or "none",
            "yes" if run.expandable else "no",
            f"{run.reserved:.2f}",
            f"{allocated:.2f}",
            f"{most:.2f}",
            f"{error:+.1%}",
        )
        for run, (allocated, most), error in zip(published, emulated, errors, strict=True)
    ]
    middle, worst = statistics.median(map(abs, errors)), max(errors, key=abs)
    return "\n\n".join(
        (
            "Peak of Llama 3 8B on eight devices (FSDP2, one sequence of 8,192 a device, every second multiplication kept by activation "
            "checkpointing), as torchao and a pull request of torchtitan published it, and of `validation/emulated/llama.py` emulated "
            f"on H100s, in GiB (to reach: ≤ 5 % in the middle, ≤ 10 % at worst). In the middle {middle:.1%}, at worst {worst:+.1%}. "
            "Each run is emulated as its version of torchtitan trains: those of March 2025 gather the first and last layers with the "
            "whole model, and compile the layers at most; those of August 2025 compile the loss too (pull request 1033) and gather "
            "these for themselves (1094). All ask for segments that grow, which torch on ROCm did not have then. Whether the run of "
            "pull request 996 was compiled is not said: with compiled layers it takes 0.4 % less.",
            markdown_table(("run", "options", "segments grow", "published", "allocated", "reserved", "error"), rows),
        )
    )


#: MemTracker's kinds, and those of the emulation.
_KINDS = {"Parameter": "parameter", "Optstate": "optimizer-state", "Activation": "activation", "Temp": "temporary", "Gradient": "gradient"}


def memory_section(found: list[Reserved], theirs: dict[str, int], ours: dict[str, int], held: int) -> str:
    """The tables of the allocator and of the tracker."""
    rows = []
    for r in found:
        sizes = (f"{size / 1e6:,.1f} MB" for size in (r.measured, r.emulated))
        rows.append((r.name, *sizes, f"{r.emulated / r.measured - 1:+.1%}", f"{r.grown / 1e6:,.1f} MB"))
    kinds = [(ours_, f"{theirs.get(name, 0) / 1e6:,.1f} MB", f"{ours.get(ours_, 0) / 1e6:,.1f} MB") for name, ours_ in _KINDS.items()]
    total = sum(theirs.get(name, 0) for name in _KINDS)
    kinds.append(("all", f"{total / 1e6:,.1f} MB", f"{sum(ours.values()) / 1e6:,.1f} MB"))
    return "\n\n".join(
        (
            "Reserved memory, recorded and by the emulated allocator "
            "for the same requests (to reach: ≤ 3 %). What a device had reserved and free before a window is in no recording and counts as "
            "nothing here, so only a window in which reserved memory grew can tell.",
            markdown_table(("recording", "reserved", "emulated", "error", "grown in the window"), rows),
            "Peak of a GPT of 217 M parameters by kind, by torch's own `MemTracker` and emulated on an H100. The emulation adds the "
            f"blocks of 512 bytes and two workspaces of cuBLAS of 33.6 MB, which count as temporary; its allocator "
            f"reserves {held / 1e6:,.1f} MB.",
            markdown_table(("kind", "MemTracker", "emulated"), kinds),
        )
    )


PARTS = {
    "operators": lambda: operators_section([priced(name) for name in RECORDINGS]),
    "steps": lambda: steps_section(published_steps()),
    "peaks": lambda: peaks_section(runs := published_peaks(), list(map(emulated_peak, runs))),
    "memory": lambda: memory_section([found for name in RECORDINGS if (found := reserved(name)) is not None], *tracked()),
}


def main(chosen: list[str]) -> None:
    """Score, and write a section for each part; only those that are named, if any."""
    for name, part in PARTS.items():
        if not chosen or name in chosen:
            write_result(f"validation/results/emulate-{name}.md", part())


if __name__ == "__main__":
    main(sys.argv[1:])
