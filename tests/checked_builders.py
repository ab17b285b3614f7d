"""Check every graph that a test builds against its contract (`tests.graph_contract`), whichever builder made it.

Builders are replaced where they are defined, before what uses them is imported: from the bottom up, as imports run.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from importlib import import_module
from typing import Any

from tests.graph_contract import check_graph

from lumos.graph.table import Graph

#: Module and functions that make graphs.
BUILDERS = (
    ("lumos.graph.concatenate", ("concatenate",)),
    ("lumos.graph.operations.graph", ("operations_graph", "rearranged_graph")),
    ("lumos.graph.one_rank", ("rank_graph",)),
    ("lumos.graph.build", ("build",)),
    ("lumos.prediction.assemble", ("assemble",)),
    ("lumos.prediction.ranks", ("expand",)),
    ("lumos.changes.layout.place", ("assemble_pieces",)),
    ("lumos.changes.layout.capture", ("capture",)),
    ("lumos.changes.passes", ("rearranged",)),
    ("lumos.chakra.build", ("graph_of",)),
    ("lumos.emulation.device.ranks", ("all_ranks",)),
)


def install() -> None:
    """Make the builders check what they return."""
    for module, names in BUILDERS:
        loaded = import_module(module)
        for name in names:
            setattr(loaded, name, _checked(getattr(loaded, name)))


def _checked(builder: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(builder)
    def checking(*arguments: Any, **options: Any) -> Any:
        made = builder(*arguments, **options)
        for graph in _graphs(made):
            check_graph(graph)
        return made

    return checking


def _graphs(made: Any) -> Iterator[Graph]:
    """The graph itself, or the graphs among the fields of a value."""
    if isinstance(made, Graph):
        yield made
        return
    for name in getattr(made, "_fields", ()) or getattr(made, "__dataclass_fields__", ()):
        value = getattr(made, name)
        if isinstance(value, Graph) or name == "placed":
            yield from _graphs(value)
