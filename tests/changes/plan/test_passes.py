"""Recordings of passes under another pipeline, compared with steps that can be computed by hand."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lumos.changes.changes import Changes
from lumos.changes.durations import Durations
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.errors import LumosError, UsageError
from lumos.graph.build import build
from lumos.plan.schedules import Pass, schedule
from lumos.simulation import simulate
from lumos.trace import read

FORWARD, BACKWARD = 10.0, 20.0  # ms
STAGES, COUNT = 2, 4


def _recording(folder, stages=STAGES, count=COUNT, steps=2):
    """1F1B with equal passes and free transfers, as pp_vis writes it: each step lasts (count + stages − 1) · 30 ms."""
    actions = {s: schedule("1f1b", s, stages, count) for s in range(stages)}
    ends: dict[tuple[Pass, int, int], float] = {}
    spans: dict[int, dict[Pass, list[tuple[float, float]]]] = {s: {Pass.FORWARD: [], Pass.BACKWARD: []} for s in range(stages)}
    clock = dict.fromkeys(range(stages), 0.0)
    while any(actions.values()):
        for s in range(stages):
            while actions[s]:
                a = actions[s][0]
                if a.step is Pass.FORWARD:
                    needs = (Pass.FORWARD, a.microbatch, s - 1) if s else None
                else:
                    needs = (Pass.BACKWARD, a.microbatch, s + 1) if s + 1 < stages else (Pass.FORWARD, a.microbatch, s)
                if needs is not None and needs not in ends:
                    break
                begin = max(clock[s], ends[needs] if needs else 0.0)
                clock[s] = ends[a.step, a.microbatch, s] = begin + (FORWARD if a.step is Pass.FORWARD else BACKWARD)
                spans[s][a.step].append((begin, clock[s]))
                actions[s].pop(0)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"pp_size": stages, "world_size": stages, "dp_size": 1, "vp_size": 1}))
    for s, passes in spans.items():
        step = {
            f"{word}_{edge}": [span[i] for span in passes[kind]]
            for word, kind in (("fwd", Pass.FORWARD), ("bwd", Pass.BACKWARD))
            for i, edge in enumerate(("start", "end"))
        }
        step["total"] = max(clock.values())
        (folder / f"pp_rank_{s}.json").write_text(json.dumps({str(n): step for n in range(1, steps + 1)}))
    job = read(str(folder))
    return job, build(job)


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    return _recording(tmp_path_factory.mktemp("passes"))


def _step(recording, *words, **durations):
    job, graph = recording
    return answer_changes(job, graph, Changes(parse_settings(words), **durations)).outcome.step_time_s * 1e3


def test_the_same_pipeline_is_the_recording(recording):
    assert _step(recording, "vpp=1") == pytest.approx((COUNT + STAGES - 1) * 30)
    job, graph = recording
    found = answer_changes(job, graph, Changes(parse_settings(["pp=2"])))
    assert found.outcome.step_time_s == found.base.step_time_s == found.measured_step_s


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["vpp=2"], COUNT * 30 + (STAGES - 1) * 30 / 2),  # half the bubble (Narayanan et al. 2021, section 2.2)
        (["microbatches=8"], (8 + STAGES - 1) * 30),
        (["microbatches=1"], STAGES * 30),
        (["schedule=gpipe"], (COUNT + STAGES - 1) * 30),  # the bubble of GPipe is that of 1F1B
        (["pp=4"], (COUNT + 3) * 15),
        (["pp=1"], COUNT * 60),
        (["pp=4", "microbatches=8"], (8 + 3) * 15),
        (["vpp=2", "microbatches=8"], 8 * 30 + 15),
    ],
)
def test_the_bubble_is_that_of_the_schedule(recording, words, expected):
    assert _step(recording, *words) == pytest.approx(expected, rel=1e-6)


def test_changes_of_durations_apply_to_the_rearranged_passes(recording):
    half = Durations.parse(["*-compute=0.5"], (), (), ())
    assert _step(recording, "vpp=2", durations=half) == pytest.approx(_step(recording, "vpp=2") / 2)


def test_any_pipeline_has_a_schedule(tmp_path):
    job, graph = _recording(tmp_path, stages=4, count=8)
    for words in (["vpp=2"], ["vpp=3", "pp=2"], ["pp=3"], ["pp=8", "microbatches=16", "vpp=2"], ["schedule=gpipe", "microbatches=3"]):
        assert answer_changes(job, graph, Changes(parse_settings(words))).outcome.step_time_s > 0
    assert simulate(graph)


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        (["tp=2"], LumosError, "not what they consist of"),
        (["layers=8"], LumosError, "not what they consist of"),
        (["schedule=zero-bubble"], UsageError, "valid are 1f1b, gpipe, interleaved for a job that is changed through its recorded passes"),
        (["schedule=interleaved"], UsageError, "cannot be used with vpp=1"),
        (["vpp=2", "microbatches=3"], UsageError, "multiple"),
        (["pp=0"], UsageError, "at least 1"),
        (["pp=two"], UsageError, "whole number"),
    ],
)
def test_a_change_that_passes_do_not_support_is_refused(recording, words, error, text):
    with pytest.raises(error, match=text):
        _step(recording, *words)


@pytest.mark.skipif("LUMOS_TRACES" not in os.environ, reason="LUMOS_TRACES is not set: the public traces are not here")
def test_where_passes_cannot_be_rearranged_only_durations_can_change():
    """The public recording has transfers and collectives besides its passes."""
    job = read(str(Path(os.environ["LUMOS_TRACES"]) / "straggler-8gpu"))
    with pytest.raises(LumosError, match="so that only durations can change"):
        answer_changes(job, build(job), Changes(parse_settings(["layers=2"])))


def test_a_network_cannot_change_passes(recording):
    with pytest.raises(LumosError, match="--network"):
        _step(recording, network=("bandwidth=x2",))
