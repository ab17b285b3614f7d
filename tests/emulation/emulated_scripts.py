"""How tests run a training script under emulation, and what they read of its record.

It stands apart from the tests, because a file of tests that skips itself without torch cannot be imported by another.
"""

import sys
import textwrap

from lumos.emulation.accelerators import emulated_device
from lumos.emulation.run import Launched, records

HEAD = """
import os, torch
from torch import nn
"""

#: A model and its step, for scripts that are about something else.
STEPS = """
model = nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def step():
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
"""


def written(folder, text):
    """The command that runs a script of this text."""
    (folder / "train.py").write_text(text)
    return [sys.executable, str(folder / "train.py")]


def run(folder, body, start=(), *, cluster="h100", ranks=1, warmup=1, limit_s=120.0, random_weights=False, head=HEAD):
    """The records of a script's processes: HEAD, then `body`. start: words between Python and the script."""
    python, script = written(folder, head + textwrap.dedent(body))
    device = emulated_device(cluster)
    return records(Launched([python, *start, script], device, ranks, 1, warmup, folder, limit_s, random_weights))


def leaves(process):
    """The names of the operators that call no other, in the order of their starts."""
    return [each.name for each in sorted(process.operators, key=lambda each: each.begin) if each.leaf]
