"""What `tools.fuzz_verbs` mutates: small inputs of every kind that a verb reads, each a JSON document and a way to write it as files.

A document is written as JSON, as TOML or as a table, whichever its verbs read. In the arguments of a verb, words in capitals stand for
the files of a family, and OUT for a folder for what is written.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from validation.robust_inputs import recording

from lumos.trace.chakra.json_form import parse_json
from lumos.trace.chakra.protobuf import frame
from lumos.trace.chakra.wire import encode_metadata, encode_node

#: Values of legal JSON, of every type and at the ends of every range.
VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 1.5, -0.0, 1e-300, 1e308, 2**31, 2**40, 2**53, 2**63 - 1, 2**63, 2**70, -(2**63)),
    *("", "x", "0", "-1", "1e999", "nan", "inf", "\ud83d", "\u202e", "\x1b[2J", "[1,2", "[[8,1024],[]]", "[-1,0,0]", "1,2,3"),
    *("[" * 2000, "9" * 5000, "²"),
    *([], [None], [[]], [["x"]], [[[1]]], [1, -1], [2**70], [0.5], {}, {"a": 1}, [{"id": 0}], [{"id": "x", "name": 3}], [{"id": [1]}]),
)

Verbs = tuple[tuple[str, ...], ...]


class Family(NamedTuple):
    """A document, the verbs that read it, and a function that writes it into a folder and returns the path for each word."""

    name: str
    document: Any
    verbs: Verbs
    write: Callable[[Any, Path], Mapping[str, str]]


def _json(path: Path, value: Any) -> str:
    path.write_text(json.dumps(value))
    return str(path)


# ---------------------------------------------------------------- recordings

_TRACE_VERBS: Verbs = (
    ("inspect", "PATH", "--blocks"),
    ("diagnose", "JOB", "--force"),
    ("replay", "JOB", "--perfetto", "OUT/replay.json"),
    ("replay", "PATH", "--probes"),
    ("breakdown", "PATH", "--by", "module"),
    ("breakdown", "JOB", "--by", "operator"),
    ("critical-path", "JOB"),
    ("stragglers", "JOB", "--force"),
    ("compare", "PATH", "JOB"),
    ("whatif", "JOB", "--force", "--scale", "gemm*=0.5", "--chakra", "OUT/set"),
    ("whatif", "JOB", "--force", "--network", "bandwidth=x2", "--base-cluster", "h100"),
    ("whatif", "PATH", "--force", "--cluster", "b200", "--repeat"),
    ("whatif", "JOB", "--force", "--set", "dp=4"),
    ("whatif", "PATH", "--force", "--set", "layers=8", "--kineto", "OUT/kineto"),
    ("report", "JOB", "-o", "OUT/report.html"),
    ("proxy", "generate", "JOB", "-o", "OUT/proxy.py"),
    ("chakra", "export", "JOB", "-o", "OUT/exported", "--astra-sim"),
    ("chakra", "synthesize", "JOB", "-o", "OUT/sampled"),
    ("chakra", "stat", "JOB"),
    ("search", "JOB", "--gpus", "8"),
    ("calibrate", "PATH", "--on", "h100"),
)


def _two_ranks(document: Any, folder: Path) -> Mapping[str, str]:
    """The document as rank 0 of a job whose rank 1 is sound."""
    job = folder / "job"
    job.mkdir()
    other = recording()
    other["distributedInfo"]["rank"] = 1
    _json(job / "rank1.json", other)
    return {"PATH": _json(job / "rank0.json", document), "JOB": str(job)}


def _rich() -> dict[str, Any]:
    """The small recording with rows of more kinds: a call that waits, a copy, a module, an allocation, a mark of a stream, flows."""
    found = recording()
    rows = found["traceEvents"]

    def row(category: str, name: str, lane: int, start: float, length: float, **args: Any) -> None:
        rows.append({"ph": "X", "cat": category, "name": name, "pid": lane, "tid": lane, "ts": start, "dur": length, "args": args})

    for step in range(2):
        at = 1000 * step
        facts = {"Collective name": "allreduce", "In msg nelems": 100, "dtype": "Float", "Process Group Name": "0", "In split size": "[]"}
        facts |= {"Process Group Ranks": "[0, 1]", "Input Dims": [[100], [], []], "Concrete Inputs": ["", "1", "0"], "Seq": 1}
        row("cpu_op", "record_param_comms", 1, at + 30.1, 7.5, **facts, **{"External id": 4 + 60 * step, "Out split size": "[]"})
        row("cuda_runtime", "cudaStreamSynchronize", 1, at + 620, 5, correlation=900 + step)
        facts = {"stream": 7, "device": 0, "correlation": 900 + step, "cuda_sync_kind": "Stream Sync", "wait_on_stream": 7}
        row("cuda_sync", "Stream Sync", 9, at + 621, 2, **facts, wait_on_cuda_event_record_corr_id=1, wait_on_cuda_event_id=2)
        row("cuda_runtime", "cudaMemcpyAsync", 1, at + 690, 16, correlation=950 + step)
        copied = {"correlation": 950 + step, "stream": 7, "device": 0, "bytes": 100, "memory bandwidth (GB/s)": 3.2}
        row("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 7, at + 700, 5, **copied)
        row(
            "python_function",
            "nn.Module: Linear_0",
            1,
            at + 1,
            90,
            **{"Python id": step + 1, "Python parent id": None, "Python module id": 0},
        )
        memory = {"Total Allocated": 100, "Total Reserved": 200, "Bytes": 10, "Addr": 5, "Device Id": 0, "Device Type": 1}
        rows.append({"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": at + 2, "args": memory})
        rows.append({"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1 + 60 * step, "pid": 1, "tid": 1, "ts": at + 2})
        rows.append({"ph": "f", "bp": "e", "cat": "ac2g", "name": "ac2g", "id": 1 + 60 * step, "pid": 7, "tid": 7, "ts": at + 5})
    rows.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main"}})
    return {**found, "baseTimeNanoseconds": 0, "traceName": "rank0.json"}


#: Rows of a slice of a public trace.
SLICE = 1500


def public_slice(path: Path) -> Family:
    """The header and SLICE rows from the middle of a profiler file, plain or gzip."""
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, strict=False)
    document = document if isinstance(document, dict) else {"traceEvents": document}
    rows = sorted(document["traceEvents"], key=lambda row: row.get("ph") != "M")  # the names of threads first
    begin = max(0, len(rows) // 2 - SLICE // 2)
    document["traceEvents"] = rows[:20] + rows[max(20, begin) : begin + SLICE]
    return Family(str(path), document, _TRACE_VERBS, _two_ranks)


# ---------------------------------------------------------------- an execution trace and the profiler's file of the same rank


def _pair() -> dict[str, Any]:
    nodes = [{"name": "[pytorch|profiler|execution_trace|thread]", "id": 2, "parent": 1, **_values([], [])}]
    nodes += [{"name": "aten::mm", "id": 10 + i, "parent": 2, **_values([[8, 4], [4, 2]], [[8, 2]]), "rf_id": 1 + i} for i in range(8)]
    return {"et": {"schema": "1.0.1", "pid": 1, "time": "", "start_ts": 0, "nodes": nodes}, "kineto": recording()}


def _values(inputs: list[Any], outputs: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"rf_id": 0, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1, "fw_tid": 0, "op_schema": ""}
    for key, shapes in (("input", inputs), ("output", outputs)):
        found |= {
            f"{key}s": [[1, 2, 0, 8, 4, "cuda:0"] for _ in shapes],
            f"{key}_shapes": shapes,
            f"{key}_types": ["Tensor(float)"] * len(shapes),
        }
    return found


def _linked(document: Any, folder: Path) -> Mapping[str, str]:
    return {"ET": _json(folder / "et.json", document["et"]), "PATH": _json(folder / "rank0.json", document["kineto"]), "JOB": str(folder)}


# ---------------------------------------------------------------- configurations

_MODEL = {"model_type": "deepseek_v3", "num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 8}
_MODEL |= {"intermediate_size": 1024, "vocab_size": 32000, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
_MODEL |= {"n_shared_experts": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1, "q_lora_rank": 64, "kv_lora_rank": 32, "head_dim": 64}
_MODEL |= {"qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "tie_word_embeddings": False, "max_position_embeddings": 4096}
_PREDICT = ("--gpus", "8", "--global-batch", "8", "--seq", "2048")
_CLUSTER = {
    "based_on": "h100",
    "accelerator": {"name": "x", "cores": 132, "clock_hz": 1.8e9, "memory_bytes": 8e10, "peak_flops": {"bf16": 9e14}, "launch_s": 4e-6},
    "node": {"devices": 8, "topology": "switch", "link_bytes_per_s": 4.5e11, "nics": 8, "nic_bytes_per_s": 5e10},
    "fabric": {"topology": "rail", "latency_s": 5e-6, "levels": [{"name": "all", "devices": 1024, "oversubscription": 1.0}]},
}
_JOB = {"model": "llama3-8b", "cluster": "h100", "gpus": 8, "global_batch": 8, "seq": 2048, "tp": 2, "pp": 2, "micro_batch": 1, "vpp": 1}
_JOB |= {"zero": 1, "recompute": "none", "precision": "bf16", "framework": "megatron-core", "switches": {"cuda_graphs": "on"}, "shard": 0}
_JOB |= {"schedule": "1f1b", "lora_rank": 8, "document": 0, "sequence_parallel": True, "recompute_layers": -1, "cp": 1, "ep": 1, "dp": 2}
_VALUES = {"launch_us": 2.4, "compute_overhead": 0.06, "memory_overhead": 0.1, "cache_bytes_per_clock_core": 1085.0, "prologue_us": 0.7}
_VALUES |= {"throttle": 0.05, "cast_us": 3.0, "cast_overhead": 0.5, "tile_overhead": [0.05] * 7}
_FITTED = {"values": _VALUES, "interval": [0.9, 1.1], "seen": {"m": [128.0, 32768.0]}, "ratio": 1.0, "rows": 5, "median_error": 0.1}
_COEFFICIENTS = {"gemm": {"h100": {"bf16": _FITTED}}}


def _model_file(document: Any, folder: Path) -> Mapping[str, str]:
    return {"CONFIG": _json(folder / "config.json", document)}


def _toml_file(document: Any, folder: Path) -> Mapping[str, str]:
    path = folder / "file.toml"
    path.write_text("".join(f"{json.dumps(key)} = {_toml(value)}\n" for key, value in document.items()))
    return {"TOML": str(path)}


def _toml(value: Any) -> str:
    """A value in TOML. Raises ValueError for null, which TOML does not have."""
    if value is None:
        raise ValueError("TOML has no null")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return {"inf": "inf", "nan": "nan"}.get(str(value), json.dumps(value))


# ---------------------------------------------------------------- tables

_RUN = {"id": "a", "source": "s", "model": "llama3-8b", "layers": "32", "hidden": "4096", "heads": "32", "kv_heads": "8", "ffn": "14336"}
_RUN |= {
    "vocab": "128256",
    "seq_len": "2048",
    "precision": "bf16",
    "gpu": "H100",
    "n_gpus": "8",
    "gpus_per_node": "8",
    "tp": "2",
    "pp": "2",
}
_RUN |= {"interconnect": "4x400Gb IB", "pp": "2", "vpp": "1", "cp": "1", "ep": "1", "dp": "2", "zero_or_fsdp": "zero1", "micro_batch": "1"}
_RUN |= {"global_batch": "8", "recompute": "full", "sequence_parallel": "yes", "step_time_s": "1.5", "tokens_per_s_per_gpu": "1000"}
_RUN |= {"framework": "NeMo", "year": "2024", "peak_memory_bytes": "5e10", "notes": ""}
_GEMM = [{"gpu": "H100", "dtype": "bf16", "m": 64 * i, "n": 256 * (1 + i % 6), "k": 512, "time_us": 5.0 + i} for i in range(1, 25)]
_ATTENTION = {"gpu": "H100", "dtype": "bf16", "direction": "fwd", "causal": "yes", "batch": 1, "heads": 8, "kv_heads": 8, "head_dim": 128}
_COLLECTIVE = {"gpu": "H100", "n_gpus": 8, "n_nodes": 1, "collective": "all_reduce", "dtype": "half"}


def _table_file(document: Any, folder: Path) -> Mapping[str, str]:
    """The rows as CSV under the columns of the first; a row that is a list has as many fields as it likes."""
    text = io.StringIO()
    rows = [row for row in document if isinstance(row, dict | list)]
    columns = list(next(row for row in rows if isinstance(row, dict)))
    csv.writer(text).writerows([columns, *([row.get(c, "") for c in columns] if isinstance(row, dict) else row for row in rows)])
    path = folder / "table.csv"
    path.write_text(text.getvalue(), errors="surrogatepass")
    return {"TABLE": str(path)}


# ---------------------------------------------------------------- other formats of recordings

_WORKLOAD_VERBS: Verbs = (
    ("inspect", "JOB"),
    *_TRACE_VERBS[1:4],
    ("breakdown", "JOB"),
    ("critical-path", "JOB"),
    ("whatif", "JOB", "--force", "--scale", "*=0.5"),
    ("chakra", "import", "JOB", "-o", "OUT/set"),
    ("chakra", "stat", "JOB"),
    ("chakra", "view", "JOB", "-o", "OUT/view.json"),
    ("chakra", "synthesize", "JOB", "-o", "OUT/sampled"),
    ("report", "JOB", "-o", "OUT/report.html"),
)


def _chakra(peer: int) -> list[dict[str, Any]]:
    """The metadata and ten nodes of a rank that exchanges messages with `peer`."""
    first, second = ("SEND", "RECV") if peer else ("RECV", "SEND")
    kinds = ("COMP_NODE", "COMM_COLL_NODE", f"COMM_{first}_NODE", f"COMM_{second}_NODE", "MEM_LOAD_NODE")
    attrs = [{"name": "is_cpu_op", "boolVal": False}, {"name": "comm_type", "int64Val": "0"}, {"name": "comm_size", "int64Val": "4096"}]
    attrs += [{"name": "num_ops", "int64Val": "100"}, {"name": "tensor_size", "uint64Val": "64"}, {"name": "comm_dst", "int32Val": peer}]
    attrs += [{"name": "comm_src", "int32Val": peer}, {"name": "comm_tag", "int32Val": 3}, {"name": "pg_name", "stringVal": "0"}]
    nodes = []
    for i in range(10):
        node = {"id": str(i + 1), "name": f"node {i}", "type": kinds[i % len(kinds)], "startTimeMicros": str(10 * i), "durationMicros": "8"}
        nodes.append({**node, "dataDeps": [str(i)] if i else [], "ctrlDeps": [], "attr": attrs, "inputs": {"values": "[]", "shapes": "[]"}})
    return [{"version": "0.0.4", "attr": [{"name": "schema", "stringVal": "1.0.1"}]}, *nodes]


def _chakra_set(document: Any, folder: Path) -> Mapping[str, str]:
    job = folder / "chakra"
    job.mkdir()
    for rank, objects in ((0, document), (1, _chakra(0))):
        (job / f"job.{rank}.json").write_text("\n".join(map(json.dumps, objects)))
    return {"PATH": str(job / "job.0.json"), "JOB": str(job)}


def _chakra_frames(document: Any, folder: Path) -> Mapping[str, str]:
    """The same set as .et files. Raises LumosError where a value has no form in them."""
    job = folder / "chakra"
    job.mkdir()
    for rank, objects in ((0, document), (1, _chakra(0))):
        metadata, nodes = parse_json("\n".join(map(json.dumps, objects)))
        (job / f"job.{rank}.et").write_bytes(b"".join(map(frame, [encode_metadata(metadata), *map(encode_node, nodes)])))
    return {"PATH": str(job / "job.0.et"), "JOB": str(job)}


def _passes() -> dict[str, Any]:
    lists = {"fwd_start": [0.0, 11.0], "fwd_end": [10.0, 21.0], "bwd_start": [42.0, 73.0], "bwd_end": [62.0, 93.0]}
    lists |= {"fwd_minibatch": [1, 2], "bwd_minibatch": [1, 2], "fwd_chunk": [0, 0], "bwd_chunk": [0, 0], "total": 100.0, "memory": 1.0}
    sizes = {"world_size": 2, "pp_size": 2, "vp_size": 1, "dp_size": 1}
    return {"config": sizes, "rank": {"1": lists, "2": lists}}


def _pipeline(document: Any, folder: Path) -> Mapping[str, str]:
    job = folder / "passes"
    job.mkdir()
    _json(job / "config.json", document["config"])
    _json(job / "pp_rank_1.json", _passes()["rank"])
    return {"PATH": _json(job / "pp_rank_0.json", document["rank"]), "JOB": str(job)}


_GEMM_OF = ("--m", "512", "--n", "512", "--k", "512")
_ON_H100 = ("--cluster", "h100", *_PREDICT)
_LINK_VERBS: Verbs = (("chakra", "link", "ET", "PATH", "-o", "OUT/linked"), ("proxy", "generate", "JOB", "-o", "OUT/proxy.py"))
_MODEL_VERBS: Verbs = (("predict", "--model", "CONFIG", *_ON_H100), ("search", "--model", "CONFIG", *_ON_H100, "--refine", "1"))
_CLUSTER_VERBS: Verbs = (
    ("predict", "--model", "llama3-8b", "--cluster", "TOML", *_PREDICT),
    ("cost", "gemm", "--on", "TOML", *_GEMM_OF),
    ("cost", "collective", "all-reduce", "--on", "TOML", "--bytes", "1000000", "--ranks", "16"),
)
_CALIBRATE: Verbs = (("calibrate", "TABLE"),)

#: Every kind of input, with the verbs that read it.
FAMILIES: tuple[Family, ...] = (
    Family("a recording", _rich(), _TRACE_VERBS, _two_ranks),
    Family("an execution trace", _pair(), _LINK_VERBS, _linked),
    Family("config.json", _MODEL, _MODEL_VERBS, _model_file),
    Family("a cluster", _CLUSTER, _CLUSTER_VERBS, _toml_file),
    Family("a prediction", _JOB, (("predict", "TOML"), ("explain", "TOML", "tp=8", "--model", "llama3-8b", *_ON_H100)), _toml_file),
    Family("coefficients", _COEFFICIENTS, (("cost", "gemm", "--on", "h100", *_GEMM_OF, "--coefficients", "TOML"),), _toml_file),
    Family("runs", [_RUN, _RUN], (("validate", "TABLE"), ("validate", "TABLE", "--leave-out", "framework")), _table_file),
    Family("multiplications", _GEMM, _CALIBRATE, _table_file),
    Family("attention", [{**_ATTENTION, "seq_len": 128 * i, "time_us": 9.0 * i} for i in range(1, 25)], _CALIBRATE, _table_file),
    Family("collectives", [{**_COLLECTIVE, "size_bytes": 4096 * i, "time_us": 20.0 + i} for i in range(1, 25)], _CALIBRATE, _table_file),
    Family("a Chakra set", _chakra(1), _WORKLOAD_VERBS, _chakra_set),
    Family("a Chakra set of frames", _chakra(1), (*_WORKLOAD_VERBS, ("chakra", "check", "JOB")), _chakra_frames),
    Family("passes", _passes(), _WORKLOAD_VERBS, _pipeline),
)
