"""A job to its dependency graph: one rule a file.

Nothing here is public: what users may call is in `lumos`.
"""
