"""CUDA graphs: what a script captures is noted once, apart from its steps, and each replay is one call that launches all of it.

Operators run while they are captured as they do at any time, so that tensors and memory are what they would be. The memory of a graph that
nothing holds counts as free between its replays. What a graph launches runs on the stream of the replay, in the order of the capture. A
step that ends inside a capture (`optimizer.step()`) ends with each replay too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumos.emulation.record import CallKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.emulation.process.journal import Journal
    from lumos.emulation.process.streams import Streams


class Graphs:
    """The graphs of one process. begins, ends: called where a capture does; step: where a step ends in a replay."""

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

    def answers(self) -> dict[str, Any]:
        """What takes the place of torch.cuda's names for graphs; its contexts of a capture follow from these."""
        graphs = self

        class CUDAGraph:
            """A graph of the emulated device."""

            number = -1

            def __init__(self, *_: Any, **__: Any) -> None:
                pass

            def capture_begin(self, *_: Any, **__: Any) -> None:
                graphs.begins()
                self.number = len(graphs.steps)
                graphs.steps.append(0)
                graphs._journal.captured = []

            def capture_end(self) -> None:
                graphs._journal.graphs.append(graphs._journal.captured or [])
                graphs._journal.captured = None
                graphs.ends()

            def replay(self) -> None:
                graphs._streams.call(CallKind.LAUNCH_GRAPH, stream=graphs._streams.current, graph=self.number)
                for _ in range(graphs.steps[self.number]):
                    graphs.step()

            def pool(self) -> tuple[int, int]:
                return 0, self.number + 1

            def __getattr__(self, _: str) -> Any:  # instantiate, reset, enable_debug_mode, …
                return lambda *_, **__: None

        return {
            "CUDAGraph": CUDAGraph, "graph_pool_handle": lambda: (0, 0),
            "is_current_stream_capturing": lambda: self._journal.captured is not None,
        }  # fmt: skip
