"""A training script run on tensors without data, and the trace that a device would have left of it.

Nothing here is public: what users may call is in `lumos`.
"""
