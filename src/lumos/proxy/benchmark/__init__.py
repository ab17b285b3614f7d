"""Run the operators of a recorded training step: same operators, same shapes, same order and overlap.

    python benchmark.py                          one process, the first rank of trace.json
    torchrun --nproc-per-node 2 benchmark.py     one process per rank, with their collectives

This file is the same in every benchmark; everything that was recorded is in trace.json in the same folder. It needs torch and
nothing else. It works in three stages:

1. Choose operators. Recorded operators are nested as they called each other. The outermost that this torch can run on this device
   is called. One that only calls others (CompositeImplicit) is replaced by these, because without autograd it might call
   different ones. What cannot run is replaced by a stand-in, a busy loop (spin) of its measured duration, and is listed.
2. Plan memory. Tensors that the step reads before it writes them are filled with random values beforehand. All others are what
   operators return, and are held until their last use. Where this exceeds the limit, tensors share memory; where it still does,
   sizes are scaled down.
3. Run. Time between operators in the recording (Python, the autograd engine) is replaced by spins; waits are real waits.

Values are random: normally distributed floats, and indices within range.
"""

from __future__ import annotations

__all__: tuple[str, ...] = ()
