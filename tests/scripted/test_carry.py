"""Prices that operators take from many others that are alike."""

from types import SimpleNamespace

import numpy as np

from lumos.emulation.record import Operator, Process, Tensor
from lumos.scripted.carry import RankPrices, _Index, _Sources
from lumos.scripted.places import placed
from lumos.scripted.script import Slot, TaskCosts
from lumos.vocabulary import Phase


def test_operators_of_a_loader_are_priced_once_however_many_there_are():
    def process(number):
        value = Tensor((8,), "int64", (1,), 1, "cpu")
        names = ["aten::add"] * number + ["aten::stack"] * (number - 499)
        operators = [Operator(name=name, thread=0, begin=2 * i, end=2 * i + 1, inputs=[value]) for i, name in enumerate(names)]
        return Process(rank=0, world=1, accelerator="cpu", torch="", threads=["main"], operators=operators)

    def kindred(process):
        none, modelled = np.empty(0, np.int64), np.ones((len(Slot), len(process.operators)))
        parts = TaskCosts(none, none, none, none)
        return SimpleNamespace(process=process, placed=placed(process), modelled=modelled, exchanges={}, parts=parts, high=none)

    before, after = kindred(process(500)), kindred(process(1000))
    sources = _Sources(after, before, _Index(before), None)
    assert len(sources.mine) <= 2 * len(before.process.operators)
    measured = np.tile(np.arange(501.0), (len(Slot), 1))
    zeros = np.zeros((len(Slot), len(after.process.operators)), np.int64)
    found = sources.prices(RankPrices(measured, measured, measured, zeros[:, :501]), RankPrices(*(zeros.astype(float),) * 3, zeros))
    assert (found.best[Slot.DEVICE, 500:1000] == 249.5).all() and (found.best[Slot.DEVICE, 1000:] == 500).all()
    backward = [each._replace(phase=Phase.BACKWARD, module="layers.*") for each in after.placed.place]
    index, again = _Index(before), after.placed._replace(place=backward, unwrapped=backward)  # what a checkpoint runs once more
    assert index.sources(again, 0, "aten::add", index.given[0]) == [*range(500)]
