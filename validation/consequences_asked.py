"""A fixed list of questions about recorded jobs and planned ones, and what Lumos answers today.

The list is literal on purpose: what is asked must not follow from the code whose answers are compared (`validation.consequences`).
"""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import lumos
from lumos.errors import LumosError
from lumos.graph.table import Graph
from lumos.trace.table import DEVICE_WORK, Job

ROOT = Path(__file__).resolve().parents[1]

#: How much of a refusal is kept.
_REFUSAL = 60
#: Seconds are kept to this many significant digits.
_DIGITS = 6


class Consequence(NamedTuple):
    """One answer. Seconds are None where the question has no such figure.

    step_s, low_s, high_s: the step as replayed, changed or predicted, with its interval; of a diagnosis the worth of its first finding.
    base_s: the job as it was, simulated; measured_s: the same as measured. grade: how far the answer is trusted, as far as it says.
    finding: the code of a diagnosis's first finding. refused: the beginning of the refusal, else "".
    """

    job: str
    question: str
    step_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    base_s: float | None = None
    measured_s: float | None = None
    grade: str = ""
    finding: str = ""
    refused: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.job, self.question


#: Changes that every recording of operators is asked about, by their words on the command line. What a recording cannot answer is
#: refused, and the refusal is frozen like any other answer.
OF_OPERATORS: dict[str, dict[str, Any]] = {
    "--scale cpu:*=0.5": {"scale": {"cpu:*": 0.5}},
    "--scale cpu:*=2": {"scale": {"cpu:*": 2.0}},
    "--scale aten::add*=0": {"scale": {"aten::add*": 0.0}},
    "--set layers=1": {"layers": 1},
    "--set layers=2": {"layers": 2},
    "--set layers=6": {"layers": 6},
    "--set micro_batch=2": {"micro_batch": 2},
    "--set micro_batch=64": {"micro_batch": 64},
    "--set microbatches=2": {"microbatches": 2},
    "--set seq=64": {"seq": 64},
    "--set precision=bf16": {"precision": "bf16"},
    "--set tp=2": {"tp": 2},
    "--set dp=2": {"dp": 2},
    "--set dp=8": {"dp": 8},
    "--set zero=1": {"zero": 1},
}
#: Those that recordings of a device are asked besides.
OF_DEVICES: dict[str, dict[str, Any]] = {
    "--scale device:*=0.5": {"scale": {"device:*": 0.5}},
    "--scale device:*=2": {"scale": {"device:*": 2.0}},
    "--scale device:*=0.5 --scale cpu:*=0.5": {"scale": {"device:*": 0.5, "cpu:*": 0.5}},
    "--set cuda_graphs=on": {"cuda_graphs": True},
    "--cluster h200": {"cluster": "h200"},
}
#: Those of recordings in which ranks exchange something.
OF_EXCHANGES: dict[str, dict[str, Any]] = {
    "--scale nccl*=0.5": {"scale": {"nccl*": 0.5}},
    "--scale nccl*=0": {"scale": {"nccl*": 0.0}},
}
#: Those of jobs of several processes on CPUs.
OF_PROCESSES: dict[str, dict[str, Any]] = {
    "--scale gloo*=0.5": {"scale": {"gloo*": 0.5}},
    "--scale operator:aten::addmm=0.5": {"scale": {"operator:aten::addmm": 0.5}},
    "--scale operator:aten::bmm=0.5": {"scale": {"operator:aten::bmm": 0.5}},
    "--rank-slowdown 0=1.5": {"rank_slowdown": {0: 1.5}},
}
#: Those of recordings that hold passes and transfers instead of operators.
OF_PASSES: dict[str, dict[str, Any]] = {
    "--scale forward-compute=0.5": {"scale": {"forward-compute": 0.5}},
    "--scale backward-compute=0.5": {"scale": {"backward-compute": 0.5}},
    "--scale backward-compute=2": {"scale": {"backward-compute": 2.0}},
    "--scale *send*=0.5": {"scale": {"*send*": 0.5}},
    "--rank-slowdown 0=1.5": {"rank_slowdown": {0: 1.5}},
    "--set microbatches=4": {"microbatches": 4},
    "--set microbatches=16": {"microbatches": 16},
    "--set pp=4": {"pp": 4},
    "--set schedule=gpipe": {"schedule": "gpipe"},
    "--set vpp=2": {"vpp": 2},
}

