"""The explorer: a page and an HTTP API on this machine alone.

Nothing here is public: what users may call is in `lumos`.
"""
