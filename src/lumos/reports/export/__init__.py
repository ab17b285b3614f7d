"""Write timelines and searches as files that other tools open.

Nothing here is public: what users may call is in `lumos`.
"""
