"""From what a process asked of its device to the device's work: kernels and their prices, host times, streams, ranks.

Nothing here is public: what users may call is in `lumos`.
"""
