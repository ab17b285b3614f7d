"""A collapsed block ends when the block itself would, whenever the host and the device become free."""

from hypothesis import given
from hypothesis import strategies as st

from lumos.blocks.block import COLLECTIVE_LAUNCHES, Block, Builder, Op, Times, collapse
from lumos.blocks.work import Collective, Fixed, RankStream, Traffic
from lumos.prediction.assemble import in_sequence
from lumos.vocabulary import CollectiveKind


def run(block: Block, times: list[int], host: int, device: int) -> tuple[int, int]:
    """End of the block on the device and on the host, if these become free at the given times."""
    free: dict[RankStream, int] = {}
    ends: list[int] = []
    clock = host + block.before
    for op, time in zip(block.ops, times, strict=True):
        clock += op.host
        ready = max(clock, device, free.get(op.lane, 0), *(ends[a] for a in op.after))
        ends.append(ready + time)
        free[op.lane] = ends[-1]
    return max(ends), clock


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Block, list[int]]:
    count = draw(st.integers(1, 8))
    ops = []
    for i in range(count):
        lane = draw(st.sampled_from([RankStream.COMPUTE, RankStream.COMPUTE, RankStream.TENSOR]))
        after = draw(st.sets(st.integers(0, i - 1), max_size=2)) if i else set()
        ops.append(Op(f"op {i}", lane, Fixed(0), draw(st.integers(0, 50)), tuple(sorted(after))))
    times = draw(st.lists(st.integers(0, 50), min_size=count, max_size=count))
    return Block("block", tuple(ops), (count - 1,), draw(st.integers(0, 50))), times


def test_the_host_takes_as_long_for_a_collective_as_for_several_kernels():
    b = Builder("block", 10)
    b.add("kernels", Traffic(1, kernels=2))
    b.add("exchange", Collective(CollectiveKind.ALL_REDUCE, 8, 1, 8, 1, 8), RankStream.TENSOR)
    assert [op.host for op in b.build().ops] == [20, 10 * COLLECTIVE_LAUNCHES]


@given(blocks(), st.integers(0, 400), st.integers(0, 400))
def test_collapsing_is_exact(made, host, device):
    block, times = made
    c = collapse(block, [Times(t, t, t) for t in times])
    end, clock = run(block, times, host, device)
    assert clock == host + c.host
    assert 0 <= c.lead <= c.host
    assert max(host + c.lead, device) + c.device[0] == end


@given(blocks(), st.integers(2, 5))
def test_series_of_blocks(made, count):
    block, times = made
    one = collapse(block, [Times(t, t, t) for t in times])
    limited = one.host_limited
    for before in range(1, count):  # the next one begins when the host and the device have done those before it
        limited = max(limited + one.device.best, before * one.host + one.host_limited)
    series = in_sequence(one, count)
    assert (series.host_limited, series.host, series.device.best) == (limited, count * one.host, count * one.device.best)


def test_exposed_communication_of_a_block():
    b = Builder("x", 0)
    b.add("a", Traffic(1))
    forked = b.fork("covered", Traffic(1), RankStream.TENSOR)
    b.add("b", Traffic(1))
    b.join(forked)
    b.add("shown", Traffic(1), RankStream.TENSOR)
    c = collapse(b.build(), [Times(t, t, t) for t in (10, 5, 20, 7)])
    assert (c.device[0], c.compute, c.exposed, c.overlapped) == (37, 30, 7, 5)
