"""The time of a step: whose step a task belongs to, what the loop takes, and the loop repeated until it is steady.

Nothing here is public: what users may call is in `lumos`.
"""
