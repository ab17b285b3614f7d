"""How many weights the measured model has, from the shapes of the operators that use them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from lumos.cost.operators import Shape, elements
from lumos.segment.dimensions import Resize, Shapes
from lumos.segment.products import ShapedOperator, product
from lumos.vocabulary import Phase

if TYPE_CHECKING:
    from lumos.segment.segment import Segmentation
    from lumos.trace.table import Trace


def weights(segmentation: Segmentation, position: int, trace: Trace, resize: Resize) -> dict[int, int]:
    """Elements of the weights by layer (-1: outside the layers) of the rank at `position`, after `resize` has changed the shapes.

    Empty where the trace has no forward pass with shapes.
    """
    shapes, u, labels = Shapes(trace), segmentation.units[position], segmentation.unit_labels[position]
    total: dict[int, int] = defaultdict(int)
    for i in _first_whole_pass(segmentation, position):
        o = shapes[int(u.row[i])]
        inside = labels[i].layer >= 0
        if o is not None:
            total[labels[i].layer] += sum(elements(resize.weight(s, inside)) for s in weight_shapes(o))
    return dict(total)


def weight_shapes(o: ShapedOperator) -> tuple[Shape, ...]:
    """Shapes of the inputs of a forward operator that are weights."""
    if o.name == "aten::embedding":
        return o.shapes[:1]
    if any(word in o.name for word in ("norm", "linear", "conv")):
        return tuple(s for s in o.shapes[1:] if s)
    of_experts = "grouped_mm" in o.name and len(o.shapes) > 1 and len(o.shapes[1]) == 3  # one matrix for each expert
    return o.shapes[1:2] if of_experts or (product(o) is not None and len(o.shapes[1]) == 2) else ()


def _first_whole_pass(segmentation: Segmentation, position: int) -> range:
    """Units of the first of those forward passes that have the most layers."""
    labels = segmentation.unit_labels[position]
    best, begin, most = range(0), 0, -1
    for i in range(len(labels) + 1):
        if i < len(labels) and labels[i].phase == Phase.FORWARD:
            continue
        seen = len({label.layer for label in labels[begin:i]})
        if i > begin and seen > most:
            best, most = range(begin, i), seen
        begin = i + 1
    return best
