"""CUDA graphs: what a script captures is noted once, apart from its steps, and each replay is one call that launches all of it.

Operators run while they are captured as they do at any time, so that tensors and memory are what they would be. The memory of a graph that
nothing holds counts as free between its replays. What a graph launches runs on the stream of the replay, in the order of the capture; its
exchanges, between which it is launched in parts, run where they would without it. A step that ends inside a capture (`optimizer.step()`)
ends with each replay too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumos.emulation.process.patches import Silent
from lumos.emulation.record import CallKind, DeviceCall, Exchange, Operator

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.emulation.process.journal import CapturedCall, Journal
    from lumos.emulation.process.ranks.exchanges import Exchanges
    from lumos.emulation.process.streams import Streams


#: What a graph launches in turn, by its place in the capture: operators, by the number of their part, an exchange, or a wait for one.
_Parts = dict[int, int | Exchange | DeviceCall]


class Graphs:
    """The graphs of one process. begins, ends: called where a capture does; step: where a step ends in a replay."""

    exchanges: Exchanges

    def __init__(self, journal: Journal, streams: Streams) -> None:
        self._journal, self._streams = journal, streams
        self.begins: Callable[[], None] = lambda: None
        self.ends: Callable[[], None] = lambda: None
        self.step: Callable[[], None] = lambda: None
        self.steps: list[int] = []  # that ended in the capture of each graph

    def is_captured(self) -> bool:
        """Whether a step ends inside of a capture, which then counts with each replay."""
        if self._journal.captured is not None:
            self.steps[-1] += 1
        return self._journal.captured is not None

    def _keep(self, captured: list[CapturedCall]) -> _Parts:
        parts: _Parts = {}
        together: list[Operator] | None = None
        for place, each in enumerate(captured):
            if not isinstance(each, Operator):
                parts[place], together = each, None
                continue
            if together is None:
                parts[place], together = len(self._journal.graphs), []
                self._journal.graphs.append(together)
            together.append(each)
        return parts

    def _launch(self, parts: _Parts) -> None:
        """Launch what was captured. Each time, its exchanges are others."""
        numbers: dict[int, int] = {}
        for place, each in parts.items():
            if isinstance(each, int):
                self._streams.call(CallKind.LAUNCH_GRAPH, stream=self._streams.current, graph=each)
            elif isinstance(each, Exchange):
                numbers[-1 - place] = self.exchanges.again(each)
            elif number := numbers.get(each.exchange, 0):
                self._streams.call(each.kind, stream=self._streams.current, exchange=number)

    def answers(self) -> dict[str, Any]:
        """What takes the place of torch.cuda's names for graphs; its contexts of a capture follow from these."""
        graphs = self

        class CUDAGraph(Silent):
            """A graph of the emulated device, of which more may be asked (instantiate, reset, …) than is done."""

            number = -1

            def capture_begin(self, *_: Any, **__: Any) -> None:
                graphs.begins()
                self.number = len(graphs.steps)
                graphs.steps.append(0)
                graphs._journal.captured = []

            def capture_end(self) -> None:
                self._parts = graphs._keep(graphs._journal.captured or [])
                graphs._journal.captured = None
                graphs.ends()

            def replay(self) -> None:
                graphs._launch(self._parts)
                for _ in range(graphs.steps[self.number]):
                    graphs.step()

            def pool(self) -> tuple[int, int]:
                return 0, self.number + 1

        return {
            "CUDAGraph": CUDAGraph, "graph_pool_handle": lambda: (0, 0),
            "is_current_stream_capturing": lambda: self._journal.captured is not None,
        }  # fmt: skip
