"""A changed script answered from a recording: the scripts say what changes, the recording what it costs.

The command that made the recording and the changed one are both run without their devices (`emulation`). What the recording measured is
matched with what the first does (`match`), carried over to what the second does (`carry`), and simulated there (`answer`).

Nothing here is public: what users may call is in `lumos`.
"""
