"""Draw figures as single HTML files.

Nothing here is public: what users may call is in `lumos`.
"""
