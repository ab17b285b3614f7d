"""Stages of a pipeline made of recorded ranks.

recorded      the pipeline of a recording, read back from its passes and messages, and what the passes consist of
recut         that pipeline, or a job without one, on other stages and chunks, with other microbatches or in another order
messages      what stages send each other
"""