#: Recordings of the public traces: files or folders from LUMOS_TRACES, and what they are asked.
_DEVICE = OF_OPERATORS | OF_DEVICES
RECORDINGS: dict[str, dict[str, dict[str, Any]]] = {
    "critical-path/alexnet.json.gz": _DEVICE,
    "critical-path/cuda-event-sync-multi-stream.json.gz": _DEVICE,
    "critical-path/cuda-event-sync.json.gz": _DEVICE,
    "critical-path/simple-add.json.gz": _DEVICE,
    "dlrm-8xv100": _DEVICE | OF_EXCHANGES,
    "dlrm-a100-rank3/rank3.json.gz": _DEVICE | OF_EXCHANGES,
    "execution-traces/simple-add.kineto.json.gz": _DEVICE,
    "h100-inference/bert-small.json.gz": _DEVICE,
    "h100-inference/qwen1.5-0.5b.json.gz": _DEVICE,
    "h100-inference/vit-nsfw.json.gz": _DEVICE,
    "incomplete/rank-missing.json.gz": _DEVICE,
    "mi210-gpu-only/rank0.json.gz": _DEVICE,
    "mi300-vllm-graph/rank0.json.gz": _DEVICE,
    "odd/mi250-minitoy.json.gz": _DEVICE,
    "odd/mtia-inference.json.gz": OF_DEVICES,
    "odd/triton.json.gz": _DEVICE,
    "pipeline-8gpu": OF_PASSES,
    "resnet-2080ti/kineto.json.gz": _DEVICE,
    "resnet-ddp-a100/rank0.json.gz": _DEVICE | OF_EXCHANGES,
    "resnet-ddp-mi300x/rank0.json.gz": _DEVICE | OF_EXCHANGES,
    "resnet-v100/rank0.json.gz": _DEVICE,
    "resnet50-v100-old-schema/workers0.json.gz": _DEVICE,
    "straggler-8gpu": OF_PASSES,
    "switch-moe-a100/forward-4x128-tokens.json.gz": _DEVICE,
    "vgg13-h100/kineto.json.gz": _DEVICE,
}
#: The project's own recordings, from its root. All but the first are asked less, because they are the same job with other faults.
EXAMPLES: dict[str, dict[str, dict[str, Any]]] = {
    "examples/gpt-2rank-cpu": OF_OPERATORS | OF_PROCESSES,
    "examples/faults/plain": OF_OPERATORS | OF_PROCESSES,
    "examples/faults/extra-work": OF_PROCESSES,
    "examples/faults/large-exchange": OF_PROCESSES,
    "examples/faults/loader-stall": OF_PROCESSES,
    "examples/faults/outlier": OF_PROCESSES,
    "examples/faults/sleep": OF_PROCESSES,
    "examples/faults/slow-process": OF_PROCESSES,
}

#: Predictions: model, cluster, devices, sequences of a step and tokens of each, then other settings.
PREDICTIONS: dict[str, tuple[tuple[str, str, int, int, int], dict[str, Any]]] = {
    "gpt3 tp8 pp8": (("gpt3-175b", "h100", 512, 1536, 2048), {"tp": 8, "pp": 8}),
    "gpt3 tp8 pp8 gpipe": (("gpt3-175b", "a100-80gb", 512, 512, 2048), {"tp": 8, "pp": 8, "schedule": "gpipe"}),
    "gpt3 tp8 pp8 zero-bubble": (("gpt3-175b", "h100", 512, 512, 2048), {"tp": 8, "pp": 8, "schedule": "zero-bubble"}),
    "gpt3 recompute full": (("gpt3-175b", "a100-80gb", 512, 1536, 2048), {"tp": 8, "pp": 8, "recompute": "full"}),
    "gpt3-1.3b v100": (("gpt3-1.3b", "v100", 8, 64, 1024), {"precision": "fp16"}),
    "llama3-8b cp4": (("llama3-8b", "h100", 64, 32, 32768), {"cp": 4}),
    "llama3-8b fsdp2": (("llama3-8b", "h100", 64, 128, 8192), {"zero": 3, "framework": "fsdp2"}),
    "llama3-8b mi300x": (("llama3-8b", "mi300x", 64, 128, 4096), {}),
    "llama3-70b tp8 pp4": (("llama3-70b", "h100", 256, 512, 8192), {"tp": 8, "pp": 4}),
    "llama3-405b": (("llama3-405b", "llama3-h100", 16384, 2048, 8192), {"tp": 8, "pp": 16}),
    "mixtral ep8 tp2": (("mixtral-8x7b", "h100", 64, 256, 4096), {"ep": 8, "tp": 2}),
}


