"""The files that lie beside the nodes of a Chakra set: communicators, network, system and memory. They are known by their content.

Every producer gives them other names, so only what they hold tells them apart. Where two files of a folder could both be
the same companion, the name that `lumos chakra export` gives it decides; a file of that name is one even where its content is not.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

from lumos.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Companion(StrEnum):
    """A kind of file; its value is the name that `lumos chakra export` gives it."""

    GROUPS = "groups.json"
    SYSTEM = "sys.json"
    MEMORY = "mem.json"
    NETWORK = "net.yml"


#: Keys with which a system file may begin.
_SYSTEM_KEYS = (
    "scheduling-policy|intra-dimension-scheduling|inter-dimension-scheduling|endpoint-delay|active-chunks-per-dimension"
    "|preferred-dataset-splits|[a-z-]+-implementation(?:-custom)?|collective-optimization|local-mem-bw|boost-mode|roofline-enabled"
    "|peak-perf|model-shared-bus|trace-enabled|replay-only|local-reduction-delay|track-local-mem"
)
_CONTENT = {
    # Lists of numbers by name; but so may be the properties in the header of a damaged trace.
    Companion.GROUPS: re.compile(rb'\s*\{\s*(?!"deviceProperties")(?:"\d+"\s*:\s*\[|"[^"]{1,64}"\s*:\s*\[\s*\d|\}\s*$)'),
    Companion.SYSTEM: re.compile(rb'\s*\{\s*"(?:' + _SYSTEM_KEYS.encode() + rb')"\s*:'),
    Companion.MEMORY: re.compile(rb'\s*\{\s*"memory-type"\s*:'),
    # Lines that are blank or comments before it; possessive, so that a file of blanks is not tried in every division into lines.
    Companion.NETWORK: re.compile(rb"(?:[^\S\n]*+(?:#[^\n]*+|---)?+[^\S\n]*+\n)*+\s*+(?:topology|npus_count|bandwidth|latency)\s*+:"),
}
_SUFFIXES = (".json", ".yml", ".yaml", ".txt", ".cfg")
_RANK = re.compile(r"\.\d{1,7}\.json$")
_HEAD = 4096


def companion_of(head: bytes) -> Companion | None:
    """What a file that starts with `head` is to a set, None where it is none of its companions."""
    return next((kind for kind, pattern in _CONTENT.items() if pattern.match(head)), None)


def companions(folder: Path) -> Mapping[Companion, Path]:
    """The companions that a folder holds. TraceError where two files could be the same one and neither has its usual name."""
    paths_by_kind: dict[Companion, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in _SUFFIXES and not _RANK.search(path.name) and path.is_file():
            with path.open("rb") as file:
                kind = companion_of(file.read(_HEAD)) or next((one for one in Companion if one.value == path.name), None)
            if kind is not None:
                paths_by_kind.setdefault(kind, []).append(path)
    return {kind: _the_one(kind, paths) for kind, paths in paths_by_kind.items()}


def _the_one(kind: Companion, paths: list[Path]) -> Path:
    usual = [path for path in paths if path.name == kind.value]
    if len(paths) > 1 and not usual:
        names = ", ".join(path.name for path in paths)
        raise TraceError(
            f"{paths[0].parent}: {names} could each be the set's {kind.value}; give one of them that name, or remove the others"
        )
    return (usual or paths)[0]


def yaml_lists(text: str) -> dict[str, list[str]]:
    """The lists of a network file: `key: [ a, b ]`, or one `- a` a line below the key. Comments and quotes are left out."""
    text = re.sub(r"#.*", "", text)
    lists = re.finditer(r"(?m)^([\w-]+)\s*:\s*(?:\[([^\]]*)\]|((?:\s*\n\s*-[^\n]*)+))", text)
    items = {one[1]: one[2].split(",") if one[2] is not None else re.findall(r"-[ \t]*([^\n]+)", one[3]) for one in lists}
    return {key: [item for text in texts if (item := text.strip().strip("\"'"))] for key, texts in items.items()}
