"""Tensors for arguments of which only type, shape and strides are known.

No operator reads what another returned, so all values can be non-negative; roots and logarithms of negative ones are slow.

The profiler does not say which arguments of one shape are the same tensor. This matters for time because of the cache: an
operator mostly works on what the operators just before it used, while other tensors of a step are used again only after they have
left the cache. So an argument gets the tensor of its layout (type, extent, device, bound) that was used last, if an earlier
operator among the last few used it. Otherwise it gets the one that was used longest ago; a new tensor of the layout is added for
every RETURNS times that this happens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lumos.proxy.arguments import BYTES, INTEGERS, extent
from lumos.proxy.program import NON_NEGATIVE, StandIn, Storage

if TYPE_CHECKING:
    from lumos.proxy.arguments import TensorSpec

#: A tensor counts as still in use for so many operators after its last use (nested operators count too).
RECENT = 12

#: How often a step comes back to a tensor that has left the cache: in the forward pass, the backward pass and the optimizer.
RETURNS = 3


@dataclass(slots=True)
class _Ring:
    """The storages of one layout. used: the operator that used each last, in order of use. returns: how often no recently used
    storage was found."""

    used: dict[int, int] = field(default_factory=dict)
    returns: int = 0


class TensorPool:
    """Gives tensors to arguments. tensors, storages: all that were needed so far."""

    def __init__(self) -> None:
        self.tensors: list[StandIn] = []
        self.storages: list[Storage] = []
        self._rings: dict[tuple[str, int, str, int], _Ring] = {}
        self._numbers: dict[StandIn, int] = {}

    def take(self, spec: TensorSpec, device: str, bound: int, operator: int) -> int:
        """The index of a tensor for an argument of the operator with number `operator`. bound: as in `Storage`, for integers."""
        bound = bound if spec.dtype in INTEGERS else NON_NEGATIVE
        size = extent(spec.shape, spec.strides)
        ring = self._rings.setdefault((spec.dtype, size, device, bound), _Ring())
        storage = self._storage(ring, size * BYTES[spec.dtype], device, bound, operator)
        tensor = StandIn(spec.dtype, spec.shape, spec.strides, 0, storage)
        number = self._numbers.setdefault(tensor, len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(tensor)
        return number

    def _storage(self, ring: _Ring, nbytes: int, device: str, bound: int, operator: int) -> int:
        recent = [s for s, last in reversed(ring.used.items()) if operator - RECENT <= last < operator]
        if recent:
            storage = recent[0]
        else:
            ring.returns += 1
            idle = next((s for s, last in ring.used.items() if last < operator), None)
            if idle is None or len(ring.used) * RETURNS < ring.returns:
                idle = len(self.storages)
                self.storages.append(Storage(nbytes, device, bound))
            storage = idle
        ring.used.pop(storage, None)
        ring.used[storage] = operator
        return storage
