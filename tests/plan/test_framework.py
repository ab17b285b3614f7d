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
    ("switches", "word"),
    [
        ({"tp_overlp": "on"}, "did you mean 'tp_overlap'"),
        ({"tp_overlap": "maybe"}, "not on or off"),
        ({"host_us": "quick"}, "not a number"),
        ({"gradient_bytes": "0"}, "gradient_bytes = 0 must be a whole number from 1"),
        ({"gradient_bytes": "1.5"}, "not a number"),
        ({"zero": "4"}, "valid: 0, 1, 2, 3"),
        ({"fusion": "foo"}, "fusion = 'foo' is not known; valid: eager, fused, compiled"),
        ({"attention": "fa9"}, "attention = 'fa9' is not known; did you mean 'fa"),
        ({"loss": "foo"}, "valid: torch, megatron, fused"),
    ],
)
def test_wrong_switches(switches, word):
    with pytest.raises(UsageError, match=word):
        with_switches(framework_profile("fsdp2"), switches)


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
