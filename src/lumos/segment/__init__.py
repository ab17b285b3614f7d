"""A measured graph cut into layers, phases and microbatches, and the sizes of its model and plan read back.

Nothing here is public: what users may call is in `lumos`.
"""
