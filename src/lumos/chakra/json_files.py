"""Write a Chakra job as JSON files, one per rank, with every node as it was read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lumos.chakra.write import GROUPS_FILE
from lumos.characters import is_whole
from lumos.errors import UsageError
from lumos.output_files import new_folder
from lumos.trace.chakra.et import FORMAT
from lumos.trace.chakra.json_form import dump
from lumos.trace.chakra.schema import Metadata

if TYPE_CHECKING:
    from pathlib import Path

    from lumos.trace.table import Job


def write_json_files(job: Job, folder: Path) -> None:
    """Write PREFIX.RANK.json for every rank of a Chakra job. UsageError for another job, LumosError where it cannot."""
    if any(trace.metadata.get("format") != FORMAT for trace in job.traces):
        raise UsageError("only a Chakra set is written as Chakra's JSON; `lumos chakra export` makes one of a job first")
    with new_folder(folder) as draft:
        for trace in job.traces:
            metadata = Metadata(str(trace.metadata["chakraVersion"]), trace.metadata["chakraAttributes"])
            (draft / f"job.{trace.rank}.json").write_text("\n".join(dump(metadata, trace.metadata["chakra"])) + "\n")
        groups = {g.name: list(g.ranks) for g in job.groups if is_whole(g.name) and g.ranks}
        (draft / GROUPS_FILE).write_bytes(msgspec.json.encode(groups))
