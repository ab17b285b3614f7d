"""Operation-level jobs against what was measured and published: validation/results/operations.md.

    LUMOS_TRACES=... python -m validation.operations

A Megatron job (ByteDance-Seed/StragglerAnalysis, `data/*-ST.*`) whose public analysis is beside it, and a pipeline of
eight stages (AMD-AGI/Primus, `tools/visualization/pp_vis`). Constants are estimated on half of the steps and scored on
the other half as well, because a constant may not know the step that it is scored on.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
from tools.document import markdown_table
from tools.figures import write_result

from lumos.analyze.ranks.stragglers import Stragglers, stragglers
from lumos.analyze.replay import probes, replay
from lumos.graph.operations.graph import operations_graph
from lumos.graph.table import DEPENDENCY_NAMES, Graph, Kind
from lumos.simulation import simulate
from lumos.trace import read
from lumos.trace.table import Job

#: The first iteration of the pipeline job is a warm-up.
PIPELINE_STEPS = range(2, 21)


def main() -> int:
    folder = os.environ.get("LUMOS_TRACES")
    if folder is None:
        print("LUMOS_TRACES is not set: the public traces are not here", file=sys.stderr)
        return 1
    straggler, pipeline = (read(Path(folder) / name) for name in ("straggler-8gpu", "pipeline-8gpu"))
    published = json.loads((Path(folder) / "straggler-8gpu" / "result.json").read_text())
    parts = [
        "Written by `python -m validation.operations` with `LUMOS_TRACES` set. Errors are mean absolute errors over the steps"
        " of all ranks.",
        _straggler(straggler, published),
        _shares(stragglers(operations_graph(straggler), straggler, "pooled-mean"), published),
        _pipeline(pipeline),
    ]
    write_result("validation/results/operations.md", "\n\n".join(parts))
    return 0


def _straggler(job: Job, published: dict[str, dict[str, float]]) -> str:
    graph = operations_graph(job)
    numbers = sorted(_number(s.name) for s in graph.steps if s.rank == job.ranks[0])
    first, second = numbers[::2], numbers[1::2]
    result = stragglers(graph, job, "pooled-mean")
    base, ideal = (statistics.fmean(published[key].values()) for key in ("step_t_base", "step_t_noblk"))
    slow = [r for r in probes(graph).slow_rank if r is not None]
    without = replace(graph, ignored=frozenset(DEPENDENCY_NAMES["launch"]))
    return markdown_table(
        ("straggler job, 8 ranks, 32 steps", "to reach", "reached"),
        [
            ("measured step replayed, one gap an operation kind", "≤ 1 %", _percent(_error(graph))),
            ("the same, gaps from every other step, scored on the rest", "≤ 1 %", _percent(_error(operations_graph(job, first), second))),
            ("the same without gaps", "≤ 2 %", _percent(_error(without))),
            (
                "ideal step against the published",
                "within 1 %",
                _percent(result.ideal_step_ns / 1e9 / ideal - 1, signed=True),
            ),
            (f"measured / ideal (published {base / ideal:.3f})", "1.201 ± 0.01", f"{result.slowdown:.3f}"),
            ("without launch delay / ideal", "1.179 ± 0.01", f"{result.slowdown_without_launch_delay:.3f}"),
            ("`slow_rank`: the other ranks (1.00 is a copy)", "–", f"{min(slow):.2f} to {max(slow):.2f}"),
        ],
    )


def _shares(result: Stragglers, published: dict[str, dict[str, float]]) -> str:
    """Slowdown of the ideal step where one stage or class alone keeps its times, beside the public analysis."""
    by_stage, by_class = published["blocking_decompose_by_stage"], published["blocking_decompose_by_optype"]
    rows = [(f"stage {s.stage}", f"{by_stage[str(s.stage)]:.3f}", f"{s.slowdown:.3f}") for s in result.by_stage]
    rows += [(c.name, f"{by_class[c.name]:.3f}", f"{c.slowdown:.3f}") for c in result.by_class if c.name in by_class]
    return markdown_table(("slowdown by one alone", "published", "`lumos stragglers --ideal pooled-mean`"), rows)


def _pipeline(job: Job) -> str:
    even, odd = [n for n in PIPELINE_STEPS if n % 2 == 0], [n for n in PIPELINE_STEPS if n % 2]
    graph = operations_graph(job, even)
    free = np.where((graph.event < 0) & (graph.kind != Kind.OPERATOR), 0, graph.duration)
    slow = [r for r in probes(graph).slow_rank if r is not None]
    return markdown_table(
        ("pipeline job, 8 stages, iterations 2 to 20", "to reach", "reached"),
        [
            ("constants from even iterations, scored on odd ones", "≤ 0.3 %", _percent(_error(graph, odd))),
            ("worst odd iteration of a rank", "–", _percent(_error(graph, odd, worst=True))),
            ("plain 1F1B: transfers and gaps free", "about 1 %", _percent(_error(replace(graph, duration=free), odd))),
            ("`slow_rank`: the other ranks (1.00 is a copy)", "–", f"{min(slow):.2f} to {max(slow):.2f}"),
        ],
    )


def _error(graph: Graph, steps: Collection[int] | None = None, worst: bool = False) -> float:
    """Mean (or worst) absolute step error over the ranks, of the steps of these numbers or all."""
    result = replay(graph, simulate(graph))
    errors = [abs(s.error) for s in result.steps if s.error is not None and (steps is None or _number(s.name) in steps)]
    return max(errors) if worst else statistics.fmean(errors)


def _number(name: str) -> int:
    return int(name.rpartition("#")[2])


def _percent(value: float, signed: bool = False) -> str:
    return f"{value:+.2%}".replace("%", " %") if signed else f"{value:.2%}".replace("%", " %")


if __name__ == "__main__":
    sys.exit(main())
