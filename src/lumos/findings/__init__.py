"""What to fix first in a recorded job: one kind of finding a file, each priced by a what-if.

Nothing here is public: what users may call is in `lumos`.
"""
