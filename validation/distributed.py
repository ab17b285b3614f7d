"""Searches and reads on a Ray cluster that loses workers, a machine, its driver or its memory: the same answer, or a clear end.

    python -m validation.distributed [--write]     needs Ray (extra `distributed`); some minutes

The cluster is made of two nodes on this machine. Every scenario runs a command as a user does, does its damage while the cluster works,
and compares what stands on standard output with what the same command prints without Ray. `--write` puts the table into
docs/limits.md. Exit status 1 where an end is not the expected one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.document import markdown_table, write_section

#: The smallest object store that Ray starts with, bytes.
STORE = 80_000_000
#: Seconds after which a command that has not ended counts as hung.
HUNG_S = 400
_LUMOS = [sys.executable, "-c", "from lumos.cli import main; main()"]
_SEARCH = ["search", "--model", "llama2-7b", "--cluster", "a100-80gb", "--gpus", "32", "--global-batch", "128", "--seq", "4096"]
SEARCH = [*_SEARCH, "--refine", "40", "--json"]
#: Keys of an answer that say how long the command took, not what it found.
TIMES = ("seconds_s", "read_s", "build_s", "simulate_s")


@dataclass(frozen=True)
class Scenario:
    """words: the command. damage: what is done to the cluster while it works, given the command's process. status: the expected one;
    with 0 the answer must be that of one machine, with another nothing may stand on standard output, and the last line of
    standard error is shown."""

    name: str
    words: Sequence[str]
    damage: Callable[[subprocess.Popen[bytes]], None]
    status: int = 0


@contextlib.contextmanager
def _cluster() -> Iterator[str]:
    """A Ray cluster of two nodes with one processor each, on this machine; its address."""
    from ray.cluster_utils import Cluster

    sizes = {"num_cpus": 1, "object_store_memory": STORE}
    cluster = Cluster(initialize_head=True, head_node_args=sizes)
    try:
        cluster.add_node(**sizes)
        cluster.wait_for_nodes()
        yield str(cluster.address)
    finally:
        cluster.shutdown()


def _processes(pattern: str) -> list[int]:
    """Process ids whose command line matches, oldest first."""
    listed = subprocess.run(["ps", "-eo", "pid,args", "--sort=start_time"], capture_output=True, text=True, check=True).stdout
    return [int(line.split(None, 1)[0]) for line in listed.splitlines() if re.search(pattern, line)]


def _wait_for_work(process: subprocess.Popen[bytes]) -> list[int]:
    """The workers that run tasks of the command, as soon as there are any; none where it ends before."""
    while process.poll() is None:
        if found := _processes(r"ray::_(timed|simulated|read_one)"):
            return found
        time.sleep(0.02)
    return []


def _nothing(process: subprocess.Popen[bytes]) -> None:
    """Let the cluster work."""


def _kill_workers(process: subprocess.Popen[bytes]) -> None:
    """Kill every worker that runs a task, three times."""
    for _ in range(3):
        for worker in _wait_for_work(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        time.sleep(0.5)


def _kill_node(process: subprocess.Popen[bytes]) -> None:
    """Kill the node that was started last, with all that runs on it."""
    _wait_for_work(process)
    os.kill(_processes(r"raylet/raylet ")[-1], signal.SIGKILL)


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    _wait_for_work(process)
    process.send_signal(signal.SIGINT)


def _kill_cluster(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole cluster: what the driver is connected to is gone for good."""
    _wait_for_work(process)
    for part in _processes(r"raylet/raylet |gcs_server"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(part, signal.SIGKILL)


def _answer(text: bytes) -> object:
    """The printed answer without its times; None where nothing was printed. ValueError where it is no JSON."""
    if not text.strip():
        return None
    found = json.loads(text)
    return {key: value for key, value in found.items() if key not in TIMES}


def _outcome(scenario: Scenario, address: str, expected: object) -> tuple[str, bool, float]:
    """How the scenario ended, in words; whether as expected; and the seconds it took."""
    begun = time.perf_counter()
    words = [*_LUMOS, *scenario.words, "--engine", "ray", "--ray-address", address]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        scenario.damage(process)
        try:
            out, err = process.communicate(timeout=HUNG_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return "hung", False, HUNG_S
    seconds = time.perf_counter() - begun
    try:
        answer = _answer(out)
    except ValueError:
        return f"standard output is no JSON: {out[:80]!r}", False, seconds
    ok = process.returncode == scenario.status and answer == (expected if scenario.status == 0 else None)
    if process.returncode == 0:
        return "the answer of one machine" if answer == expected else "another answer", ok, seconds
    said = err.decode(errors="replace").strip().rpartition("\n")[2].rpartition("] ")[2].removeprefix("lumos: ")
    return f"status {process.returncode}: {said[:70]}…", ok and bool(said), seconds


def _ranks(folder: Path, count: int = 16) -> list[str]:
    """Files of a predicted job of `count` ranks; the command that replays them."""
    words = [
        "predict",
        "--model",
        "llama2-7b",
        "--cluster",
        "a100-80gb",
        "--gpus",
        str(count),
        "--dp",
        str(count),
        "--seq",
        "1024",
        "--global-batch",
        str(count),
    ]
    subprocess.run([*_LUMOS, *words, "--kineto", str(folder)], check=True, capture_output=True)
    return ["replay", str(folder), "--json"]


def main() -> None:
    """Run every scenario, print the table; see the module's text for the words of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="put the table into docs/limits.md")
    write = parser.parse_args().write
    rows, failed = [], 0
    with tempfile.TemporaryDirectory() as temporary:
        reading = _ranks(Path(temporary, "traces"))
        scenarios = [
            Scenario("a search, nothing lost", SEARCH, _nothing),
            Scenario("a search, all working workers killed three times", SEARCH, _kill_workers),
            Scenario("a search, one of two nodes killed", SEARCH, _kill_node),
            Scenario("a search, interrupted (Ctrl-C)", SEARCH, _interrupt, status=130),
            Scenario("a search, the whole cluster killed", SEARCH, _kill_cluster, status=1),
            Scenario("16 ranks read into a store of 80 MB", reading, _nothing),
            Scenario("16 ranks read, all working workers killed three times", reading, _kill_workers),
        ]
        alone: dict[int, object] = {}
        for scenario in scenarios:
            if id(scenario.words) not in alone:
                printed = subprocess.run([*_LUMOS, *scenario.words], check=True, capture_output=True).stdout
                alone[id(scenario.words)] = _answer(printed)
            with _cluster() as address:
                said, ok, seconds = _outcome(scenario, address, alone[id(scenario.words)])
            failed += not ok
            rows.append((scenario.name, said, "yes" if ok else "**no**", f"{seconds:.0f} s"))
            print(*rows[-1], sep=" | ", flush=True)
    table = markdown_table(["on two nodes of one processor each", "end", "as expected", "took"], rows)
    if write:
        write_section("docs/limits.md", "distributed", table)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
