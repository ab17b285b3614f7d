"""Chakra, the open format of workload graphs: read, link, export, check, import and synthesise sets of its files.

The names below are the verbs of `lumos chakra` as functions, and their results. The other modules of this package are internal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.on_demand import on_demand

if TYPE_CHECKING:
    from lumos.chakra.build import priced
    from lumos.chakra.checks import Checked, check
    from lumos.chakra.exporting import Exported
    from lumos.chakra.facade import Imported, export, import_, link, stat
    from lumos.chakra.linked_job import LinkedJob
    from lumos.chakra.statistics import Stat
    from lumos.chakra.synthesis.facade import Synthetic, synthesize

__all__ = ["Checked", "Exported", "Imported", "LinkedJob", "Stat", "Synthetic"]
__all__ += ["check", "export", "import_", "link", "priced", "stat", "synthesize"]

if not TYPE_CHECKING:  # a type checker would take it for an answer to every name
    __getattr__, __dir__ = on_demand(__name__)
