"""More replicas than were traced: gradients are exchanged over a link that the user describes."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from lumos.changes.changes import Changes
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.cost.cluster import load_cluster
from lumos.cost.collective_model import collective
from lumos.errors import LumosError
from lumos.graph.build import build
from lumos.trace import read
from lumos.trace.table import Job

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "gpt-2rank-cpu"


@cache
def alone():
    """One rank of the recorded job as if it had run alone: its exchanges are short, because it neither waits nor sends."""
    trace = replace(read(str(EXAMPLE)).traces[0], world_size=1)
    job = Job((trace,))
    graph = build(job)
    return job, replace(graph, duration=quick(graph))


def quick(graph):
    duration = graph.duration.copy()
    duration[graph.collectives.task] = 50_000
    return duration


def link(tmp_path, rate):
    path = tmp_path / f"link{rate:g}.toml"
    path.write_text(f'based_on = "host"\n[node]\nlink_bytes_per_s = {rate:g}\n')
    return str(path)


def ask(path=None, words=("dp=2",), **more):
    """The answer, which is forced: with other durations of its collectives, the job is no longer what was measured."""
    job, graph = alone()
    return answer_changes(job, graph, Changes(parse_settings(words), base_cluster=path, **more), force=True)


def test_one_process_does_not_show_what_an_exchange_costs():
    with pytest.raises(LumosError, match=r"one process.*--base-cluster FILE\.toml"):
        ask()


def test_what_the_backward_pass_does_not_hide_is_awaited(tmp_path):
    _, graph = alone()
    path = link(tmp_path, 1e8)
    found = ask(path)
    cluster, facts = load_cluster(path), graph.collectives
    steps = len(graph.steps)
    moved = sum(int(collective("all-reduce", 2, int(n), cluster).time) for n in facts.nbytes) * 1e-9 / steps
    longer = found.outcome.step_time_s - found.base.step_time_s
    assert 0.2 * moved < longer <= 1.01 * moved
    assert found.outcome.step_time_low_s < found.outcome.step_time_s < found.outcome.step_time_high_s
    assert found.share.modelled > 0


def test_a_faster_link_is_never_slower(tmp_path):
    steps = [ask(link(tmp_path, rate)).outcome.step_time_s for rate in (1e8, 2e8, 1e9, 1e10)]
    assert steps == sorted(steps, reverse=True) and steps[0] > steps[-1]


def test_twice_the_bandwidth_is_a_link_of_twice_the_rate(tmp_path):
    twice = ask(link(tmp_path, 1e8), network=("bandwidth=x2",))
    assert twice.outcome.step_time_s == pytest.approx(ask(link(tmp_path, 2e8)).outcome.step_time_s, rel=1e-6)
