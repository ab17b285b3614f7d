"""Why nothing runs: the cause of every start, idle time by cause, slack, and what no cause explains.

Nothing here is public: what users may call is in `lumos`.
"""
