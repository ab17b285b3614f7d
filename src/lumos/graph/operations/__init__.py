"""Graphs of operation-level recordings, whose rows are whole operations (a pass, a transfer) instead of kernels."""
