"""A small job with given prices, so that its step can be worked out by hand."""

from collections.abc import Sequence

import pytest

from lumos.blocks.block import Times
from lumos.blocks.price import Price, Pricer
from lumos.blocks.work import Collective, Contention, Work
from lumos.cost.cluster import load_cluster
from lumos.cost.estimate import Bound


class FlatPrices(Pricer):
    """Every kernel takes `kernel` ns, every collective `transfer` ns."""

    def __init__(self, kernel: int = 1000, transfer: int = 0) -> None:
        super().__init__(load_cluster("h100"))
        self.kernel, self.transfer = kernel, transfer

    def __call__(self, work: Sequence[Work]) -> list[Price]:
        def time(w: Work) -> int:
            if isinstance(w, Contention):
                return 0
            return self.transfer if isinstance(w, Collective) else self.kernel

        return [Price(Times(*(time(w),) * 3), Bound.COMPUTE) for w in work]


@pytest.fixture
def flat():
    return FlatPrices
