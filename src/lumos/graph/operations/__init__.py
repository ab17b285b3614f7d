"""Graphs of operation-level recordings, whose rows are whole operations (a pass, a transfer) instead of kernels.

Nothing here is public: what users may call is in `lumos`.
"""
