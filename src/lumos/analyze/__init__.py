"""Numbers about a timeline, measured or simulated. Nothing here prints or draws.

Nothing here is public: what users may call is in `lumos`.
"""
