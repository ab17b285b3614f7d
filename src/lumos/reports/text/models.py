"""Print the answer of `lumos models`: the list, or one model with its sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.reports.text.format import ShownField, listing, sentence, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from lumos.model import Model


def print_models(console: Console, models: Sequence[Model]) -> None:
    """Print the list with the sizes in which models differ most; `print_model` shows the others."""
    sizes: dict[str, ShownField] = {"layers": "layers", "hidden": "hidden", "heads": "heads", "kv heads": "kv_heads"}
    counts: dict[str, ShownField] = {"parameters": lambda m: _billions(m.parameters), "active": lambda m: _billions(m.active_parameters)}
    listing(console, models, {"model": "name", **counts, **sizes}, most=len(models))
    console.print("  active: of a token; lumos models NAME shows one with all its sizes")


def print_model(console: Console, model: Model) -> None:
    """Print one model with its sizes."""
    sentence(console, f"{model.name}: {model.parameters:,} parameters, {model.active_parameters:,} of them active")
    experts = model.experts
    rows = [
        ("layers", f"{model.layers:,}"),
        ("hidden", f"{model.hidden:,}"),
        ("heads", f"{model.heads:,}"),
        ("kv heads", f"{model.kv_heads:,}"),
        ("ffn", f"{model.ffn:,}" if model.ffn else "–"),
        ("vocabulary", f"{model.vocab:,}"),
        ("experts", f"{experts.per_token} of {experts.count}, each of ffn {experts.ffn:,}" if experts else "none"),
    ]
    table(console, ("", "size"), rows)


def _billions(count: int) -> str:
    return f"{count / 1e9:.2f} B"
