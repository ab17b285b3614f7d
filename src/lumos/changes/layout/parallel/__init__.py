"""Ranks that share the work of one replica.

tensor      more or fewer ranks that share the layers' multiplications
split       the layers of a job of whole ones, shared for the first time
context     ranks that share the sequences
experts     ranks that share the experts
"""
