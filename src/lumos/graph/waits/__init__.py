"""What calls and streams wait for on a device.

Nothing here is public: what users may call is in `lumos`.
"""
