"""Stages of a pipeline made of recorded ranks.

recorded      the pipeline of a recording, read back from its passes and messages
parts         what the passes of that pipeline consist of
recut         that pipeline, or a job without one, on other stages and chunks, with other microbatches or in another order
messages      what stages send each other
divided       the division of gradients with which a schedule ends
"""
