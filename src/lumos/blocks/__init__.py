"""The work of a model's parts on one rank, as blocks; what it costs, and the memory that it needs.

Nothing here is public: what users may call is in `lumos`.
"""
