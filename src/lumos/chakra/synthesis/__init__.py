"""Learn a model from recorded sets, and sample synthetic sets from it that give away neither names nor times.

Nothing here is public: what users may call is in `lumos`.
"""
