"""Chakra against truth: linking, the round trip, the rules, a simulator's known times, synthetic sets.

LUMOS_TRACES=... LUMOS_CHAKRA=... python -m validation.chakra        writes validation/results/chakra.md
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.chakra.two_stages import FINISH, NETWORK, two_stages
from tools.document import markdown_table
from tools.figures import write_result
from validation import chakra_player, chakra_ranks, chakra_simulator, chakra_uneven
from validation.chakra_distances import distances

import lumos
from lumos.chakra.checks import check
from lumos.chakra.exporting import export_graph
from lumos.chakra.linked import Linked, link_traces
from lumos.chakra.lower import lower
from lumos.chakra.synthesis.model import learn
from lumos.chakra.synthesis.sample import sample
from lumos.errors import LumosError
from lumos.graph.table import Graph
from lumos.simulation import simulate
from lumos.trace.execution_trace import ExecutionTrace
from lumos.trace.execution_trace import read as read_observed
from lumos.trace.table import ABSENT, Trace

PAIRS = (
    ("simple-add", "execution-traces/simple-add.et", "execution-traces/simple-add.kineto"),
    ("vgg13-h100", "vgg13-h100/execution_trace", "vgg13-h100/kineto"),
    *((f"dlrm-8xv100, rank {r}", f"dlrm-8xv100/et-rank{r}", f"dlrm-8xv100/kineto-rank{r}") for r in range(8)),
)
#: Files of two ranks, and of two models. The two files of resnet-2080ti are published as a pair.
NO_PAIRS = (
    ("resnet-2080ti/execution_trace", "resnet-2080ti/kineto"),
    ("execution-traces/resnet-1gpu.et", "vgg13-h100/kineto"),
    ("execution-traces/gpt2.et", "vgg13-h100/kineto"),
    ("vgg13-h100/execution_trace", "resnet-2080ti/kineto"),
    *((f"dlrm-8xv100/et-rank{r}", f"dlrm-8xv100/kineto-rank{(r + 1) % 8}") for r in range(8)),
)
JOBS = (
    "dlrm-8xv100",
    "pipeline-8gpu",
    "straggler-8gpu/trace.parquet",
    "resnet-ddp-a100",
    "resnet-ddp-mi300x",
    "resnet-v100",
    "vgg13-h100/kineto.json.gz",
    "h100-inference/qwen1.5-0.5b.json.gz",
    "critical-path/alexnet.json.gz",
    "mi210-gpu-only",
)
#: The forms in which every job is written.
FORMS: Mapping[str, Mapping[str, bool]] = {
    "plain": {},
    "simulator": {"astra_sim": True},
    "exact": {"exact_ns": True},
}
#: The random sets, and the seed from which they are drawn; no other of its sets was looked at.
SETS, SEED = 200, 571113
SAMPLED = ("dlrm-8xv100", "resnet-ddp-a100", "vgg13-h100/kineto.json.gz", "straggler-8gpu/trace.parquet")


def main() -> int:
    root = os.environ.get("LUMOS_TRACES")
    if not root:
        print("LUMOS_TRACES is not set: the public traces are not here", file=sys.stderr)
        return 1
    simulator = os.environ.get("LUMOS_CHAKRA")
    if not simulator:
        print("LUMOS_CHAKRA is not set: the simulator's answers are not here", file=sys.stderr)
        return 1
    folder = Path(root)
    answers = chakra_simulator.rows(Path(simulator))
    links = [_linked(name, folder, one, other) for name, one, other in PAIRS]
    apart = [(one, other, link_traces(*_pair(folder, one, other))) for one, other in NO_PAIRS]
    trips = [_round_trip(folder, job) for job in JOBS]
    samples = [_sampled(folder, job) for job in SAMPLED]
    of_one = list(chakra_ranks.rows(folder))
    example = _example()
    summary = [
        ("kernels linked whose operator is in both files", "≥ 99 %", f"{100 * min(float(r.rate) for r in links):.1f} % at worst"),
        ("the same with the ids stripped: same links", "≥ 99 %", _stripped(folder)),
        ("pairs that are none: refused, with the reason", "all", f"{sum(bool(found.refuted) for *_, found in apart)} of {len(apart)}"),
        ("export → import → replay, whole microseconds", "≤ 0.1 %", f"{100 * max(abs(t.rounded) for t in trips):.4f} % at worst"),
        ("the same with exact nanoseconds", "0", f"{max(abs(t.exact) for t in trips)}"),
        ("exports that keep every rule", "all", f"{sum(t.ok for t in trips)} of {len(trips)} jobs, three forms each"),
        ("a hand-made job of four ranks, against the ASTRA-sim simulator", "≤ 0.1 %", f"{100 * example:.5f} %"),
        (f"collectives of {len(answers)} sets, against the simulator's finish", "each ≤ 1 %", _worst(answers)),
        ("a STAGE set of 16 ranks, every rank's finish", "≤ 1 %", f"{100 * chakra_simulator.whole_set(Path(simulator)):.4f} % at worst"),
        (
            f"{SETS} random collectives of groups, chunks and uneven arrivals, against a second implementation",
            "each ≤ 1 %",
            f"{100 * max(chakra_uneven.errors(SEED, SETS)):.4f} % at worst",
        ),
        (
            f"{SETS} of all ranks of two or three dimensions, each with an algorithm of its own; who never ends too",
            "each ≤ 1 %",
            f"{100 * max(chakra_uneven.errors(SEED, SETS, chakra_uneven.drawn_in_dimensions)):.4f} % at worst",
        ),
        (f"{SETS} random sets of compute, messages and memory, against a second player", "each ≤ 1 %", _second_player()),
        ("samples of the STAGE set, which has no times: step; the same priced anew", "≤ 5 %", _of_stage(Path(simulator) / "stage-16")),
        ("synthetic sets: replayed step", "≤ 5 %", f"{100 * max(abs(s.error) for s in samples):.2f} % at worst"),
        ("synthetic sets: marginals (Kolmogorov–Smirnov)", "≤ 0.1", f"{max(s.worst for s in samples):.3f} at worst"),
    ]
    write_result("validation/results/chakra.md", _section(summary, links, apart, trips, samples, of_one, answers))
    return 0


def _second_player() -> str:
    """The worst rank of the sets of one seed, in the player and in the replay of the imported set."""
    found = chakra_player.scores(SEED, SETS)
    ran = [one for one in found if not isinstance(one, str)]
    return f"{100 * max(map(max, ran)):.4f} % at worst, {len(found) - len(ran)} refused"


def _worst(answers: Sequence[chakra_simulator.Row]) -> str:
    return f"{100 * max(abs(row.error()) for row in answers):.4f} % at worst"


class _Row:
    """A named row of results, as attributes."""

    def __init__(self, **values: object) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> object:
        raise AttributeError(name)


def _pair(folder: Path, one: str, other: str) -> tuple[ExecutionTrace, Trace]:
    return read_observed(folder / f"{one}.json.gz"), lumos.read(folder / f"{other}.json.gz").traces[0]


def _linked(name: str, folder: Path, one: str, other: str) -> _Row:
    observed, trace = _pair(folder, one, other)
    found = link_traces(observed, trace, other_window="dlrm" in name)  # published as a pair, of two steps of one process
    return _Row(
        name=name,
        found=found,
        rate=found.link_rate,
        names=_agreement(observed, trace, found),
        sequence=_sequences(observed, trace, found),
    )


def _agreement(observed: ExecutionTrace, trace: Trace, found: Linked) -> float:
    """The share of matched rows whose names are the same in both files."""
    rows = np.flatnonzero(found.node >= 0)
    names = zip(trace.name[rows], observed.name[found.node[rows]], strict=True)
    return float(np.mean([trace.strings[a] == observed.strings[b] for a, b in names]))


def _sequences(observed: ExecutionTrace, trace: Trace, found: Linked) -> float | None:
    """Linked operators whose autograd sequence numbers differ by one constant (the files may be of two steps): evidence that
    linking does not use."""
    mine = trace.dense("Sequence number")
    rows = np.flatnonzero((found.node >= 0) & (mine >= 0))
    rows = rows[observed.sequence[found.node[rows]] >= 0]
    difference = mine[rows] - observed.sequence[found.node[rows]]
    return float(np.unique(difference, return_counts=True)[1].max() / len(rows)) if len(rows) else None


def _stripped(folder: Path) -> str:
    """The pair whose ids are known to be right, linked without using them."""
    observed, trace = _pair(folder, *PAIRS[0][1:])
    args = {key: column for key, column in trace.args.items() if key not in ("Record function id", "Ev Idx")}
    bare = replace(trace, args=args, external_id=np.full(len(trace), ABSENT, np.int64))
    with_ids, without = link_traces(observed, trace), link_traces(observed, bare)
    both = with_ids.node >= 0
    return f"{100 * float((with_ids.node[both] == without.node[both]).mean()):.1f} % of {int(both.sum())} operators"


def _round_trip(folder: Path, job: str) -> _Row:
    source = lumos.build(lumos.read(folder / job))
    step = _step(source)
    errors, ok = {}, True
    with tempfile.TemporaryDirectory() as scratch:
        for form, options in FORMS.items():
            export_graph(source, Path(scratch) / form, **options)
            ok &= check(Path(scratch) / form).ok
            errors[form] = _step(lumos.build(lumos.read(Path(scratch) / form))) - step
        nodes = len(lower(source))
    return _Row(name=job, nodes=nodes, rounded=errors["plain"] / step, exact=errors["exact"], ok=ok)


def _step(graph_: Graph) -> int:
    timeline = simulate(graph_)
    return int(timeline.end.max() - timeline.start.min())


def _example() -> float:
    """The largest relative error of a rank's end, for the hand-made job on the network that the simulator was given."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "set"
        export_graph(two_stages(), folder)
        (folder / "net.yml").write_text(NETWORK)
        job = lumos.build(lumos.read(folder))
        timeline = simulate(job)
    rank = np.array([job.processors[p].rank for p in job.processor])
    return max(abs(int(timeline.end[rank == r].max()) - wanted) / wanted for r, wanted in enumerate(FINISH))


