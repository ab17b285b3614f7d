"""Write how each profile did on each accelerator that published runs name to src/lumos/plan/data/evidence.json.

    LUMOS_MEASURED=... python -m validation.profiles

Every complete row of the tables is predicted, at most `MOST` of a source, and the runs of the papers in `validation/runs.py`. For each
profile and accelerator the file holds how many rows and sources there are, and the error that four of five rows stay within. Intervals
follow it (`lumos.prediction.step_time`); no prediction does.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from validation.runs import achieved, korthikanti, llama_runs

from lumos.errors import LumosError
from lumos.plan.profiles import EVIDENCE
from lumos.prediction.step_time import central_time
from lumos.prediction.validate import Pricers, PublishedRun, job_of, published_step, read_tables

#: Rows of a source that are predicted; of more, every second, third, … is taken.
MOST = 40
#: Tables with columns of their own.
OTHERS = {"attention", "collectives", "gemm", "lumos_paper", "models", "primus_pipeline"}


def main() -> int:
    folder = os.environ.get("LUMOS_MEASURED")
    if not folder:
        print("LUMOS_MEASURED is not set: no published runs are at hand", file=sys.stderr)
        return 1
    by_source: dict[str, list[PublishedRun]] = defaultdict(list)
    for row in read_tables([str(path) for path in sorted(Path(folder).glob("*.csv")) if path.stem not in OTHERS]):
        if not row.get("notes", "").startswith("["):  # what decides the time is not printed
            by_source[row["source"]].append(row)
    pricers = Pricers()
    errors: dict[tuple[str, str], list[tuple[str, float]]] = defaultdict(list)
    for source, rows in by_source.items():
        for row in rows[:: -(-len(rows) // MOST)]:
            try:
                measured, job = published_step(row), job_of(row)
                step = central_time(job, pricers.of(job.cluster))
            except LumosError:
                continue
            errors[job.framework.name, job.cluster.accelerator.name].append((source, abs(math.log(measured / step))))
    for s in korthikanti():
        if s.job is not None:
            errors[s.job.framework.name, s.job.cluster.accelerator.name].append((s.source, abs(math.log(1 + s.error))))
    for predicted, published in llama_runs():
        job = predicted.job
        errors[job.framework.name, job.cluster.accelerator.name].append(("Llama 3", abs(math.log(achieved(predicted) / published))))
    found: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
    for (profile, accelerator), rows in sorted(errors.items()):
        within = math.exp(np.quantile([error for _, error in rows], 0.8)) - 1
        found[profile][accelerator] = {"rows": len(rows), "sources": len({s for s, _ in rows}), "within": round(within, 3)}
    lines = [f"{json.dumps(profile)}: {json.dumps(each)}" for profile, each in found.items()]
    EVIDENCE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
