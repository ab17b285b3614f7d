"""Tensors for arguments of which only type, shape and strides are known.

No operator reads what another returned, so values may all be non-negative: roots and logarithms of others are slow.

The profiler does not say which tensors of one shape are the same. What matters for time is the cache: operators that
follow each other mostly work on what the previous ones just touched, and the rest of a step comes back to memory that
went cold. So an argument takes the tensor of its layout that was used last, if that was within the last few operators
and by another of them, and else the one that was used longest ago, from as many as there were such returns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lumos.proxy.arguments import TensorSpec
from lumos.proxy.elements import BYTES, INTEGERS, extent
from lumos.proxy.program import NON_NEGATIVE, Storage, Tensor

#: Operators (nested ones counted) within which a tensor is taken to be still in use.
RECENT = 12

#: A layout comes back in forward, in backward and in the optimizer: so many returns are to one tensor.
RETURNS = 3


@dataclass(slots=True)
class _Ring:
    """The storages of one layout, by the operator that used each last; the order of the dict is that of use."""

    used: dict[int, int] = field(default_factory=dict)
    returns: int = 0


class TensorPool:
    """Hands out tensors; `tensors` and `storages` grow as arguments ask for them."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.storages: list[Storage] = []
        self._rings: dict[tuple[str, int, str, int], _Ring] = {}
        self._numbers: dict[Tensor, int] = {}

    def take(self, spec: TensorSpec, device: str, bound: int, operator: int) -> int:
        """The number of a tensor for an argument of the operator with number `operator`."""
        bound = bound if spec.dtype in INTEGERS else NON_NEGATIVE
        size = extent(spec.shape, spec.strides)
        ring = self._rings.setdefault((spec.dtype, size, device, bound), _Ring())
        storage = self._storage(ring, size * BYTES[spec.dtype], device, bound, operator)
        tensor = Tensor(spec.dtype, spec.shape, spec.strides, 0, storage)
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
