"""Show results as one HTML file, and in the local explorer.

Nothing here is public: what users may call is in `lumos`.
"""
