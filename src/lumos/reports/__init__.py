"""Show numbers to people, as texts, pages, files and figures.

Nothing here is public: what users may call is in `lumos`.
"""
