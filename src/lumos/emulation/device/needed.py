"""Which operators of compiled ranges nothing needs.

A compiler drops an operator whose results nothing reads. A script that runs operator by operator does not: checkpointing runs a whole
layer again, also those operators whose results were kept or are read by the kept ones alone. So the record is read backwards. An
operator is needed where it makes or changes memory that a needed operator reads later, that is communicated later, or that the script
has still when the range is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.emulation.device.launch import results_of, tensors_of
from lumos.emulation.device.regions import gives_back

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lumos.emulation.device.regions import Region
    from lumos.emulation.record import Process


def unneeded(process: Process, working: Iterable[int], regions: Mapping[int, Region]) -> set[int]:
    """The operators that a compiler drops, by their index. working: those that launch anything."""
    given_back = gives_back(process)
    moments = [(process.operators[i].begin, i) for i in working]
    moments += [(exchange.begin, -1 - i) for i, exchange in enumerate(process.exchanges)]
    read: set[int] = set()
    dropped: set[int] = set()
    for _, i in sorted(moments, reverse=True):
        if i < 0:
            read.update(process.exchanges[-1 - i].storages)
            continue
        operator = process.operators[i]
        made = {tensor.storage for tensor in results_of(operator)}
        if i in regions and made and read.isdisjoint(made) and not any(given_back(regions[i], storage) for storage in made):
            dropped.add(i)
        else:
            read.update(tensor.storage for tensor in tensors_of(operator.inputs))
    return dropped
