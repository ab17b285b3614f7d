"""The CPU threads of a rank, cut into slices, and how they hand work to each other.

Nothing here is public: what users may call is in `lumos`.
"""
