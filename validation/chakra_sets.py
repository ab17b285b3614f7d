"""Chakra sets of other hands, and exported jobs as a simulator runs them.

LUMOS_TRACES=... LUMOS_CHAKRA=... python -m validation.chakra_sets        writes validation/results/chakra-sets.md
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tools.document import markdown_table
from tools.figures import write_result

import lumos
from lumos.chakra.exporting import Exported
from lumos.errors import LumosError
from lumos.plan.words import JobWords
from lumos.simulation import simulate

#: Sets of other producers in LUMOS_TRACES, each a file of one rank: name, and where it comes from.
FILES = (
    ("old-schema.0.et.gz", "Chakra's test data, protobuf without a version"),
    ("old-schema.0.json.gz", "the same in JSON"),
    ("small.0.json.gz", "Chakra's test data, written by hand"),
    ("pytorch-et-1.0.2.json.gz", "PyTorch's observer: an execution trace, no Chakra set"),
)
#: A predicted GPT: two tensor-parallel and two data-parallel ranks.
GPT = JobWords(model="gpt3-1.3b", cluster="h100", gpus=4, global_batch=8, seq=1024, tp=2)


def main() -> int:
    folders = [os.environ.get(name) for name in ("LUMOS_TRACES", "LUMOS_CHAKRA")]
    if not all(folders):
        print("LUMOS_TRACES or LUMOS_CHAKRA is not set: the public sets are not here", file=sys.stderr)
        return 1
    traces, sets = (Path(str(folder)) for folder in folders)
    with tempfile.TemporaryDirectory() as scratch:
        parts = [
            "Written by `python -m validation.chakra_sets` with `LUMOS_TRACES` and"
            " `LUMOS_CHAKRA` set.",
            "Sets that other tools wrote: read, held to the simulator's rules, replayed. A set of one rank of a larger job breaks"
            " rules by what it lacks. Sets in the manner of further producers (microbenchmarks of one collective, samples of a generator,"
            " JSON) are written by hand in `tests/chakra/test_other_producers.py`, with times that can be worked out on paper.",
            markdown_table(("set", "written by", "ranks", "nodes", "rules", "replayed"), list(_others(traces, sets, Path(scratch)))),
            "Exported jobs as a simulator runs them: one node of each sort a rank at a time, communication at the prices of the written"
            " network. work: compute nodes on devices with known operations or bytes. roofline: compute too, at the peak rate and bandwidth"
            " of the cluster.",
            markdown_table(("job", "work", "replayed", "simulated", "roofline"), list(_jobs(traces, Path(scratch)))),
        ]
    write_result("validation/results/chakra-sets.md", "\n\n".join(parts))
    return 0


def _others(traces: Path, sets: Path, scratch: Path) -> Iterator[tuple[str, ...]]:
    stage = sets / "stage-16"
    finish = json.loads((stage / "finish.json").read_text())["finish_ns"]
    job = lumos.build(lumos.read(stage))
    end = simulate(job).end
    rank = np.array([job.processors[p].rank for p in job.processor])
    worst = max(abs(int(end[rank == int(r)].max()) / ns - 1) for r, ns in finish.items())
    yield ("stage-16", "STAGE", str(len(job.ranks)), f"{len(job):,}", _rules(stage), f"every rank within {worst:.4%} of the simulator")
    for name, producer in FILES:
        folder = scratch / name
        folder.mkdir()
        if name.endswith(".et.gz"):  # simulators read no gzip
            (folder / name.removesuffix(".gz")).write_bytes(gzip.decompress((traces / "chakra" / name).read_bytes()))
        else:
            shutil.copy(traces / "chakra" / name, folder / name)
        try:
            found = lumos.build(lumos.read(folder))
            run = simulate(found)
            answer = f"{(run.end.max() - run.start.min()) / 1e6:,.3f} ms"
            yield (name, producer, str(len(found.ranks)), f"{len(found):,}", _rules(folder), answer)
        except LumosError as error:
            yield (name, producer, "–", "–", "–", f"refused: {str(error).replace(str(folder), 'the folder')}")


def _rules(folder: Path) -> str:
    """Which rules a set breaks; a dash for one in JSON, which simulators do not read."""
    if not list(folder.glob("*.et")):
        return "–"
    checked = lumos.chakra.check(folder)
    counts = Counter(violation.rule for violation in checked.violations)
    return ", ".join(f"{rule} × {times:,}" for rule, times in counts.items()) or "kept"


def _jobs(traces: Path, scratch: Path) -> Iterator[tuple[str, ...]]:
    vgg, dlrm = traces / "vgg13-h100" / "kineto.json.gz", traces / "dlrm-8xv100"
    changed, predicted = scratch / "changed", scratch / "predicted"
    lumos.export(lumos.whatif(vgg, scale={"*wgrad*": 0.5}), chakra=changed)
    lumos.export(lumos.predict(**GPT, blocks=False), chakra=predicted)
    rows = (
        ("VGG-13, measured", vgg, "h100"),
        ("VGG-13, weight gradients twice as fast (what-if)", changed, "h100"),
        ("DLRM, 8 ranks, measured", dlrm, "v100"),
        ("GPT-3 1.3B, 4 ranks, predicted", predicted, "h100"),
    )
    for number, (name, source, cluster) in enumerate(rows):
        folders = {roof: scratch / f"{number}-{roof}" for roof in (False, True)}
        written = [lumos.chakra.export(source, to, astra_sim=True, cluster=cluster, roofline=roof) for roof, to in folders.items()]
        yield name, *_figures(*written)


def _figures(plain: Exported, roofline: Exported) -> tuple[str, ...]:
    assert plain.simulated_ns is not None and roofline.simulated_ns is not None
    base, times = plain.replayed_ns, (plain.simulated_ns, roofline.simulated_ns)
    return f"{plain.work:,} of {plain.compute:,}", f"{base / 1e6:.2f} ms", *(f"{100 * (ns / base - 1):+.1f} %" for ns in times)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LumosError as error:
        sys.exit(f"validation.chakra_sets: {error}")
