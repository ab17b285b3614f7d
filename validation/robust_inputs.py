"""The inputs of `validation.robust`: files that are wrong in one way each, written by a generator, and how a verb must end on them.

Three families. *Rows*: a small profiler file in which one field of the header or of the rows has a value of legal JSON that no profiler
writes. *Files*: what is no trace at all, cut off, compressed or encoded otherwise. *Sizes*: configurations, clusters and recordings with
one number that would take the machine, were it believed.
"""

from __future__ import annotations

import bz2
import copy
import gzip
import json
import lzma
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple


class Case(NamedTuple):
    """One command and how it must end. write: puts the input into a folder and returns the arguments of `lumos`."""

    name: str
    write: Callable[[Path], list[str]]
    status: int
    says: str = ""  # part of what it writes, on standard error where it fails


def cases() -> Iterator[Case]:
    """All cases, in a fixed order."""
    yield from _header_cases()
    yield from _row_cases()
    yield from _digit_cases()
    yield from _file_cases()
    yield from _size_cases()


# ---------------------------------------------------------------- a small recording

#: Operators, launches and kernels of a step of 1 ms.
PER_STEP = 60
HEADER: dict[str, Any] = {
    "schemaVersion": 1,
    "distributedInfo": {"rank": 0, "world_size": 2, "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}]},
    "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "numSms": 132, "totalGlobalMem": 85_000_000_000}],
    "lumos_collect": {"threads": 1, "malloc": {}},
}
_SHAPES = {"Input Dims": [[8, 4], [4, 2]], "Input type": ["float", "float"], "Concrete Inputs": ["", ""], "Input Strides": [[4, 1], [2, 1]]}
_LAUNCH_SHAPE = {"grid": [10, 1, 1], "block": [128, 1, 1], "shared memory": 1024, "registers per thread": 32}
_COLLECTIVE = {"Collective name": "allreduce", "In msg nelems": 100, "Out msg nelems": 100, "Group size": 2, "dtype": "Float"}
_COLLECTIVE |= {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Seq": 1}


def recording() -> dict[str, Any]:
    """Two steps: each operator launches one kernel, the fourth of a step is an all-reduce."""
    rows = []
    for step in range(2):
        rows.append(_row("user_annotation", f"ProfilerStep#{step}", 1, 1000 * step, 1000, {}))
        for i in range(PER_STEP):
            at, ids = 1000 * step + 10 * i, {"correlation": 1 + step * PER_STEP + i, "External id": 1 + step * PER_STEP + i}
            reduces = i == 3
            name, extra = ("ncclDevKernel_AllReduce_Sum_f32", _COLLECTIVE) if reduces else ("gemm", _LAUNCH_SHAPE)
            rows.append(_row("cpu_op", "aten::mm", 1, at, 8, {"External id": ids["External id"], **_SHAPES}))
            rows.append(_row("cuda_runtime", "cudaLaunchKernel", 1, at + 2, 2, ids))
            rows.append(_row("kernel", name, 7, at + 5, 6, {**ids, "device": 0, "stream": 7, **extra}))
    return {**copy.deepcopy(HEADER), "traceEvents": rows}


def _row(category: str, name: str, lane: int, start: float, length: float, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": lane, "tid": lane, "ts": start, "dur": length, "args": copy.deepcopy(args)}


def _trace(change: Callable[[dict[str, Any]], None], *verb: str) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        found = recording()
        change(found)
        path = folder / "rank0.json"
        path.write_text(json.dumps(found))
        return [str(path) if word == "PATH" else word.replace("OUT", str(folder)) for word in verb]

    return write


# ---------------------------------------------------------------- rows

#: The verbs that read most of a recording, in turn: each value meets one of them, each field several.
VERBS = (
    ("inspect", "PATH"),
    ("replay", "PATH", "--perfetto", "OUT/replay.json"),
    ("breakdown", "PATH", "--by", "operator"),
    ("critical-path", "PATH"),
    ("compare", "PATH", "PATH"),
    ("whatif", "PATH", "--scale", "gemm*=0.5", "--force"),
    ("chakra", "export", "PATH", "-o", "OUT/set"),
    ("proxy", "generate", "PATH", "-o", "OUT/proxy.py"),
    ("calibrate", "PATH", "--on", "h100"),
)
#: Values of legal JSON that the field does not have.
VALUES: tuple[Any, ...] = (None, True, -1, 1e308, 2**70, "", "\ud83d", [], [None], [[["x"]]], {"a": 1})


def _header_cases() -> Iterator[Case]:
    places: list[tuple[Any, ...]] = [(key,) for key in (*HEADER, "baseTimeNanoseconds", "format")]
    places += [("deviceProperties", 0, key) for key in HEADER["deviceProperties"][0]]
    places += [("distributedInfo", key) for key in HEADER["distributedInfo"]] + [("distributedInfo", "pg_config", 0, "ranks")]
    for i, place in enumerate(places):
        for j in range(4):
            value, verb = VALUES[(3 * i + 5 * j) % len(VALUES)], VERBS[(i + j) % len(VERBS)]

            def change(found: dict[str, Any], place: tuple[Any, ...] = place, value: Any = value) -> None:
                inner: Any = found
                for key in place[:-1]:
                    inner = inner[key]
                inner[place[-1]] = value

            yield Case(f"header {'.'.join(map(str, place))} = {_short(value)}, {verb[0]}", _trace(change, *verb), 0)


def _row_cases() -> Iterator[Case]:
    places = [("cpu_op", key) for key in (*_SHAPES, "External id")]
    places += [("kernel", key) for key in (*_LAUNCH_SHAPE, *_COLLECTIVE, "stream", "device", "correlation")]
    for i, (category, key) in enumerate(places):
        for j in range(2):
            value, verb = VALUES[(4 * i + 5 * j) % len(VALUES)], VERBS[(2 * i + 3 * j) % len(VERBS)]

            def change(found: dict[str, Any], category: str = category, key: str = key, value: Any = value) -> None:
                for row in found["traceEvents"]:
                    if row["cat"] == category and key in row["args"]:
                        row["args"][key] = value

            yield Case(f"{category} {key} = {_short(value)}, {verb[0]}", _trace(change, *verb), 0)


def _digit_cases() -> Iterator[Case]:
    """Digits that `int` refuses, and more of them than it reads, where a number is looked for in text."""
    for text in ("²", "9" * 5000):
        for key, verb in (
            ("tid", ("replay", "PATH")),
            ("pid", ("chakra", "export", "PATH", "-o", "OUT/set")),
            ("args.Input Dims", ("breakdown", "PATH", "--by", "operator")),
            ("args.Concrete Inputs", ("proxy", "generate", "PATH", "-o", "OUT/proxy")),
            ("args.Process Group Name", ("chakra", "export", "PATH", "-o", "OUT/set")),
            ("args.Process Group Ranks", ("critical-path", "PATH")),
        ):
            yield Case(f"{key} = {text[:4]}, {verb[0]}", _trace(partial(_put_in_rows, key=key, text=text), *verb), 0)
        yield Case(f"base time = {text[:4]}", _trace(partial(_put_in_header, text=text), "inspect", "PATH"), 0)


def _put_in_rows(found: dict[str, Any], key: str, text: str) -> None:
    """The text as a field of every row that has it; in a list, as its first item."""
    for row in found["traceEvents"]:
        inner = row["args"] if key.startswith("args.") else row
        name = key.removeprefix("args.")
        if name in inner:
            inner[name] = [text, *inner[name][1:]] if isinstance(inner[name], list) else text


def _put_in_header(found: dict[str, Any], text: str) -> None:
    found["baseTimeNanoseconds"] = text


def _for_operators(found: dict[str, Any], change: Callable[[dict[str, Any], int], None], times: int = 1) -> None:
    """Change each operator, after so many copies of all were made. change: takes the row and its number."""
    operators = [row for row in found["traceEvents"] if row["cat"] == "cpu_op"]
    found["traceEvents"] += (copies := [copy.deepcopy(row) for row in operators * (times - 1)])
    for i, row in enumerate((*operators, *copies)):
        change(row, i)


def _short(value: Any) -> str:
    return json.dumps(value)[:24]


# ---------------------------------------------------------------- files


def _bytes(name: str, content: Callable[[bytes], bytes], *verb: str) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        path = folder / name
        path.write_bytes(content(json.dumps(recording()).encode()))
        return [str(path) if word == "PATH" else word for word in verb or ("inspect", "PATH")]

    return write


def _zstd_of_blanks(blocks: int) -> bytes:
    """So many blocks of 128 KiB of blanks: a header for a window of that size, and four bytes a block (RFC 8878, sections 3.1.1.1 and
    3.1.1.2: the kind that repeats one byte)."""
    block = (1 << 17 << 3 | 1 << 1).to_bytes(3, "little") + b" "
    return b"\x28\xb5\x2f\xfd\0\x38" + block * blocks + b"\x01\0\0"


def _file_cases() -> Iterator[Case]:
    yield Case("a whole recording", _bytes("rank0.json", lambda text: text), 0)
    yield Case("a packed recording", _bytes("rank0.json.gz", gzip.compress), 0)
    yield Case("bzip2", _bytes("rank0.json.bz2", bz2.compress), 1, "bzip2 -d")
    yield Case("xz", _bytes("rank0.json.xz", lzma.compress), 1, "xz -d")
    yield Case("what only begins as zstd", _bytes("rank0.json.zst", lambda text: b"\x28\xb5\x2f\xfd" + text), 1, "zstd")
    yield Case("a zstd bomb", _bytes("rank0.json.zst", lambda text: _zstd_of_blanks(10_000)), 1, ".zst")
    yield Case("a tar archive", _bytes("rank0.json", lambda text: b"rank0.json".ljust(257, b"\0") + b"ustar" + text), 1, "tar -xf")
    yield Case("7-Zip", _bytes("rank0.json", lambda text: b"7z\xbc\xaf\x27\x1c" + text), 1, "7z x")
    yield Case("UTF-32", _bytes("rank0.json", lambda text: text.decode().encode("utf-32")), 1, "UTF-32")
    yield Case("UTF-16", _bytes("rank0.json", lambda text: text.decode().encode("utf-16")), 1, "UTF-16")
    yield Case("UTF-16 without a mark", _bytes("rank0.json", lambda text: text.decode().encode("utf-16-le")), 1, "UTF-16")
    yield Case("an empty file", _bytes("rank0.json", lambda text: b""), 1, "is empty")
    yield Case("blanks", _bytes("rank0.json", lambda text: b" \n" * 50), 1, "lumos: ")
    yield Case("a number", _bytes("rank0.json", lambda text: b"5"), 1, "not a profiler trace")
    yield Case("nested without end", _bytes("rank0.json", lambda text: b'{"traceEvents":' + b"[" * 10**6), 1, "nested")
    yield Case("a header nested without end", _bytes("rank0.json", lambda text: b'{"a":' + b"[" * 10**6), 1, "nested")
    yield Case("no events", _bytes("rank0.json", lambda text: b'{"traceEvents":[]}', "replay", "PATH"), 1, "lumos: ")
    yield Case("events that are numbers", _bytes("rank0.json", lambda text: b'{"traceEvents":[1,2,3]}', "replay", "PATH"), 1, "lumos: ")
    for part in (2, 3, 5):
        yield Case(f"cut after 1/{part}", _bytes("rank0.json", lambda text, part=part: text[: len(text) // part]), 1, "--repair")
        cut = ("inspect", "PATH", "--repair")
        yield Case(f"cut after 1/{part}, repaired", _bytes("rank0.json", lambda text, part=part: text[: len(text) // part], *cut), 0)
    yield Case("packed and cut", _bytes("rank0.json.gz", lambda text: gzip.compress(text)[:-500]), 1, "cut off")
    yield Case("a bomb", _bytes("rank0.json.gz", lambda text: gzip.compress(b'{"traceEvents":[' + b" " * (80 << 20))), 1, "refused")
    yield Case("an empty path", lambda folder: ["inspect", ""], 2, "an empty argument")
    yield Case("a folder that is not there", lambda folder: ["inspect", str(folder / "absent")], 1, "absent")
    nested = _trace(lambda found: found.update(lumos="[" * 10**5), "whatif", "PATH", "--scale", "gemm*=0.5", "--force")
    yield Case("an origin nested without end", nested, 0)
    named = partial(_for_operators, change=lambda row, i: row.update(name="aten::mm\udc80"))
    yield Case("half a surrogate pair in names", _trace(named, "proxy", "generate", "PATH", "-o", "OUT/p"), 0)
    yield Case("a place whose name is no UTF-8", _trace(_unchanged, "report", "PATH", "-o", "OUT/\udcff.html"), 0)
    for verb in (("proxy", "generate", "PATH", "-o", "OUT/p"), ("whatif", "PATH", "--force", "--set", "micro-batch=x2")):
        for change, words in (
            (lambda row, i: row.update(ts=500 + i / 100, dur=400 - i / 50), "operators all in each other"),
            (lambda row, i: row.update(ts=0, dur=1 + i), "operators that all start at once"),
        ):
            many = _trace(partial(_for_operators, change=change, times=8), *verb)
            yield Case(f"{words}, {verb[0]}", many, 1, "open in each other")
    yield Case("a device", lambda folder: ["inspect", "/dev/null"], 1, "not a file")


# ---------------------------------------------------------------- sizes


def _long_kernel(days: int) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        found["traceEvents"][-1]["dur"] = days * 86_400 * 10**6

    return change


def _streams(count: int) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        kernels = [row for row in found["traceEvents"] if row["cat"] == "kernel"]
        for i in range(count):
            again = copy.deepcopy(kernels[i % len(kernels)])
            again["pid"] = again["tid"] = again["args"]["stream"] = 100 + i
            del again["args"]["correlation"]
            found["traceEvents"].append(again)

    return change


_MODEL = {"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 1024}
_MODEL |= {"vocab_size": 32000}
_PREDICT = ("--gpus", "8", "--global-batch", "8", "--seq", "2048")


def _model(**keys: Any) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        (folder / "config.json").write_text(json.dumps({**_MODEL, **keys}))
        return ["predict", "--model", str(folder / "config.json"), "--cluster", "h100", *_PREDICT]

    return write


def _cluster(text: str) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        (folder / "cluster.toml").write_text(f'based_on = "h100"\n{text}\n')
        return ["predict", "--model", "llama3-8b", "--cluster", str(folder / "cluster.toml"), *_PREDICT]

    return write


def _predict(*words: str) -> Callable[[Path], list[str]]:
    return lambda folder: ["predict", "--model", "llama3-8b", "--cluster", "h100", *_PREDICT, *words]


def _search(*words: str) -> Callable[[Path], list[str]]:
    return lambda folder: ["search", "--model", "llama3-8b", "--cluster", "h100", *_PREDICT, *words]


def _unchanged(found: dict[str, Any]) -> None:
    """A recording as it is: what is wrong is the command."""


def _size_cases() -> Iterator[Case]:
    for verb in (("replay", "PATH"), ("breakdown", "PATH"), ("critical-path", "PATH")):
        yield Case(f"a kernel of a day, {verb[0]}", _trace(_long_kernel(1), *verb), 0)
    yield Case("a kernel of four days", _trace(_long_kernel(4), "replay", "PATH", "--perfetto", "OUT/replay.json"), 0)
    yield Case("2,000 streams", _trace(_streams(2000), "replay", "PATH"), 0)
    yield Case("40,000 streams", _trace(_streams(40_000), "replay", "PATH"), 1, "streams")
    yield Case("empty nodes", _bytes("a.0.et", lambda text: b"\x07\n\x050.0.4" + b"\0" * 10**7), 1, "is empty")
    yield Case("short nodes", _bytes("a.0.et", lambda text: b"\x07\n\x050.0.4" + b"\x02\x08\x01" * (2 << 20)), 1, "this short")
    yield Case("a model of 4 layers", _model(), 0)
    yield Case("10^6 layers", _model(num_hidden_layers=10**6), 1, "layers")
    yield Case("a hidden size of 10^30", _model(hidden_size=10**30), 1, "hidden")
    yield Case("10^15 words", _model(vocab_size=10**15), 1, "vocab")
    yield Case("layers as text", _model(num_hidden_layers="4"), 1, "num_hidden_layers")
    yield Case("9 of 8 experts", _model(num_local_experts=8, num_experts_per_tok=9), 1, "per_token")
    yield Case("shared experts as text", _model(num_local_experts=8, num_experts_per_tok=2, n_shared_experts="x"), 1, "n_shared_experts")
    yield Case("text_config is a number", _model(text_config=5), 1, "object")
    for text in ("memory_bytes = inf", "clock_hz = nan", "cores = 0", 'cores = "132"', "memory_bytes = 1e300"):
        yield Case(f"accelerator.{text}", _cluster(f"[accelerator]\n{text}"), 1, text.split(" ")[0])
    yield Case("more GPUs than a cluster has", _predict("--gpus", "1000000000"), 1, "1000000000")
    for words, said in (
        (("--seq", "999999999"), "seq_len"),
        (("--micro-batch", "1000000000"), "micro_batch"),
        (("--lora-rank", "1000000000"), "lora_rank"),
        (("--tp", "0"), "tp"),
        (("--pp", "7"), "pp"),
        (("--pp", "35", "--gpus", "35", "--global-batch", "35"), "must not exceed the 32 layers"),
    ):
        yield Case(f"predict {' '.join(words)}", _predict(*words), 2, said)
    for words, said in (
        (("--seq", "999999999"), "seq_len"),
        (("--switch", "host_us=1e300"), "host_us"),
        (("--switch", "expert_skew=nan"), "expert_skew"),
        (("--tp", "9" * 5000), "not a whole number"),
        (("--gpus", "1000000000"), "1000000000"),
    ):
        yield Case(f"search {' '.join(words)[:40]}", _search(*words), 1 if words[0] == "--gpus" else 2, said)
    whatif = ("whatif", "PATH", "--force")
    for words, said in (
        (("--set", f"dp={10**40}"), "whole number"),
        (("--set", "layers=99999"), "16,384"),
        (("--set", "microbatches=1_0"), "whole number"),
        (("--rank-slowdown", "²=2"), "RANK=FACTOR"),
        (("--scale", "gemm*=1e999"), "factor"),
    ):
        yield Case(f"whatif {' '.join(words)[:40]}", _trace(_unchanged, *whatif, *words), 2, said)
