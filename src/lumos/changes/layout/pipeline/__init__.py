"""Stages of a pipeline made of recorded ranks.

multiplied    copies of recorded ranks, from which stages are made
recorded      the pipeline of a recording, read back from its passes and messages
parts         what the passes of that pipeline consist of
recut         that pipeline, or a job without one, on other stages and chunks, with other microbatches or in another order
joined        several recorded ranks as one
unstaged      that pipeline without stages: all of it on one rank
"""

from __future__ import annotations

__all__: tuple[str, ...] = ()
