"""Small scripts, emulated once for all tests of a process, and recordings whose kernels take other times than the models say."""

import sys
import textwrap
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

import lumos
from lumos.cost.cluster import load_cluster
from lumos.emulation.accelerators import emulated_device
from lumos.emulation.device.files import write_traces
from lumos.emulation.run import Launched, records
from lumos.scripted.answer import Asked, Base
from lumos.scripted.command import parse
from lumos.scripted.script import script

SCRIPT = """
    import sys, torch
    from torch import nn
    layers, batch, extra = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(256, 256)
        def forward(self, x):
            x = torch.relu(self.up(x))
            return torch.tanh(x) if "tanh" in extra else x
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.head = nn.ModuleList(Layer() for _ in range(layers)), nn.Linear(256, 8)
        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.head(x)
    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for step in range(8):
        if "late" in extra and step == 3:
            torch.ones(1, device="cuda").add_(1)
        loss = model(torch.ones(batch, 256, device="cuda")).sum()
        loss.backward()
        if "item" in extra:
            loss.item()
        optimizer.step()
        optimizer.zero_grad()
"""
STEPS = 3


class Scripts(NamedTuple):
    """The script's file. records: of a command's words, kept."""

    file: str
    records: object

    def command(self, *words):
        return parse([sys.executable, self.file, *map(str, words)], "--before")

    def job(self, folder, times, *words):
        """A recording of the command; times: of its tasks, by the job, ns."""
        write_traces(folder, self.records(self.command(*words).words), load_cluster("h100"), times)
        return lumos.read(folder)

    def script(self, *words):
        return script(self.command(*words), self.records(self.command(*words).words), load_cluster("h100"))

    def base(self, job, *words, force=False, again=None):
        """again: the words of a command that does what the second run of any script does; None where that is the first."""

        def emulate(command, *_):
            return script(command, self.records(command.words), load_cluster("h100"))

        def repeated(once, *_):
            (process,) = self.records(((again and self.command(*again)) or once.command).words)
            return process

        return Base(job, lumos.build(job), self.command(*words), Asked(force=force), emulate, repeated)


@pytest.fixture(scope="session")
def scripts(tmp_path_factory):
    pytest.importorskip("torch", reason="torch is not installed, and scripts are emulated with it")
    folder = tmp_path_factory.mktemp("scripts")
    file = folder / "train.py"
    file.write_text(textwrap.dedent(SCRIPT))

    @cache
    def kept(words):
        work = tmp_path_factory.mktemp("work")
        return records(Launched(words, emulated_device("h100"), 1, STEPS, 1, work, 300.0))

    return Scripts(str(file), kept)


@pytest.fixture
def slower():
    """The times of a job whose kernels take this many times what the models say, by the beginning of the operator's name."""

    def of(**factors):
        def times(job):
            out = job.graph.duration.astype(float)
            for rank, kind in enumerate(job.of):
                program = job.programs[kind]
                for i, task in enumerate(program.tasks):
                    if task.work is not None and task.operator >= 0:
                        name = program.process.operators[task.operator].name.removeprefix("aten::")
                        out[int(job.first[rank]) + i] *= next((by for start, by in factors.items() if name.startswith(start)), 1.0)
            return np.rint(out).astype(np.int64)

        return times

    return of
