"""Write a set again, as `.et` or as JSON, with every node as it was read: inputs, outputs, unknown attributes and all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lumos.chakra.write import GROUPS_FILE, file_name
from lumos.characters import is_whole
from lumos.errors import UsageError
from lumos.output_files import check_only_own, new_folder
from lumos.trace.chakra.et import FORMAT
from lumos.trace.chakra.json_form import dump
from lumos.trace.chakra.protobuf import frame
from lumos.trace.chakra.schema import Metadata
from lumos.trace.chakra.wire import encode_metadata, encode_node

if TYPE_CHECKING:
    from pathlib import Path

    from lumos.trace.table import Job, Trace


def write_again(job: Job, folder: Path, *, as_json: bool = False) -> None:
    """Write a file for every rank of a Chakra job, and its communicators. UsageError for another job, LumosError where it cannot."""
    if any(trace.metadata.get("format") != FORMAT for trace in job.traces):
        raise UsageError("only a Chakra set is written as it was read; `lumos chakra export` makes one of a job first")
    check_only_own(folder, "*.et", [file_name(trace.rank) for trace in job.traces])
    with new_folder(folder) as draft:
        for trace in job.traces:
            if as_json:
                (draft / f"job.{trace.rank}.json").write_text("\n".join(dump(_metadata(trace), trace.metadata["chakra"])) + "\n")
            else:
                messages = (encode_metadata(_metadata(trace)), *map(encode_node, trace.metadata["chakra"]))
                (draft / file_name(trace.rank)).write_bytes(b"".join(map(frame, messages)))
        groups = {g.name: list(g.ranks) for g in job.groups if is_whole(g.name) and g.ranks}
        (draft / GROUPS_FILE).write_bytes(msgspec.json.encode(groups))


def _metadata(trace: Trace) -> Metadata:
    return Metadata(str(trace.metadata["chakraVersion"]), trace.metadata["chakraAttributes"])
