"""The operators around the work of a changed job: those that were around its like in the recording, with the shapes of their inputs.

A thread's work comes in pieces, each of which names a row of the recording: the operator whose own time it is, or a call. The operators
that were open there are open here too. One that was open before goes on as long as pieces follow each other as they did in the recording;
where the recording is gone back in, as when a layer runs once more, it ends and begins anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.trace.nesting import parents
from lumos.trace.table import ABSENT, Category

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.trace.table import Trace

#: What the profiler notes of an operator's inputs. Autograd's numbers are left out: they would be the same in every copy.
_FACTS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")


class NestedRow(NamedTuple):
    """An operator to write. row: of the recording. begin, end: ns."""

    row: int
    begin: int
    end: int


class Nesting:
    """Which operators of a recorded rank were open around each row, and what is known of them."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        rows = np.flatnonzero(trace.is_any(Category.OPERATOR, Category.RUNTIME))
        self.parent = parents(trace, rows, trace.category[rows] == Category.OPERATOR)
        self.start: list[int] = trace.start.tolist()
        self.facts = {key: trace.dense(key) for key in _FACTS if key in trace.args}

    def name(self, row: int) -> str:
        return str(self.trace.strings[self.trace.name[row]])

    def around(self, row: int) -> list[int]:
        """The operators that were open when the row began, the outermost first, and itself if it is one."""
        out = [row] if self.trace.category[row] == Category.OPERATOR else []
        while (row := int(self.parent[row])) != ABSENT:
            out.append(row)
        return out[::-1]

    def inputs(self, row: int) -> str:
        """What the recording says of an operator's inputs, as members of a JSON object behind others; "" where it says nothing. A
        trace keeps these lists as JSON."""
        texts = [(key, int(column[row])) for key, column in self.facts.items()]
        return "".join(f',"{key}":{self.trace.strings[text]}' for key, text in texts if text >= 0)


class OpenOperators:
    """The operators that are open on a thread of the changed job."""

    def __init__(self, nesting: Nesting) -> None:
        self.nesting = nesting
        self.rows: list[tuple[int, int]] = []  # row, begin
        self.end, self.last = 0, ABSENT  # of the piece before, and its row

    def piece(self, row: int, begin: int, end: int) -> Iterator[NestedRow]:
        """Go on with a piece of the recorded row; gives the operators that end with the piece before."""
        wanted = self.nesting.around(row)
        back = self.last != ABSENT and self.nesting.start[row] < self.nesting.start[self.last] and row not in {r for r, _ in self.rows}
        same = 0
        while not back and same < min(len(self.rows), len(wanted)) and self.rows[same][0] == wanted[same]:
            same += 1
        yield from self._closed(same)
        self.rows += [(row_inside, begin) for row_inside in wanted[same:]]
        self.end, self.last = end, row

    def pause(self) -> Iterator[NestedRow]:
        """Gives all operators that are open: what follows is in none."""
        yield from self._closed(0)

    def longer(self, end: int) -> None:
        """The piece before takes until then."""
        self.end = end

    def _closed(self, keep: int) -> Iterator[NestedRow]:
        while len(self.rows) > keep:
            row, begin = self.rows.pop()
            yield NestedRow(row, begin, self.end)
