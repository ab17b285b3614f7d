"""Operators that are bound by memory: which kernels they launch, and the bytes that each reads and writes.

`data/operators.toml` has the operators. An operator that no table names, such as a kernel of the user's own, passes once over what
it is given and what it gives back.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lumos.blocks.work import Traffic
from lumos.cost.memory_bound_model import POINTWISE, REDUCTION, STRIDED
from lumos.emulation.device.elementwise import elementwise
from lumos.emulation.device.launch import Launch, has_channels_last, in_lines, nbytes, results_of, tensors_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.emulation.record import Operator, Tensor

_FILE = Path(__file__).parent / "data" / "operators.toml"
#: The kernel of element-wise operators in the table.
_ELEMENTWISE = "elementwise_kernel"
_TERM = re.compile(r"(?:(?P<factor>\d+) )?(?P<side>in|out)(?:(?P<all>\*)|(?P<first>\d+)(?P<on>\+)?)")


class TableEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"kernel_class": "class"}):
    """One kernel of the listed operators; none where `kernel` is empty. channels_last: the kernel for images that lie so, where that has
    another name. reads, writes: terms as the file explains them. copies: it only copies, and is as fast as element-wise work where rows
    stay rows."""

    operators: tuple[str, ...]
    kernel: str = ""
    channels_last: str = ""
    kernel_class: str = POINTWISE
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    copies: bool = False


@cache
def entries() -> dict[str, tuple[TableEntry, ...]]:
    """The entries of every operator, by its base name."""
    table = msgspec.convert(tomllib.loads(_FILE.read_text(encoding="utf-8")), dict[str, list[TableEntry]])
    out: dict[str, tuple[TableEntry, ...]] = {}
    for entry in table["entry"]:
        for name in entry.operators:
            out[name] = (*out.get(name, ()), entry)
    return out


def table_kernels(name: str, operator: Operator) -> list[Launch] | None:
    """What an operator of this base name launches by the table; None where the table does not have it."""
    known = entries().get(name)
    if known is None:
        return None
    inputs, results = list(tensors_of(operator.inputs)), results_of(operator)
    out = []
    for entry in known:
        # The few values that a reduction gives count for nothing where a recording does not have them.
        outputs = results if operator.outputs or entry.kernel_class != REDUCTION else []
        launch = _launch(entry, name, operator, inputs, outputs) if entry.kernel else None
        out += [launch] if launch is not None else []
    return out


def unlisted(name: str, operator: Operator) -> list[Launch]:
    """One pass over everything that the operator is given and gives back, each piece of memory once; nothing for a view. One that returns
    nothing writes into what it is given."""
    inputs, outputs = list(tensors_of(operator.inputs)), results_of(operator)
    given = {tensor.storage for tensor in inputs}
    returns = any(each is not None for each in operator.outputs)
    if returns and not operator.name.endswith("_") and all(tensor.storage in given for tensor in outputs):
        return []
    size = sum(map(nbytes, inputs)) + sum(map(nbytes, outputs))
    return [Launch(f"{name}_kernel", Traffic(size, 1, STRIDED))] if size else []


def _launch(entry: TableEntry, name: str, operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Launch | None:
    size = sum(_bytes(term, inputs, outputs) for term in (*entry.reads, *entry.writes))
    if not size:
        return None
    if entry.kernel == _ELEMENTWISE and entry.reads:
        return Launch(f"{entry.kernel} [{name}]", elementwise(name, size, outputs, inputs, operator.inputs))
    kernel_class = entry.kernel_class
    if entry.copies and in_lines((*inputs, *outputs)):
        kernel_class = POINTWISE
    kernel = entry.channels_last if entry.channels_last and has_channels_last(inputs[0]) else entry.kernel
    return Launch(f"{kernel} [{name}]", Traffic(size, 1, kernel_class))


def _bytes(term: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    found = _TERM.fullmatch(term)
    assert found is not None, f"{_FILE}: {term!r} is no term"
    tensors = inputs if found["side"] == "in" else outputs
    first = int(found["first"] or 0)
    chosen = tensors[first:] if found["all"] or found["on"] else tensors[first : first + 1]
    return int(found["factor"] or 1) * sum(map(nbytes, chosen))
