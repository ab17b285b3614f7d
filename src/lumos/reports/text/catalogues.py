"""Print the answers of `lumos clusters` and `lumos models`: the list, or one entry with its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from lumos.reports.text.format import ShownField, heading, paragraph, sentence, table
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console

    from lumos.cost.cluster import Cluster
    from lumos.cost.facade import Calibration
    from lumos.model import Model

#: The SI units of values, by the ending of their key; the first ending that fits counts, so longer ones come first.
UNITS = {"_bytes_per_s": "B/s", "_bytes": "B", "_hz": "Hz", "_s": "s"}


def print_clusters(console: Console, clusters: Sequence[Cluster]) -> None:
    """Print the list."""
    columns: Mapping[str, ShownField] = {
        "name": "name", "memory": _memory, "peak TFLOP/s": _peak, "per node": "node.devices", "description": "description",
    }  # fmt: skip
    table(console, columns, clusters, "peak: dense; –: not published; lumos clusters NAME shows one", most=len(clusters))


def print_cluster(console: Console, cluster: Cluster) -> None:
    """Print every number of one cluster with its source."""
    sentence(console, f"{cluster.name}: {cluster.description}")
    sources: dict[str, int] = {}
    stated = {key: value for key, value in msgspec.structs.asdict(cluster.operation).items() if value is not None}
    published = {name: msgspec.structs.asdict(getattr(cluster, name)) for name in ("accelerator", "node", "fabric")}
    for section, values in (published | ({"operation": stated} if stated else {})).items():
        rows = []
        for key, value in values.items():
            source = cluster.source.get(f"{section}.{key}")
            mark = f"[{sources.setdefault(source, len(sources) + 1)}]" if source else ""
            rows += [(name, shown, mark) for name, shown in _entries(key, value)]
        table(console, ("", "value", "source"), rows, title=section)
    if sources:
        heading(console, "sources")
    for source, number in sources.items():
        paragraph(console, f"[{number}] {source}")


def _memory(cluster: Cluster) -> str:
    nbytes = cluster.accelerator.memory_bytes
    return f"{nbytes / 1e9:.0f} GB" if nbytes else "–"


def _peak(cluster: Cluster) -> str:
    rates = cluster.accelerator.peak_flops
    return next((f"{rates[d] / 1e12:.4g} {d}" for d in (DType.BF16, DType.FP16, DType.FP32) if d in rates), "–")


def _entries(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """(key, value as text): one pair for a plain value, one for each entry of a table or of a list of tables."""
    if isinstance(value, dict) and value:
        yield from ((f"{key}.{name}", _si(rate, "FLOP/s")) for name, rate in value.items())
    elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
        for level in value:
            yield f"{key}.{level.name}", f"{level.devices:,} devices, oversubscription {level.oversubscription:g}"
    else:
        yield key, _in_words(key, value)


def _in_words(key: str, value: Any) -> str:
    if value is None or value == {}:
        return "not published"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, str):
        return value
    unit = next((unit for ending, unit in UNITS.items() if key.endswith(ending)), None)
    return f"{value:,g}" if unit is None else _si(value, unit)


def _si(value: float, unit: str) -> str:
    """A value with four digits and a decimal prefix: 3.35 TB/s, 4.5 µs."""
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0), ("m", 1e-3)):
        if value >= scale and not (prefix == "P" and unit == "FLOP/s"):
            return f"{value / scale:.4g} {prefix}{unit}"
    return f"{value / 1e-6:.4g} µ{unit}"


def print_models(console: Console, models: Sequence[Model]) -> None:
    """Print the list with the sizes in which models differ most; `print_model` shows the others."""
    sizes: dict[str, ShownField] = {"layers": "layers", "hidden": "hidden", "heads": "heads", "kv heads": "kv_heads"}
    counts: dict[str, ShownField] = {"parameters": lambda m: _billions(m.parameters), "active": lambda m: _billions(m.active_parameters)}
    note = "active: of a token; lumos models NAME shows one with all its sizes"
    table(console, {"model": "name", **counts, **sizes}, models, note, most=len(models))


def print_model(console: Console, model: Model) -> None:
    """Print one model with its sizes."""
    sentence(console, f"{model.name}: {model.parameters:,} parameters, {model.active_parameters:,} of them active")
    experts = model.experts
    sizes = {name.replace("_", " "): getattr(model, name) for name in ("layers", "hidden", "heads", "kv_heads", "ffn")}
    of_each = f"{experts.per_token} of {experts.count}, each of ffn {experts.ffn:,}" if experts else "none"
    rows = [*((name, size or "–") for name, size in sizes.items()), ("vocabulary", model.vocab), ("experts", of_each)]
    table(console, ("", "size"), rows)


def _billions(count: int) -> str:
    return f"{count / 1e9:.2f} B"


def print_calibration(console: Console, calibration: Calibration) -> None:
    """Print the fitted sets or, of a trace, what its operators take against the models."""
    of_class: dict[str, ShownField] = {
        "model": "model", "class": "variant", "operators": "operators", "shapes": "shapes",
        "time ms": lambda r: f"{r.measured_ns / 1e6:.2f}",
        "measured / modelled": lambda of: f"{of.ratio:.2f}", "80 % within": lambda of: f"{of.low:.2f} to {of.high:.2f}",
    }  # fmt: skip
    of_set: dict[str, ShownField] = {
        "model": "model", "accelerator": "accelerator", "set": "variant", "rows": "coefficients.rows", "numbers": "coefficients.count",
        "median error": "coefficients.median_error", "p90 error": "coefficients.p90_error",
    }  # fmt: skip
    sets = list(calibration.sets)
    table(console, of_class, calibration.classes, most=len(calibration.classes))
    table(console, of_set, [] if calibration.classes else sets, most=len(sets))
    for note in calibration.diagnostics:
        console.print(f"note: {note.message}", markup=False)
