"""What breaks a rule by which ASTRA-sim accepts a set of `.et` files.

Every rule was tried on the simulator with a file made by hand. `docs/chakra.md` lists them, with what the simulator does where one is
broken: in some of the worst cases it reports "finished" although work is left undone.
"""

from __future__ import annotations

from typing import NamedTuple


class Violation(NamedTuple):
    """A rule that a file breaks. node: the id of the node, None where the file or the set as a whole breaks the rule."""

    rule: str
    file: str
    node: int | None
    message: str
