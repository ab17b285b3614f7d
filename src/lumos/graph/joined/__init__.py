"""The ranks of a job, joined: collectives and messages that meet, clocks, and whether the ranks are of one job.

Nothing here is public: what users may call is in `lumos`.
"""