def answers(traces: Path | None, jobs: frozenset[str] | None = None) -> Iterator[Consequence]:
    """Ask everything: of the public traces where their folder is given, of the examples and of planned jobs. jobs: only these."""
    recorded = [(name, ROOT / name, asked) for name, asked in EXAMPLES.items()]
    recorded += [(name, traces / name, asked) for name, asked in RECORDINGS.items()] if traces else []
    for name, path, asked in recorded:
        if jobs is None or name in jobs:
            yield from of_recording(name, path, asked)
    if jobs is None or "predict" in jobs:
        yield from (_answer("predict", question, partial(_prediction, question), "") for question in PREDICTIONS)


def of_recording(name: str, path: Path, asked: dict[str, dict[str, Any]]) -> Iterator[Consequence]:
    """Replay, diagnosis and changes of one recording, which is read and built once."""
    folder = str(path).removesuffix(name)
    try:
        job = lumos.read(path)
        graph = lumos.build(job)
    except LumosError as error:
        yield Consequence(name, "read", refused=_refusal(error, folder))
        return
    changes = asked | _heaviest_kernel(job)
    yield _answer(name, "replay", partial(_replay, graph), folder)
    yield _answer(name, "diagnose", partial(_diagnosis, job, graph), folder)
    yield from (_answer(name, question, partial(_change, job, graph, words), folder) for question, words in changes.items())


def _answer(job: str, question: str, ask: Callable[[], dict[str, Any]], folder: str) -> Consequence:
    """What a question is answered, with its figures rounded; a refusal is an answer too."""
    try:
        found = ask()
    except LumosError as error:
        return Consequence(job, question, refused=_refusal(error, folder))
    return Consequence(job, question, **{key: rounded(value) if isinstance(value, float) else value for key, value in found.items()})


def rounded(seconds: float) -> float:
    """To the digits that are kept."""
    return float(f"{seconds:.{_DIGITS}g}")


def _refusal(error: LumosError, folder: str) -> str:
    """The beginning of a refusal, without the folder in which the traces happen to be."""
    text = " ".join(str(error).split())
    return (text.replace(folder, "") if folder else text)[:_REFUSAL].strip()


def _heaviest_kernel(job: Job) -> dict[str, dict[str, Any]]:
    """The change of the kernel that takes most time in the recording, if there are any; found in its rows, not in the graph."""
    total: Counter[str] = Counter()
    for trace in job.traces:
        rows = trace.is_any(*DEVICE_WORK)
        for name in trace.names_of(rows):
            total[trace.strings[name]] += int(trace.duration[rows & (trace.name == name)].sum())
    if not total:
        return {}
    heaviest = min(total, key=lambda name: (-total[name], name))
    return {"heaviest kernel x0.5": {"scale": {f"device:{glob.escape(heaviest)}": 0.5}}}


def _replay(graph: Graph) -> dict[str, Any]:
    found = lumos.replay(graph)
    replayed = found.replayed_step_time_ns * 1e-9
    return {"step_s": replayed, "base_s": replayed, "measured_s": found.step_time_ns * 1e-9, "grade": str(found.trust.grade)}


def _diagnosis(job: Job, graph: Graph) -> dict[str, Any]:
    found = lumos.diagnose(job, graph=graph)
    told = {"measured_s": found.step_time_s, "grade": str(found.trust.grade), "finding": "none"}
    if not found.findings:
        return told
    first = found.findings[0]
    return told | {"finding": str(first.code), "step_s": first.worth_s, "low_s": first.worth_low_s, "high_s": first.worth_high_s}


def _change(job: Job, graph: Graph, words: dict[str, Any]) -> dict[str, Any]:
    found = lumos.whatif(job, graph=graph, **words)
    changed = found.outcome
    return {
        "step_s": changed.step_time_s,
        "low_s": changed.step_time_low_s,
        "high_s": changed.step_time_high_s,
        "base_s": found.base.step_time_s,
        "measured_s": found.measured_step_s,
        "grade": str(found.trust.grade),
    }


def _prediction(question: str) -> dict[str, Any]:
    (model, cluster, gpus, global_batch, seq), settings = PREDICTIONS[question]
    found = lumos.predict(model=model, cluster=cluster, gpus=gpus, global_batch=global_batch, seq=seq, **settings).time
    return {"step_s": found.time_s, "low_s": found.low_s, "high_s": found.high_s}
