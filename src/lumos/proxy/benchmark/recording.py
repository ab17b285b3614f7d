"""The recording: operators, nested as they called each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Prefixes of names that look like those of operators, but are ranges around operators.
RANGES = ("torch::autograd", "torch::distributed", "torch.distributed", "autograd::engine")

#: What torch calls the ranges around code that torch.compile made.
COMPILED = ("CompiledFunction", "## Call CompiledFxGraph")


class Node:
    """One recorded operator, and the operators that it called. number: its position in pre-order."""

    def __init__(self, raw: dict[str, Any], number: int, names: list[str]) -> None:
        self.number = number
        self.name = names[raw["name"]]
        self.schema: str = raw.get("schema", "")
        self.inputs: list[Any] | None = raw.get("inputs")
        self.outputs: list[int] | None = raw.get("outputs")
        self.start: int = raw["start_ns"]
        self.duration: int = raw["duration_ns"]
        self.device_ns: int = raw.get("device_ns", 0)
        self.own_stream: int = raw.get("stream", -1)
        self.kernel: bool = raw.get("kernel", False)
        self.after: list[int] = raw.get("after", [])
        self.backward: int = raw.get("backward", -1)
        self.collective: dict[str, Any] | None = raw.get("collective")
        self.synchronize: bool = raw.get("synchronize", False)
        self.compiled: dict[str, Any] | None = raw.get("compiled")
        self.children: list[Node] = []
        self.next: int = number + 1  # the number of the operator after this one and those that it called
        for child in raw.get("children", ()):
            self.children.append(Node(child, self.next, names))
            self.next = self.children[-1].next
        self.reason = ""  # why it does not run, if it does not

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def is_operator(self) -> bool:
        """Whether it is an operator of the dispatcher, and not a range that Python, autograd or DDP put around operators."""
        return "::" in self.name and " " not in self.name and not self.name.startswith(RANGES)

    def outermost(self, wanted: Callable[[Node], bool]) -> Iterator[Node]:
        """The wanted among this operator and those that it called, without what these called."""
        if wanted(self):
            yield self
            return
        for child in self.children:
            yield from child.outermost(wanted)

    @property
    def compiled_ns(self) -> int:
        """Of a range around compiled code, the time outside of the operators that it called."""
        called = sum(node.duration for child in self.children for node in child.outermost(lambda node: node.is_operator))
        return max(0, self.duration - called)

    @property
    def device_total(self) -> int:
        return self.device_ns + sum(child.device_total for child in self.children)

    @property
    def stream(self) -> int:
        """The stream of the first device work under this operator; -1 without any."""
        return next((node.own_stream for node in self.walk() if node.own_stream >= 0), -1)

    @property
    def end(self) -> int:
        return self.start + self.duration


class Ref:
    """A tensor among an operator's arguments. slot: its index in `Memory.slots`."""

    def __init__(self, slot: int) -> None:
        self.slot = slot


def slots(recorded: Any) -> Iterator[int]:
    """The slots of all tensors among recorded arguments."""
    if isinstance(recorded, list):
        for item in recorded:
            yield from slots(item)
    elif isinstance(recorded, dict) and "tensor" in recorded:
        yield recorded["tensor"]
