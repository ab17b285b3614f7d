"""A measured layout, its changes, and the way back to a graph.

Every module but `measured_layout` and `place` holds one kind of change: other sizes, other degrees, other exchanges.
"""
