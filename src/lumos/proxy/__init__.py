"""Runnable benchmarks from traces: the same operators, shapes, order and overlap, without the model's code and data."""
