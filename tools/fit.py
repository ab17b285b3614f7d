"""Fit the coefficients that ship with Lumos to the published measurements and write them, with their residuals.

    LUMOS_MEASURED=… LUMOS_TRACES=… python -m tools.fit

reads gemm.csv, attention.csv and collectives.csv, and the kernels of the traces with shapes, and writes
src/lumos/cost/data/coefficients.toml.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from tools.fit_memory_bound import KernelRows, fit_kernels, kernel_rows

from lumos.cost.cluster import dtype_of, load_cluster
from lumos.cost.coefficients import GENERIC, Book, Coefficients, overlay, write_coefficients
from lumos.cost.fitting.fit import Fitted, MeasuredRows, summarise
from lumos.cost.fitting.models import across_nodes, fit_network, fit_set, fit_tables, of_rows, sets_of, sustained
from lumos.cost.fitting.tables import MeasuredRow, Table, read_table
from lumos.cost.from_trace import accelerator_of
from lumos.cost.gemm_model import gemm
from lumos.errors import LumosError
from lumos.trace import read

TARGET = Path(__file__).parents[1] / "src/lumos/cost/data/coefficients.toml"
HEADING = """Fitted by tools/fit.py to published measurements; see docs/cost-models.md. Do not edit by hand.
interval: ratio measured / modelled that 80 % of the held-out rows lie in; median_error, p90_error: |error| over them."""
FILES = ("gemm", "attention", "collectives")
#: Sources that measured something else: the best of a search over shapes (not the time of a given shape), and kernels without
#: the cast. Within a node, only rows of WITHIN_A_NODE are fitted; other logs contain host time or are of older versions of NCCL,
#: and are only used to check the fit.
SEARCHED = "ml-engineering MAMF"
OTHER_QUESTIONS = (SEARCHED, "DeepGEMM README")
WITHIN_A_NODE = ("NVIDIA aiconfigurator NCCL database",)
#: Multi-node rows whose nodes differ from the accelerator's usual ones, by a word of the `interconnect` column.
FABRICS = {"EFA": "b200-efa", "A3 Mega": "h100-a3mega", "4x HDR": "a100-40gb-4nic"}
#: Multiplications of an accelerator to which the set of all accelerators together is fitted, about.
MOST_OF_AN_ACCELERATOR = 800


def comparable(table: Table) -> Table:
    """The table without rows that measured something else; rows across nodes get the cluster of their network."""
    rows = [r for r in table.rows if r["source"] not in OTHER_QUESTIONS]
    if table.kind == "collective":
        rows = [on_its_fabric(r) for r in rows if float(r["n_nodes"]) > 1 or r["source"] in WITHIN_A_NODE or r["gpu"] == "V100"]
    return replace(table, rows=tuple(rows))


def on_its_fabric(row: MeasuredRow) -> MeasuredRow:
    name = next((cluster for word, cluster in FABRICS.items() if word in row["interconnect"]), None)
    return {**row, "gpu": name} if name and float(row["n_nodes"]) > 1 else row


#: Traces with shapes on accelerators that Lumos knows, one per job.
TRACES = (
    "h100-inference/bert-small",
    "h100-inference/qwen1.5-0.5b",
    "h100-inference/vit-nsfw",
    "vgg13-h100/kineto",
    "dlrm-a100-rank3/rank3",
    "dlrm-8xv100/kineto-rank0",
    "resnet-ddp-mi300x/rank0",
    "resnet50-v100-old-schema/workers0",
    "switch-moe-a100/forward-4x128-tokens",
)


def kernels(folder: Path) -> list[KernelRows]:
    rows = []
    for name in TRACES:
        trace = read(str(folder / f"{name}.json.gz")).traces[0]
        rows += kernel_rows(trace, accelerator_of(trace))
    return rows


def together(table: Table) -> Book:
    """Sets over all accelerators: of multiplications by dtype, of attention kernels that were measured on several accelerators, of
    collectives by kind over the nodes that a switch joins."""
    own = sets_of(table)
    if table.kind == "collective":
        own = {(name, kind): rows for (name, kind), rows in own.items() if load_cluster(name).node.topology == "switch"}
    sets: dict[str, Coefficients] = {}
    for variant in sorted({variant for _, variant in own}):
        of_each = [rows for (_, other), rows in own.items() if other == variant]
        rows = [r for each in of_each for r in each]
        if table.kind == "gemm":
            sets[variant] = fit_apart(rows).coefficients
        elif table.kind == "collective" or len(of_each) > 1:
            sets[variant] = fit_set(table.kind, rows).coefficients
    return {table.kind: {GENERIC: sets}}


def fit_apart(rows: list[MeasuredRows]) -> Fitted:
    """One set of multiplications in a dtype over all accelerators, each of which is held out in turn."""
    thinned = [r.where(np.arange(len(r.seconds)) % max(1, len(r.seconds) // MOST_OF_AN_ACCELERATOR) == 0) for r in rows]
    modelled = []
    for r in rows:
        others = [other for other in thinned if other.cluster != r.cluster]
        modelled.append(r.modelled(of_rows("gemm", others)) if others else np.full(len(r.seconds), np.nan))
    held = np.concatenate(modelled)
    coefficients = of_rows("gemm", thinned)._replace(sustained=sustained(rows))
    return Fitted(summarise(coefficients, held, rows, ("m", "n", "k")), held)


def levelled(table: Table, book: Book) -> Book:
    """For accelerators with only the best point of a search: the generic GEMM set, scaled to that point."""
    own: dict[str, dict[str, Coefficients]] = {}
    for row in table.rows:
        accelerator, dtype = load_cluster(row["gpu"]).accelerator, dtype_of(row["dtype"])
        if row["source"] == SEARCHED and not accelerator.fitted_as and accelerator.name not in book["gemm"]:
            m, n, k = (float(row[c]) for c in "mnk")
            modelled = int(gemm(m, n, k, accelerator, dtype, book=book).time) / 1e3
            own.setdefault(accelerator.name, {})[dtype] = msgspec.structs.replace(
                book["gemm"][GENERIC][dtype],
                ratio=float(row["time_us"]) / modelled,
                rows=1,
                held_out_rows=0,
                median_error=None,
                p90_error=None,
            )
    return {"gemm": own}


def main() -> None:
    """Fit all coefficients, write them and print their errors."""
    folder, traces = os.environ.get("LUMOS_MEASURED"), os.environ.get("LUMOS_TRACES")
    if not folder or not traces:
        raise LumosError("tools/fit.py: set LUMOS_MEASURED and LUMOS_TRACES to the folders of the measurements and traces")
    tables = [comparable(read_table(Path(folder) / f"{name}.csv")) for name in FILES]
    book = fit_tables(tables)
    for table in tables:
        book = overlay(book, together(table))
    across = [rows for table in tables for rows in across_nodes(table)]
    book = overlay(book, {"network": {GENERIC: {"network": fit_network(across, book).coefficients}}})
    book = overlay(book, fit_kernels(kernels(Path(traces))))
    book = overlay(book, levelled(read_table(Path(folder) / "gemm.csv"), book))
    write_coefficients(book, TARGET, HEADING)
    for model, sets in book.items():
        for name, variants in sets.items():
            for variant, c in variants.items():
                errors = f"median {c.median_error or 0:.3f}  p90 {c.p90_error or 0:.3f}"
                print(f"{model:13s}{name:11s}{variant:15s}{c.rows:6d} rows  {c.count:3d} numbers  {errors}")


if __name__ == "__main__":
    try:
        main()
    except LumosError as error:
        sys.exit(str(error))
