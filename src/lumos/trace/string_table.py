"""The distinct strings of a trace, stored as UTF-8 bytes and decoded on access. Those of a small table are decoded once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


#: The most strings, and the most bytes of text, that are kept decoded: a graph is built by asking for names some twenty times.
_KEPT, _KEPT_BYTES = 20_000, 4 << 20


class StringTable(Sequence[str]):
    """Read-only strings: string i is bytes `offsets[i]:offsets[i + 1]` of `text`.

    text: uint8, UTF-8 (a surrogate without its partner is encoded like any other character, as "surrogatepass" does).
    offsets: int64, one more than there are strings, ascending from 0.
    """

    __slots__ = ("_decoded", "_offsets", "_text")

    def __init__(self, text: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        self._text = text
        self._offsets = offsets
        self._decoded: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"string {index} of {count}")
        index %= count
        if self._decoded is not None:
            return self._decoded[index]
        return self._text[self._offsets[index] : self._offsets[index + 1]].tobytes().decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        if self._decoded is not None:
            return iter(self._decoded)
        bounds = self._offsets.tolist()
        text = self._text.tobytes()
        strings = (text[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(bounds))
        if len(self) > _KEPT or len(text) > _KEPT_BYTES:
            return strings
        self._decoded = tuple(strings)
        return iter(self._decoded)
