"""`lumos.calibrate`: the cost models fitted to measured times, or to the traces of a job.

lumos.calibrate("gemm.csv", output="mine.toml")
lumos.calibrate("traces/", on="h100")
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from lumos.cost.cluster import load_cluster
from lumos.cost.coefficients import Book, Coefficients, write_coefficients
from lumos.cost.fitting.models import fit_tables
from lumos.cost.fitting.tables import read_table
from lumos.cost.from_trace import ClassRatio, accelerator_of, calibrated, class_ratios
from lumos.errors import UsageError
from lumos.result import Shown, plain
from lumos.trace.source import Source, as_job, keep_inputs, paths_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from lumos.diagnostics import Diagnostic


class FittedSet(NamedTuple):
    """One set of coefficients, with its model, accelerator (or "generic") and variant (a dtype, a kernel, …)."""

    model: str
    accelerator: str
    variant: str
    coefficients: Coefficients


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Calibration(Shown):
    """The result of a calibration. book: the coefficients, by model, accelerator and variant. classes: for a trace, measured / modelled
    by class of operator. diagnostics: what was left out."""

    book: Book
    classes: tuple[ClassRatio, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def sets(self) -> Iterator[FittedSet]:
        """Every set of coefficients in the book."""
        for model, accelerators in self.book.items():
            for accelerator, variants in accelerators.items():
                for variant, coefficients in variants.items():
                    yield FittedSet(model, accelerator, variant, coefficients)

    def to_dict(self) -> dict[str, Any]:
        """The keys of `lumos calibrate --json`."""
        fitted = [
            {"model": s.model, "accelerator": s.accelerator, "variant": s.variant, **msgspec.to_builtins(s.coefficients)} for s in self.sets
        ]
        return {"coefficients": fitted, "classes": plain(self.classes), "diagnostics": plain(self.diagnostics)}

    def described(self) -> str:
        """How many sets of coefficients there are, and of which models."""
        sets = list(self.sets)
        return f"{len(sets)} sets of coefficients: {', '.join(dict.fromkeys(s.model for s in sets))}"

    def write(self, path: str | os.PathLike[str], sources: Sequence[str] = ()) -> None:
        """Write the coefficients as a TOML file, for `--coefficients`. Raises LumosError where it cannot be written."""
        names = f" from {', '.join(Path(source).name for source in sources)}" if sources else ""
        write_coefficients(self.book, Path(path), f"Written by lumos calibrate{names}")


def calibrate(source: Source, *, output: str | os.PathLike[str] | None = None, on: str | None = None) -> Calibration:
    """Fit the cost models to CSV tables of measured times (gemm, attention or collective), or to the traces of a job.

    source: tables, or what `lumos.read` takes or returns; `lumos.cost.fitting.tables` lists the columns of tables. output: file to
    write the coefficients to. on: the cluster with the device of a trace, where the trace's header does not name a known one.
    Raises UsageError for tables and traces together, LumosError where a table cannot be used or the device of a trace is not known.
    """
    keep_inputs(source, output)
    paths = paths_of(source)
    tables = [path.endswith(".csv") for path in paths]
    if any(tables) and not all(tables):
        raise UsageError("calibrate takes CSV tables or traces, not both at once")
    if any(tables):
        read = [read_table(Path(path)) for path in paths]
        calibration = Calibration(fit_tables(read), diagnostics=tuple(d for table in read for d in table.diagnostics))
    else:
        trace = as_job(source).traces[0]  # the ranks of a job run the same kernels
        accelerator = load_cluster(on).accelerator if on else accelerator_of(trace)
        ratios = class_ratios(trace, accelerator)
        calibration = Calibration(calibrated(ratios, accelerator), ratios)
    if output is not None:
        calibration.write(output, paths)
    return calibration
