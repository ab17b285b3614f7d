"""From a plan to a graph: the layout of a step, its tasks, its time; and the score over published runs.

Nothing here is public: what users may call is in `lumos`.
"""
