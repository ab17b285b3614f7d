"""Critical paths, slack and parts on public traces: links and parts sum to the step, and the path of a replayed run has no slack."""

import os
from pathlib import Path

import pytest

import lumos
from lumos.analyze.loop.steps import members, step_times
from lumos.errors import LumosError
from lumos.simulation import freeze

ROOT = os.environ.get("LUMOS_TRACES")

if ROOT is None:
    pytest.skip("LUMOS_TRACES is not set: the public traces are not here", allow_module_level=True)

FOLDERS = [Path(ROOT) / name for name in ("dlrm-8xv100", "straggler-8gpu", "pipeline-8gpu")]
TRACES = [*sorted(Path(ROOT).rglob("*.json.gz")), *FOLDERS]


@pytest.fixture(params=TRACES, ids=lambda path: str(path.relative_to(ROOT)), scope="module")
def recorded(request):
    """A job, its graph and its members; each is read once for all tests, and one that cannot be is named."""
    try:
        job = lumos.read(request.param)
        graph = lumos.build(job)
    except LumosError as error:
        assert str(request.param) in str(error)
        pytest.skip(str(error))
    return job, graph, members(graph)


def test_the_critical_path_adds_up_and_has_no_slack(recorded):
    _, graph, owners = recorded
    frozen, replayed = freeze(graph), lumos.simulate(graph)
    for run in (lumos.measured(graph), replayed):
        paths = lumos.critical_path(run, owners, frozen=frozen)
        for found in paths:
            shares = found.by_class, found.by_group, {share.rank: share.path_ns for share in found.by_rank}
            assert {sum(share.values()) for share in shares} == {found.duration_ns}
            at = found.start_ns
            for link in found.links:
                assert link.start_ns - link.delay_ns - link.idle_ns == at
                assert min(link.delay_ns, link.idle_ns, link.end_ns - link.start_ns) >= 0
                at = link.end_ns
            assert at == found.start_ns + found.duration_ns
    slack = lumos.slack(replayed, owners, frozen=frozen).slack
    assert slack.min() >= 0
    for found in paths:
        imposed = [i for i, link in enumerate(found.links) if link.cause is None and link.idle_ns]
        assert not slack[[link.task for link in found.links[imposed[-1] if imposed else 0 :]]].any()
        assert not found.by_class.get("idle")


def test_the_parts_add_up_and_the_steps_tile(recorded):
    job, graph, owners = recorded
    for run in (lumos.measured(graph), lumos.simulate(graph)):
        for step in lumos.breakdown(run, owners, job):
            parts, idle = step.parts, step.idle
            assert sum(parts) == sum(step.breakdown) == step.duration_ns and min(parts) >= 0
            assert idle is None or (parts.kernel_gap_ns, parts.wait_ns, parts.unexplained_ns) == idle[1:]
        times = step_times(run, owners).job
        for step, time in zip(owners.job, times, strict=True):
            assert step.previous < 0 or times[step.previous].completion_ns == time.since_ns
        paths = lumos.critical_path(run, owners)
        assert [(found.start_ns, found.duration_ns) for found in paths] == [(time.since_ns, time.length_ns) for time in times]
