"""What every verb answers over a folder of traces, written to files, so that two commits can be compared.

python -m tools.outputs FOLDER            # at one commit, then at the other
diff -r FOLDER_BEFORE FOLDER_AFTER        # prints nothing where no answer changed

Traces are read from the folder in LUMOS_TRACES, and those of the example always. Times that Lumos itself took (reading,
building, simulating, searching) are left out; everything else is written byte for byte.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

#: Commands that take traces, with options that cover most of what they can answer.
OF_TRACES = {
    "inspect": ("inspect",),
    "blocks": ("inspect", "--blocks"),
    "replay": ("replay", "--probes"),
    "breakdown": ("breakdown",),
    "kernels": ("breakdown", "--by", "kernel"),
    "critical-path": ("critical-path",),
    "stragglers": ("stragglers",),
    "whatif-all": ("whatif", "--scale", "device:*=0.5"),
    "whatif-layers": ("whatif", "--set", "layers=2"),
    "whatif-tp": ("whatif", "--set", "tp=2"),
}

#: Predictions: one for each schedule, way of sharding, precision, mixture and cluster that change the answer.
PREDICTIONS = {
    "gpt3-tp8-pp8": "gpt3-175b h100 512 1536 2048 --tp 8 --pp 8",
    "gpt3-vpp": "gpt3-175b h100 512 1536 2048 --tp 8 --pp 8 --vpp 6 --schedule interleaved",
    "gpt3-gpipe": "gpt3-175b a100-80gb 512 512 2048 --tp 8 --pp 8 --schedule gpipe",
    "gpt3-zero-bubble": "gpt3-175b h100 512 512 2048 --tp 8 --pp 8 --schedule zero-bubble",
    "gpt3-dualpipe": "gpt3-175b h100 512 1024 2048 --tp 8 --pp 8 --schedule dualpipe",
    "gpt3-zero2": "gpt3-175b h100 512 1536 2048 --tp 8 --pp 8 --zero 2",
    "gpt3-full": "gpt3-175b a100-80gb 512 1536 2048 --tp 8 --pp 8 --recompute full",
    "gpt3-selective": "gpt3-175b a100-80gb 512 1536 2048 --tp 8 --pp 8 --recompute selective --framework megatron-2021",
    "gpt3-fp8": "gpt3-175b h100 512 1536 2048 --tp 8 --pp 8 --precision fp8",
    "llama3-8b-fsdp": "llama3-8b h100 64 128 8192 --zero 3 --framework fsdp2",
    "llama3-8b-compiled": "llama3-8b h100 64 128 8192 --zero 3 --framework fsdp2-compiled",
    "llama3-8b-fp8": "llama3-8b h100 64 128 8192 --zero 3 --framework fsdp2-compiled --precision fp8",
    "llama3-8b-cp": "llama3-8b h100 64 32 32768 --cp 4",
    "llama3-8b-document": "llama3-8b h100 64 128 8192 --document 1024",
    "llama3-8b-b200": "llama3-8b b200 64 128 8192",
    "llama3-8b-mi300x": "llama3-8b mi300x 64 128 4096",
    "llama3-8b-graphs": "llama3-8b h100 64 128 8192 --switch cuda_graphs=on",
    "llama3-8b-eager": "llama3-8b h100 64 128 8192 --switch fusion=eager --switch attention=fa2",
    "llama3-8b-unfused": "llama3-8b h100 64 128 2048 --switch attention=unfused --switch loss=torch",
    "llama3-70b": "llama3-70b h100 256 512 8192 --tp 8 --pp 4",
    "llama3-70b-ddp": "llama3-70b h200 256 512 8192 --tp 8 --zero 0 --framework megatron-deepspeed",
    "llama3-405b": "llama3-405b llama3-h100 16384 2048 8192 --tp 8 --pp 16",
    "llama2-7b": "llama2-7b a100-80gb 64 256 4096 --zero 3 --framework generic",
    "llama2-7b-internevo": "llama2-7b a100-80gb 64 256 4096 --framework internevo",
    "deepseek-v3": "deepseek-v3 h800 2048 15360 4096 --pp 16 --ep 64 --schedule dualpipe --precision fp8",
    "deepseek-v3-1f1b": "deepseek-v3 h100 512 4096 4096 --pp 16 --ep 32",
    "mixtral-8x7b": "mixtral-8x7b h100 64 256 4096 --ep 8 --tp 2",
    "mixtral-8x7b-pp": "mixtral-8x7b h100 128 256 4096 --ep 8 --pp 4",
    "gpt3-1.3b-v100": "gpt3-1.3b v100 8 64 1024 --precision fp16",
    "gpt3-175b-deepspeed": "gpt3-175b a100-80gb 384 2048 2048 --tp 4 --pp 12 --framework megatron-deepspeed",
}

#: Other commands without a trace.
OTHERS = {
    "models": ("models",),
    "clusters": ("clusters",),
    "cost-gemm": ("cost", "gemm", "--on", "h100", "--m", "4096", "--n", "4096", "--k", "4096", "--dtype", "bf16"),
    "search": ("search", "--model", "llama3-8b", "--cluster", "h100", "--gpus", "64", "--global-batch", "128", "--seq", "8192"),
}

_OWN_TIMES = re.compile(
    r'"(read_s|build_s|simulate_s|seconds_s|analyze_s)": ?[\d.e+-]+|\b(read|built|simulated|searched|took) in [\d.]+ m?s|in [\d.]+ s\b'
)


class Case(NamedTuple):
    """One command: the file that its answer is written to, and its words after `lumos`."""

    name: str
    words: tuple[str, ...]


def jobs(traces: Path | None) -> Iterator[tuple[str, tuple[Path, ...]]]:
    """Name and files of every job: a folder is one job where its ranks belong together, else each file is one."""
    yield "example", (Path("examples/gpt-2rank-cpu"),)
    if traces is None:
        return
    for folder in sorted(path for path in traces.iterdir() if path.is_dir() and path.name != "licenses"):
        files = sorted(path for path in folder.iterdir() if path.suffix in (".gz", ".json", ".parquet"))
        yield folder.name, (folder,)
        if len(files) > 1 and folder.name not in ("pipeline-8gpu", "dlrm-8xv100"):
            yield from ((f"{folder.name}.{path.name.split('.')[0]}", (path,)) for path in files)


def cases(traces: Path | None) -> Iterator[Case]:
    for name, paths in jobs(traces):
        for verb, words in OF_TRACES.items():
            for form, option in (("txt", ()), ("json", ("--json",))):
                yield Case(f"{name}.{verb}.{form}", (words[0], *map(str, paths), *words[1:], *option))
    for name, text in PREDICTIONS.items():
        model, cluster, gpus, batch, seq, *options = text.split()
        words = ("predict", "--model", model, "--cluster", cluster, "--gpus", gpus, "--global-batch", batch, "--seq", seq, *options)
        yield Case(f"predict.{name}.json", (*words, "--json"))
        yield Case(f"predict.{name}.txt", words)
    for name, words in OTHERS.items():
        yield Case(f"{name}.txt", words)


def answer(case: Case) -> str:
    """What the command prints, without the times that Lumos itself took; its status last."""
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run(("lumos", *case.words), capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    text = _OWN_TIMES.sub("(own time)", done.stdout + done.stderr)
    return f"{text}\nstatus {done.returncode}\n"


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    named = os.environ.get("LUMOS_TRACES")
    todo = list(cases(Path(named) if named else None))

    def write(case: Case) -> None:
        (folder / case.name).write_text(answer(case), encoding="utf-8")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(write, todo))
    print(f"{len(todo)} answers in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
