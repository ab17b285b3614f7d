"""Frameworks: switches changed one by one, and values that no switch can have."""

from dataclasses import replace

import pytest

from lumos.errors import UsageError
from lumos.plan.framework import with_switches
from lumos.plan.profiles import framework_profile


def test_switches_are_parsed_by_their_kind():
    changed = with_switches(framework_profile("fsdp2"), {"tp_overlap": "on", "host_us": "12.5", "attention": "fa3", "gradient_bytes": "2"})
    assert (changed.tp_overlap, changed.host_us, changed.attention, changed.gradient_bytes) == (True, 12.5, "fa3", 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fusion": "fusd"}, "framework fsdp2: fusion = 'fusd' is not known; did you mean 'fused'"),
        ({"host_us": float("nan")}, "host_us = nan must be a finite number from 0"),
        ({"host_us": -1.0}, "host_us = -1.0"),
        ({"layer_us": "9"}, "layer_us = '9'"),
        ({"bucket_bytes": float("inf")}, "bucket_bytes = inf"),
        ({"gradient_bytes": 1.5}, "gradient_bytes = 1.5 must be a whole number"),
        ({"dropout": "off"}, "dropout = 'off' is not on or off"),
    ],
)
def test_wrong_values(change, said):
    with pytest.raises(UsageError, match=said):
        replace(framework_profile("fsdp2"), **change)
