"""Chakra, the open format of workload graphs: read, link, export, check, import and synthesise sets of its files.

The names below are the verbs of `lumos chakra` as functions, and their results. The other modules of this package are internal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.reexport import reexport

if TYPE_CHECKING:
    from lumos.chakra.check.check import Checked
    from lumos.chakra.export import Exported
    from lumos.chakra.facade import Imported, check, export, import_, link, link_ranks, priced, stat
    from lumos.chakra.link.link import Linked
    from lumos.chakra.link.linked_job import LinkedJob
    from lumos.chakra.stat import Stat
    from lumos.chakra.synthesize.facade import Synthetic, synthesize

__all__ = [
    "Checked",
    "Exported",
    "Imported",
    "Linked",
    "LinkedJob",
    "Stat",
    "Synthetic",
    "check",
    "export",
    "import_",
    "link",
    "link_ranks",
    "priced",
    "stat",
    "synthesize",
]

reexport(
    __name__,
    {
        "lumos.chakra.check.check": ("Checked",),
        "lumos.chakra.export": ("Exported",),
        "lumos.chakra.facade": (
            "Imported",
            "check",
            "export",
            "import_",
            "link",
            "link_ranks",
            "priced",
            "stat",
        ),
        "lumos.chakra.link.link": ("Linked",),
        "lumos.chakra.link.linked_job": ("LinkedJob",),
        "lumos.chakra.stat": ("Stat",),
        "lumos.chakra.synthesize.facade": ("Synthetic", "synthesize"),
    },
)
