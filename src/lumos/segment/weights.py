"""How many weights the measured model has, from the shapes of the operators that use them."""

from __future__ import annotations

from collections import defaultdict

from lumos.cost.operators import Shape, elements
from lumos.segment.dimensions import Operator, Resize, Shapes, product
from lumos.segment.segment import Segmentation
from lumos.trace.table import Trace
from lumos.vocabulary import Phase


def weights(found: Segmentation, position: int, trace: Trace, resize: Resize) -> dict[int, int]:
    """Elements of the weights by layer (-1: outside the layers) of the rank at `position`, under `resize`.

    Empty where the trace has no forward pass with shapes.
    """
    shapes, u, labels = Shapes(trace), found.units[position], found.unit_label[position]
    total: dict[int, int] = defaultdict(int)
    for i in _one_pass(found, position):
        o = shapes[int(u.row[i])]
        inside = labels[i].layer >= 0
        if o is not None:
            total[labels[i].layer] += sum(elements(resize.weight(s, inside)) for s in held(o))
    return dict(total)


def held(o: Operator) -> tuple[Shape, ...]:
    """Shapes of the inputs of a forward operator that are weights."""
    if o.name == "aten::embedding":
        return o.shapes[:1]
    if any(word in o.name for word in ("norm", "linear", "conv")):
        return tuple(s for s in o.shapes[1:] if s)
    return o.shapes[1:2] if product(o) is not None and len(o.shapes[1]) == 2 else ()


def _one_pass(found: Segmentation, position: int) -> range:
    """Units of the first forward pass that has all layers it can have."""
    labels = found.unit_label[position]
    best, begin, most = range(0), 0, -1
    for i in range(len(labels) + 1):
        if i < len(labels) and labels[i].phase == Phase.FORWARD:
            continue
        seen = len({label.layer for label in labels[begin:i]})
        if i > begin and seen > most:
            best, most = range(begin, i), seen
        begin = i + 1
    return best
