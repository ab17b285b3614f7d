"""The operators of an execution trace joined to the kernels of a profiler trace."""
