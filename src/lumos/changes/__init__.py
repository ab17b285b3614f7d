"""Changes of a measured job, and the answer to each.

Nothing here is public: what users may call is in `lumos`.
"""
