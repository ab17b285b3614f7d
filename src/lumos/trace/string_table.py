"""The distinct strings of a trace, stored as UTF-8 bytes and decoded on access."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class StringTable(Sequence[str]):
    """Read-only strings: string i is bytes `offsets[i]:offsets[i + 1]` of `text`.

    text: uint8, UTF-8 (a surrogate without its partner is encoded like any other character, as "surrogatepass" does).
    offsets: int64, one more than there are strings, ascending from 0.
    """

    __slots__ = ("_offsets", "_text")

    def __init__(self, text: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        self._text = text
        self._offsets = offsets

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
        return self._text[self._offsets[index] : self._offsets[index + 1]].tobytes().decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        bounds = self._offsets.tolist()
        text = self._text.tobytes()
        return (text[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(bounds))

    def __repr__(self) -> str:
        return f"StringTable({len(self)} strings, {len(self._text)} bytes)"
