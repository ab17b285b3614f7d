"""What runs inside the script's own process while it is emulated. It imports nothing of Lumos but its errors, its vocabulary, the table of
operators and the record that it leaves.

Nothing here is public: what users may call is in `lumos`.
"""
