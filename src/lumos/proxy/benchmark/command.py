"""The command."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from lumos.proxy.benchmark.device import cuda, forget_most, free_bytes, held
from lumos.proxy.benchmark.program import Program
from lumos.proxy.benchmark.results import report, show
from lumos.proxy.benchmark.runner import Runner


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the recorded step in trace.json.")
    parser.add_argument("--trace", type=Path, default=Path(__file__).with_name("trace.json"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if cuda.is_available() else "cpu")
    parser.add_argument("--mode", choices=("full", "compute", "communication"), default="full")
    parser.add_argument("--rank", type=int, help="the recorded rank to run (default: this process's)")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--max-memory", type=float, help="bytes for tensors (default: that of trace.json, or 80 %% of what is free)")
    parser.add_argument("--threads", type=int, help="intra-op threads on the CPU (default: as recorded)")
    parser.add_argument("--no-gaps", action="store_true", help="leave out the time between operators")
    parser.add_argument("--profile", type=Path, help="folder for a profile of three steps of this run")
    parser.add_argument("--json", type=Path, help="folder for the result of every rank")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    trace = json.loads(options.trace.read_text())
    if trace.get("format") != "lumos-proxy" or trace.get("version") != 1:
        sys.exit(f"benchmark: {options.trace} is not a trace.json of this benchmark's version: generate it again")
    trace["folder"] = str(options.trace.parent)
    trace["own_ranks"] = options.rank is None  # whether each process runs its own rank
    allocate_as_recorded(trace["ranks"][0]["malloc"])
    local, processes = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device(options.device, local) if options.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        cuda.set_device(device)
    if processes > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    place = dist.get_rank() if processes > 1 else 0
    ranks = trace["ranks"]
    chosen = {rank["rank"]: rank for rank in ranks}.get(options.rank) if options.rank is not None else ranks[place % len(ranks)]
    if chosen is None:
        sys.exit(f"benchmark: rank {options.rank} is not in trace.json, which has {sorted(rank['rank'] for rank in ranks)}")
    threads = options.threads or chosen["threads"]
    if threads:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    torch.set_flush_denormal(True)  # random values, unlike trained ones, may shrink to denormals, which are very slow on CPUs

    limit = int(options.max_memory or trace["max_memory_bytes"] or 0.8 * free_bytes(device) / (processes if device.type == "cpu" else 1))
    with torch.no_grad():
        before = held(device)
        program = Program(trace, chosen, device, options.mode)
        plan = program.fit(limit)
        program.rehearse()
        runner = Runner(program)
        result = report(program, *run(runner, options), plan, before)
    if options.json:
        options.json.mkdir(parents=True, exist_ok=True)
        (options.json / f"result{place}.json").write_text(json.dumps(result))
    if place == 0:
        show(result)
    if processes > 1:
        dist.destroy_process_group()


def allocate_as_recorded(settings: dict[str, str]) -> None:
    """Start this process again with the recording's settings of glibc, which reads them only at the start. Only numbers are taken."""
    missing = {name: value for name, value in settings.items() if name.startswith("MALLOC_") and name not in os.environ and value.isdigit()}
    if missing:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **missing})


def run(runner: Runner, options: argparse.Namespace) -> tuple[list[int], float]:
    """Wall times of the measured steps, ns, and the CPU time of this process as a share of their sum."""
    gaps = not options.no_gaps and options.mode != "communication"
    times: list[int] = []
    cpu = 0
    for repetition in range(options.warmup + options.repeat):
        if repetition == options.warmup:
            for item in runner.program.items:
                item.elapsed = 0
            forget_most(runner.program.device)
            cpu = time.process_time_ns()
        if dist.is_initialized():
            dist.barrier()
        times.append(runner.step(gaps))
    measured = times[options.warmup :]
    share = (time.process_time_ns() - cpu) / sum(measured)
    if options.profile:
        profile(runner, gaps, options.profile)
    return measured, share


def profile(runner: Runner, gaps: bool, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rank = dist.get_rank() if dist.is_initialized() else 0
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=3, repeat=1)
    elapsed = [item.elapsed for item in runner.program.items]
    with torch.profiler.profile(
        schedule=schedule, record_shapes=True, on_trace_ready=lambda p: p.export_chrome_trace(str(folder / f"rank{rank}.json"))
    ) as profiler:
        for _ in range(4):
            if dist.is_initialized():
                dist.barrier()
            runner.step(gaps)
            profiler.step()
    for item, before in zip(runner.program.items, elapsed, strict=True):
        item.elapsed = before
