"""Reading of profiler files into a `Job`: the traces of all ranks, as columns."""

from lumos.trace.read import read
from lumos.trace.string_table import StringTable
from lumos.trace.table import ABSENT, DEVICE_WORK, Category, Column, Job, Lane, ProcessGroup, Trace

__all__ = ["ABSENT", "DEVICE_WORK", "Category", "Column", "Job", "Lane", "ProcessGroup", "StringTable", "Trace", "read"]
