"""Operators of the script, run on tensors without data."""
