"""The gradients of tables of embeddings, which the operator of their backward pass clears before it adds what belongs to each row.

How large such a gradient is follows from the table, and neither from its inputs nor from how many rows were looked up. So the kernel that
clears it follows the sizes of weights, and the operator's other kernels the tokens.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from lumos.changes.layout.rescale import multiply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.changes.layout.measured_layout import Factors
    from lumos.graph.table import Graph
    from lumos.segment.products import ShapedOperator
    from lumos.segment.sizes import Resized
    from lumos.simulation.durations import Mask
    from lumos.trace.table import Int64

#: How kernels are called that set a tensor to one value.
_CLEARS = re.compile(r"FillFunctor|memset", re.IGNORECASE)
#: The operator that makes the gradient of a table.
_OF_TABLE = "aten::embedding_dense_backward"


def clears_table(graph: Graph, tasks: Int64, operator: Int64, operators: Sequence[ShapedOperator]) -> Mask:
    """Which kernels clear the gradient of a table. operator: of each of `tasks` the position in `operators`."""
    of_table = np.array([o.name == _OF_TABLE for o in operators] or [False], bool)
    clears = np.array([_CLEARS.search(name) is not None for name in graph.names] or [False], bool)
    return np.asarray(of_table[operator] & clears[graph.name[tasks]], bool)


def resize_tables(
    columns: Sequence[Factors], graph: Graph, tasks: Int64, operator: Int64, operators: Sequence[ShapedOperator], change: Resized
) -> None:
    """Let the kernels that clear tables follow the tables' sizes, in place. columns: factor of every task, and the ends of its interval."""
    for index in np.unique(operator).tolist():
        width, rows = operators[index].shapes[0][-1], change.old.vocab or 1
        ratio = change.operator(index).shapes[0][-1] / max(width, 1) * (change.new.vocab or 1) / rows
        multiply(columns, tasks[operator == index], graph.duration, (ratio,) * 3, 0.0)
