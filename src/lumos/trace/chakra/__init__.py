"""Chakra's files: the nodes and their attributes, protobuf's encoding of them, and readers of sets and of the files beside them.

Nothing here is public: what users may call is in `lumos`.
"""
