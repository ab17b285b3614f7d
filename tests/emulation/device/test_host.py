"""Host times by class: those of recordings, and the launch call of the accelerator."""

from __future__ import annotations

from lumos.cost.cluster import load_cluster
from lumos.emulation.device.host import HostClass, host_ns, shipped_host_times


def test_every_class_has_a_time_within_its_spread():
    times = shipped_host_times()
    assert set(times) == set(HostClass)
    assert all(0 < time.low <= time.value <= time.high and time.recordings >= 5 for time in times.values())


def test_the_launch_call_is_the_accelerators_own_where_its_data_have_one():
    h100 = load_cluster("h100").accelerator
    assert host_ns(h100)[HostClass.LAUNCH] == 4500
    shipped = {kind: round(time.value * 1e3) for kind, time in shipped_host_times().items()}
    assert host_ns(h100) == {**shipped, HostClass.LAUNCH: 4500}
