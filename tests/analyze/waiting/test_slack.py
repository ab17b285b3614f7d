import numpy as np
import pytest

from lumos.analyze.loop.steps import members
from lumos.analyze.waiting.slack import UNBOUNDED, slack, slack_by_class
from lumos.simulation import simulate, sweep
from lumos.simulation.freeze import freeze

US = 1000


def test_by_hand(two_steps):
    """Step 0 ends with B at 80 µs. k1 (14–40) has a slack of 40: the next kernel of its stream, k2, does not start before 119,
    because of its own launch. No step ends later however late the collective is, as nobody waits for it. B and the tasks before it
    have none. The pause after B has none either: C follows it and has none, because k2, which C launches, ends its step."""
    timeline = simulate(two_steps)
    found = slack(timeline)
    assert (timeline.end[8], timeline.end[10]) == (40 * US, 46 * US)
    assert found.slack.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 40 * US, 0, UNBOUNDED]
    assert found.work.tolist() == two_steps.duration.tolist()


def test_by_class(two_steps):
    """Step 1 alone counts: k2, the pause before C, C, and its launch. None of them has slack."""
    rows = slack_by_class(slack(simulate(two_steps)), members(two_steps))
    assert list(rows) == ["other", "cpu between operators", "cpu operators", "launch calls"]
    assert tuple(rows["other"]) == (1, 31 * US, 1, 31 * US, 0)


def test_a_kernel_that_holds_the_sms_is_bound_by_the_kernel_that_waits_for_them(two_kernels):
    """big (4–44) holds the device for 30 µs; small starts at 34 and ends the step at 84, so big has no slack, though it ends 40 µs
    earlier. If kernels did not share SMs, small would run at 6–56, and big could end as late as 56."""
    assert slack(simulate(two_kernels)).slack.tolist() == [0, 28 * US, 0, 0]
    assert slack(sweep(freeze(two_kernels))).slack.tolist() == [0, 0, 12 * US, 0]


@pytest.mark.parametrize("short", ["sequence", "set", "holder", "early", "start", "began", "end", "late"])
def test_the_inner_loop_refuses_columns_that_do_not_fit(two_steps, short):
    n = len(two_steps)
    columns = {name: np.zeros(n, np.int64) for name in ("early", "start", "began", "end", "late")}
    columns |= {name: np.full(n, -1, np.int32) for name in ("set", "holder")} | {"sequence": np.arange(n, dtype=np.int32)}
    columns[short] = columns[short][:-1].copy()
    with pytest.raises(ValueError, match="differ in length"):
        freeze(two_steps).edges.latest_ends(**columns)
