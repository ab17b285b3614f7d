"""Which plan: all plans of a model on a cluster, bounded, priced in columns, and the best of them simulated in full.

Nothing here is public: what users may call is in `lumos`.
"""
