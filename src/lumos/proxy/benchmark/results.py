"""The results: what ran, how long it took, and what did not run."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from lumos.proxy.benchmark.device import cuda, held
from lumos.proxy.benchmark.recording import COMPILED, Node

if TYPE_CHECKING:
    from lumos.proxy.benchmark.program import Program


def covered(program: Program) -> dict[str, Any]:
    """Shares of operators, and of their recorded time, that ran for real, were replaced by stand-ins, or were skipped."""
    count: dict[str, int] = defaultdict(int)
    spent: dict[str, int] = defaultdict(int)
    missing: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    ran: set[int] = set()
    for item in program.items:
        ran.update(node.number for node in item.node.walk())
        if item.role == "synchronize":
            continue
        weight = item.node.device_ns if item.own else max(item.node.duration, item.node.device_total)
        outcome = "real" if item.role != "stand-in" else "stand_in"
        if outcome == "stand_in" and not weight and item.node.start < 0 and not item.bytes:
            outcome = "skipped"  # neither its duration nor its tensors are known, so there is nothing to do in its place
        count[outcome] += 1
        spent[outcome] += weight
        if outcome != "real":
            entry = missing[outcome, item.node.name, item.node.reason]
            entry[0], entry[1] = entry[0] + 1, entry[1] + weight
    for node in compiled_on_cpu(program):
        outcome = "stand_in" if node.start >= 0 else "skipped"
        count[outcome] += 1
        spent[outcome] += node.compiled_ns
        entry = missing[outcome, node.name, "compiled code, whose kernels no recording on a CPU describes"]
        entry[0], entry[1] = entry[0] + 1, entry[1] + node.compiled_ns
    for root in program.roots:
        for node in root.walk():
            if node.collective is not None and node.number not in ran:
                count["skipped"] += 1
                spent["skipped"] += node.duration
                missing["skipped", node.name, f"not part of --mode {program.mode}"][0] += 1
    kinds = ("real", "stand_in", "skipped")
    time_known = sum(spent.values()) > 0
    return {
        "coverage": {k: share(spent if time_known else count, k) for k in kinds},
        "coverage_of_operators": {k: share(count, k) for k in kinds},
        "operators": {k: count[k] for k in kinds},
        "not_real": [
            {"outcome": outcome, "name": name, "reason": reason, "count": n, "recorded_ns": t}
            for (outcome, name, reason), (n, t) in sorted(missing.items(), key=lambda entry: -entry[1][1])
        ],
    }


def compiled_on_cpu(program: Program) -> list[Node]:
    """The ranges of code that torch.compile made for a CPU. Their kernels have no operators, so their time is spun between those."""
    if program.rank["on_accelerator"] or program.mode == "communication":
        return []
    return [node for root in program.roots for node in root.outermost(lambda node: node.name.startswith(COMPILED))]


def share(parts: dict[str, int], key: str) -> float | None:
    total = sum(parts.values())
    return parts[key] / total if total else None


def by_class(program: Program, repetitions: int) -> list[dict[str, Any]]:
    """Recorded and replayed CPU time of every operator that ran for real, the most time first."""
    table: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for item in program.items:
        if item.role == "real":
            row = table[item.node.name]
            row[0], row[1], row[2] = row[0] + 1, row[1] + item.node.duration, row[2] + item.elapsed // max(repetitions, 1)
    rows = sorted(table.items(), key=lambda entry: -entry[1][1])
    return [{"name": name, "count": n, "recorded_ns": recorded, "replayed_ns": replayed} for name, (n, recorded, replayed) in rows]


def used(program: Program, times: list[int], held_before: int | None) -> dict[str, Any]:
    """The most memory held, and the share of the step in operators.

    held_before: bytes before the program had any tensor. The share is known on a CPU only, where operators end before they return.
    """
    most = held(program.device, "VmHWM")
    busy = sum(item.elapsed for item in program.items if item.role == "real")
    return {
        "peak_memory_bytes": None if most is None or held_before is None else max(0, most - held_before),
        "utilization": busy / sum(times) if program.device.type == "cpu" else None,
    }


def report(program: Program, times: list[int], cpu_share: float, plan: dict[str, Any], held_before: int | None) -> dict[str, Any]:
    recorded = program.rank["recorded_ns"] if program.rank["recorded_ns"] > 0 else None
    replayed = int(statistics.median(times))
    same_device = program.rank["on_accelerator"] == (program.device.type == "cuda")
    scaled_up = dist.is_initialized() and dist.get_world_size() > program.world_size
    comparable = recorded is not None and same_device and program.mode == "full" and plan["scale"] == 1 and not scaled_up
    return {
        "rank": program.rank["rank"],
        "recorded_ranks": program.world_size,
        "device": cuda.get_device_name() if program.device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "mode": program.mode,
        "recorded_step_ns": recorded,
        "replayed_step_ns": replayed,
        "error": (replayed - recorded) / recorded if comparable and recorded else None,
        "repetitions_ns": times,
        "cpu_share": cpu_share,
        **used(program, times, held_before),
        **covered(program),
        "memory": plan,
        "by_class": by_class(program, len(times)),
    }


def printable(text: str) -> str:
    """A recorded name as a terminal may show it, without control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)[:80]


def show(result: dict[str, Any]) -> None:
    recorded, replayed = result["recorded_step_ns"], result["replayed_step_ns"]
    line = f"step {replayed / 1e6:.3f} ms here ({result['device']}, torch {result['torch']})"
    if recorded:
        line += f", {recorded / 1e6:.3f} ms recorded"
    print(line + (f": {result['error']:+.1%}" if result["error"] is not None else ""))
    shares = {k: v for k, v in result["coverage"].items() if v is not None}
    print("operator time: " + ", ".join(f"{share:.1%} {kind.replace('_', '-')}" for kind, share in shares.items()))
    memory = result["memory"]
    less = (", tensors share storage" if memory["shared"] else "") + (f", sizes x {memory['scale']:g}" if memory["scale"] != 1 else "")
    print(f"memory planned: {memory['total_bytes'] / 1e6:,.1f} MB of {memory['limit_bytes'] / 1e6:,.0f}{less}")
    peak, busy = result["peak_memory_bytes"], result["utilization"]
    parts = [f"peak memory {peak / 1e6:,.1f} MB"] if peak is not None else []
    print(", ".join(parts + ([f"{busy:.1%} of the step in operators"] if busy is not None else [])))
    for row in result["not_real"][:12]:
        print(f"  {row['outcome'].replace('_', '-'):9s} {row['count']:5d} x {printable(row['name'])}: {printable(row['reason'])}")
