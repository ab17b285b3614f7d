"""Blocks that are counted without listing every pass: the counts equal the layout's for every framework and schedule."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from lumos.plan.configuration import Settings, job_from
from lumos.plan.plan import PlanError
from lumos.plan.profiles import profiles
from lumos.prediction.arrange import arrange
from lumos.prediction.tally import Tallies

DEVICES = 8


def _counts(layout):
    """How often each stage of a layout runs each block."""
    found = [Counter() for _ in layout.stages]
    for items, counts in zip(layout.stages, found, strict=True):
        for item in items:
            counts[layout.blocks[item.block]] += item.repeat
    return found


@pytest.mark.parametrize(
    ("settings", "schedules"),
    [
        ({"pp": 2}, ("1f1b", "gpipe", "zero-bubble", "dualpipe")),
        ({"pp": 2, "vpp": 3}, ("interleaved",)),
        ({"pp": 1}, ("1f1b",)),
        ({"model": "mixtral-8x7b", "pp": 2, "ep": 2, "tp": 1}, ("1f1b", "dualpipe")),
    ],
)
def test_a_tally_counts_what_the_layout_lists(settings, schedules):
    job = job_from(Settings(**{"model": "gpt3-126m", "cluster": "h100", "gpus": 8, "global_batch": 16, "seq": 512, "tp": 2, **settings}))
    tally = Tallies(DEVICES)  # one for all plans, which share blocks
    tried = 0
    for framework in profiles().values():
        for schedule in schedules:
            for zero, recompute in enumerate(("none", "full", "selective", "none")):
                plan = replace(job.plan, schedule=schedule, zero=zero, recompute=recompute)
                try:
                    layout = arrange(job.model, plan, framework, DEVICES)
                except PlanError:
                    continue
                found = tally(job.model, plan, framework)
                assert [Counter({found.blocks[b]: n for b, n in runs.items()}) for runs in found.runs] == _counts(layout)
                tried += 1
    assert tried >= len(profiles())