def _of_stage(source: Path) -> str:
    """The worst step of samples of a set without times, as sampled and on the network and the system of the source."""
    played, priced = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(5):
            output = Path(scratch) / str(seed)
            found = lumos.chakra.synthesize(source, output=output, seed=seed)
            for name in ("net.yml", "sys.json", "mem.json"):
                shutil.copy(source / name, output)
            played.append(found.step_time_ns / found.source_step_time_ns[0] - 1)
            priced.append(int(simulate(lumos.chakra.priced(output, output / "net.yml")).end.max()) / found.source_step_time_ns[0] - 1)
    return f"{max(played, key=abs):+.2%}; {max(priced, key=abs):+.2%} at worst"


def _sampled(folder: Path, job: str) -> _Row:
    source = lumos.build(lumos.read(folder / job))
    workload, step = lower(source), _step(source)
    model = learn([workload])
    errors, worst, names = [], 0.0, set[str]()
    for seed in range(5):
        drawn = sample(model, seed).graph
        errors.append((_step(drawn) - step) / step)
        worst = max(worst, *distances(workload, lower(drawn)).values())
        names |= set(workload.names) & set(drawn.names)
    return _Row(name=job, nodes=len(workload), symbols=len(model.symbols), error=max(errors, key=abs), worst=worst, names=len(names))


