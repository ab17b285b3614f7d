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
from tools.fit_memory_bound import MemoryRows, fit_kernels, memory_rows

from lumos.cost.cluster import dtype_of, load_cluster
from lumos.cost.coefficients import GENERIC, Book, Coefficients, overlay, write_coefficients
from lumos.cost.fitting.calibrate import MeasuredRow, Table, fit_tables, read_table
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


def kernels(folder: Path) -> list[MemoryRows]:
    rows = []
    for name in TRACES:
        trace = read(str(folder / f"{name}.json.gz")).traces[0]
        rows += memory_rows(trace, accelerator_of(trace))
    return rows


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
    book = overlay(fit_tables(tables, generic=True), fit_kernels(kernels(Path(traces)), generic=True))
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
