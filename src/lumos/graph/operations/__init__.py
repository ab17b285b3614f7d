"""Recordings of whole operations (a pass, a transfer) to a graph."""
