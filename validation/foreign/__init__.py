"""Other people's training scripts, each recorded before and after a change: what `lumos whatif` says of the change is held to the second.

No code of Lumos stands on the side of the truth. A script runs on fake tensors of its true shapes under PyTorch's own profiler
(`operators`); its operators launch kernels (`kernels`) that take what a pricing of this folder says (`prices`); the independent
machine of `validation.machine` runs them (`loop`), and the run is written as the profiler would write it (`kineto`).
"""