def _section(
    summary: Sequence[tuple[str, str, str]],
    links: Sequence[_Row],
    apart: Sequence[tuple[str, str, Linked]],
    trips: Sequence[_Row],
    samples: Sequence[_Row],
    of_one: Sequence[chakra_ranks.OneRank],
    answers: list[chakra_simulator.Row],
) -> str:
    return "\n\n".join(
        [
            "Written by `python -m validation.chakra` with `LUMOS_TRACES` and `LUMOS_CHAKRA` set.",
            markdown_table(("what", "to reach", "reached"), summary),
            "Linking. names: operators matched whose names agree. sequence numbers: of the matched operators that have autograd's number"
            " in both files, those where it differs by one constant "
            "(DLRM's files are of two steps): linking does not use it, the vote on the pair does.",
            markdown_table(
                ("pair", "kernels", "operator in both", "linked", "rate", "by", "names", "sequence numbers"),
                [
                    (
                        r.name,
                        f"{r.found.kernels:,}",
                        f"{r.found.shared:,}",
                        f"{r.found.linked:,}",
                        f"{100 * r.rate:.1f} %",
                        "id" if r.found.by_method["id"] else "order of calls",
                        f"{100 * r.names:.1f} %",
                        "–" if r.sequence is None else f"{100 * r.sequence:.1f} %",
                    )
                    for r in links
                ],
            ),
            "Files that are no pair: their kernels linked, and what refutes them.",
            markdown_table(
                ("execution trace", "profiler file", "kernels", "linked", "refuted by"),
                [
                    (one, other, f"{found.kernels:,}", f"{found.linked}", ", ".join(v.fact for v in found.votes if v.confirms is False))
                    for one, other, found in apart
                ],
            ),
            "Round trip: the replayed job against the replay of its exported and imported set.",
            markdown_table(
                ("job", "nodes", "whole µs", "exact ns", "every rule kept"),
                [
                    (
                        t.name,
                        f"{t.nodes:,}",
                        f"{100 * t.rounded:+.5f} %",
                        f"{t.exact} ns",
                        "yes" if t.ok else "no",
                    )
                    for t in trips
                ],
            ),
            "The network model, and the model with one of its parts taken out, against the simulator's finish of sets of one collective.",
            markdown_table(
                ("model", "sets within 1 %"),
                [
                    (name, f"{chakra_simulator.within(answers, change)} of {len(answers)}")
                    for name, change in chakra_simulator.WITHOUT.items()
                ],
            ),
            "Synthetic sets, worst of five seeds.",
            markdown_table(
                ("source", "nodes", "symbols", "step", "KS, worst", "names"),
                [_sample_row(s) for s in samples],
            ),
            "All ranks of a job, made of the file of one: the step of a sample against that of the job as recorded or predicted. What the"
            " ranks do differently one of them cannot show: the ranks of DLRM hold other tables, and begin their one step apart.",
            markdown_table(
                ("job", "from rank", "step", "collectives, of all"),
                [(r.job, str(r.rank), f"{r.error:+.2%}", f"{r.collectives[0]:,} of {r.collectives[1]:,}") for r in of_one],
            ),
        ]
    )


def _sample_row(row: _Row) -> tuple[str, ...]:
    return (str(row.name), f"{row.nodes:,}", f"{row.symbols}", f"{100 * row.error:+.2f} %", f"{row.worst:.3f}", f"{row.names}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LumosError as error:
        sys.exit(f"validation.chakra: {error}")
