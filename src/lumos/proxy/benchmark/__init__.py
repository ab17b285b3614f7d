"""What every benchmark contains as a file of its own: the program, and beside it what launches compiled kernels where the job has some.

The files are copied as they are and import nothing of Lumos.
"""
