"""Stages of a pipeline made of recorded ranks.

multiplied    copies of recorded ranks, from which stages are made
stages        a job without a pipeline, spread over stages
recorded      the pipeline of a recording, read back from its passes and messages
recut         that pipeline with other stages, chunks, microbatches or another order
"""

from __future__ import annotations

__all__: tuple[str, ...] = ()
