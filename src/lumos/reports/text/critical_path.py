"""Print the answer of `lumos critical-path`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from lumos.analyze.critical_path import PATH_GROUPS, CriticalPath, Link
from lumos.reports.text.format import (
    MOST_ROWS,
    ShownField,
    a_step,
    kernel_name,
    marked,
    marks,
    paragraph,
    percent,
    print_diagnostics,
    print_shares,
    print_trust,
    sentence,
    share_of,
    table,
)
from lumos.result import plain
from lumos.units import count, duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from lumos.analyze.loop.steps import JobTime
    from lumos.analyze.trust import Trust
    from lumos.analyze.waiting.slack import ClassSlack
    from lumos.diagnostics import Diagnostic
    from lumos.graph.table import Graph

#: How many links of one step, and how many names on the paths, are listed.
_LONGEST = 10
#: Classes with less than this share of the steps are summed up as "the rest".
_LEAST = 0.001
#: The groups of work in the titles of columns.
_SHORT = {"CPU work": "CPU", "communication": "comm.", "launches and gaps": "gaps"}


class ShownPaths(NamedTuple):
    """What is shown. run: "measured" or "replayed". paths: of all steps, or of the one that was asked for."""

    run: str
    graph: Graph
    headline: JobTime
    paths: Sequence[CriticalPath]
    slack: Mapping[str, ClassSlack]
    trust: Trust
    diagnostics: Sequence[Diagnostic]

    @property
    def counted(self) -> Sequence[CriticalPath]:
        """The paths of which the means are: of the steps that count, or the only one."""
        return self.paths if len(self.paths) == 1 else [path for path in self.paths if path.counts]

    def to_dict(self) -> dict[str, Any]:
        """The whole, in the types of JSON, with the names of the tasks and processors of the paths' links."""
        step, about = self.headline, {"ranks": len(self.graph.ranks), "of": self.run}
        times = {"step_time_ns": step.step_time_ns, "median_ns": step.median_ns, "latency_ns": step.latency_ns, "basis": step.basis}
        steps = [{**plain(replace(path, links=())), "links": [_plain(link, self.graph) for link in path.links]} for path in self.paths]
        beside = {"steps": steps, "slack_by_class": self.slack, "trust": self.trust, "diagnostics": self.diagnostics}
        return {**times, **about, **{key: plain(value) for key, value in beside.items()}}

    @property
    def which(self) -> str:
        """What the times of the paths are, as tables say it."""
        return self.counted[0].name if len(self.counted) == 1 else "mean over steps"


def _plain(link: Link, graph: Graph) -> dict[str, Any]:
    processor = graph.processors[graph.processor[link.task]]
    where = {"name": graph.names[graph.name[link.task]], "rank": processor.rank, "processor": processor.name, "arrival_rank": link.rank}
    times = {"class": link.label, "start_ns": link.start_ns, "end_ns": link.end_ns, "delay_ns": link.delay_ns, "idle_ns": link.idle_ns}
    return {"task": link.task, **where, **times, "cause": None if link.cause is None else link.cause.word}


def print_critical_paths(console: Console, shown: ShownPaths) -> None:
    """Print the whole answer."""
    sentence(console, path_headline(shown))
    print_trust(console, shown.trust)
    several = len(shown.graph.ranks) > 1
    if several:
        paragraph(console, ranks_sentence(shown.counted))
    if len(shown.paths) > 1:
        basis, groups = shown.headline.basis, [g for g in PATH_GROUPS if any(path.by_group.get(g) for path in shown.paths)]
        columns: Mapping[str, ShownField] = {
            "step": marked(basis), "time": "duration_ns", **{_SHORT.get(group, group): _share_of(group) for group in groups},
        }  # fmt: skip
        table(console, columns, shown.paths, *marks(shown.paths, basis), title="Steps: what their critical paths consist of")
    _print_shares(console, shown)
    if several:
        _print_ranks(console, shown)
    _print_names(console, shown)
    if len(shown.counted) == 1:
        _print_links(console, shown.graph, shown.counted[0])
    _print_slack(console, shown.slack)
    print_diagnostics(console, shown.diagnostics)


def path_headline(shown: ShownPaths) -> str:
    """How long the job takes for a step, and what bounds its steps, or the one step that was asked for, in a sentence."""
    ranks, headline, counted, first = shown.graph.ranks, shown.headline, shown.counted, shown.paths[0]
    who = f"rank {ranks[0]}" if len(ranks) == 1 else count(len(ranks), "rank")
    step = f"{a_step(headline)} as {shown.trust.timed(shown.run)}"
    bound, total = "", sum(path.duration_ns for path in counted)
    if total:
        times = {group: sum(path.by_group.get(group, 0) for path in counted) for group in PATH_GROUPS}
        largest = max(times, key=lambda group: times[group])
        bound = f"bound by {largest} ({percent(times[largest] / total, decimals=0)})"
    if len(shown.paths) == 1 and (headline.steps > 1 or not first.counts):
        of_path = f"{first.name}, {duration(first.duration_ns)} ({first.basis})"
        return f"{who}: {step}; {of_path}" + (f", is {bound}" if bound else "")
    what = first.name if len(shown.paths) == 1 else count(len(shown.paths), "step")
    return f"{who}: {what}, {step}" + (f", {bound}" if bound else "")


def ranks_sentence(paths: Sequence[CriticalPath]) -> str:
    """Which rank the others waited for most."""
    waited_for = _by_rank(paths, "waited_for_ns")
    total = waited_for.total() / len(paths)
    if not total:
        return "no rank waited for another in a collective whose ranks were all given"
    rank = max(waited_for, key=lambda r: waited_for[r])
    share = percent(waited_for[rank] / waited_for.total(), decimals=0)
    return f"ranks waited {duration(total)} in collectives, all together, of which {share} for rank {rank}"


def _by_rank(paths: Sequence[CriticalPath], field: str) -> Counter[int]:
    """A time of every rank, summed over the paths."""
    total: Counter[int] = Counter()
    for share in (share for path in paths for share in path.by_rank):
        total[share.rank] += getattr(share, field)
    return total


def _share_of(group: str) -> ShownField:
    """The share that a group of work has of a path."""
    return lambda path: share_of(path.by_group.get(group, 0), path.duration_ns)


def _print_shares(console: Console, shown: ShownPaths) -> None:
    paths = shown.counted
    total = sum(path.duration_ns for path in paths) or 1
    by_class: Counter[str] = Counter()
    for path in paths:
        by_class.update(path.by_class)
    named = {label: time for label, time in by_class.most_common() if time >= _LEAST * total}
    if rest := by_class.total() - sum(named.values()):
        named["the rest"] = rest
    times = {label: time / len(paths) for label, time in named.items()}
    print_shares(console, f"Along the critical path ({shown.which})", times, total / len(paths))


def _print_ranks(console: Console, shown: ShownPaths) -> None:
    path_ns, waited, waited_for = (_by_rank(shown.counted, field) for field in ("path_ns", "waited_ns", "waited_for_ns"))
    ranks, number = shown.graph.ranks, len(shown.counted)
    order = sorted(ranks, key=lambda r: (-waited_for[r], -path_ns[r])) if len(ranks) > MOST_ROWS else ranks

    def mean(times: Counter[int]) -> ShownField:
        return lambda rank: duration(times[rank] / number or None)

    columns: Mapping[str, ShownField] = {
        "rank": str,
        "on the path": mean(path_ns),
        "share": lambda rank: share_of(path_ns[rank], path_ns.total()),
        "it waited": mean(waited),
        "others waited for it": mean(waited_for),
    }
    note = "waiting: in collectives, for the rank that came last; summed over ranks"
    table(console, columns, order, note, title=f"Ranks ({shown.which})")


def _print_names(console: Console, shown: ShownPaths) -> None:
    """Print the names whose tasks take most of the path."""
    graph, number = shown.graph, len(shown.counted)
    time: Counter[str] = Counter()
    links: Counter[str] = Counter()
    for link in (link for path in shown.counted for link in path.links):
        name = graph.names[graph.name[link.task]]
        time[name] += link.end_ns - link.start_ns
        links[name] += 1
    total = sum(path.duration_ns for path in shown.counted)
    rows = [
        (kernel_name(name), f"{links[name] / number:,.4g}", duration(ns / number), share_of(ns, total))
        for name, ns in time.most_common(_LONGEST)
    ]
    table(console, ("name", "links", "time", "of the step"), rows, title=f"Most of it, by name ({shown.which})")


def _print_links(console: Console, graph: Graph, path: CriticalPath) -> None:
    columns: Mapping[str, ShownField] = {
        "at": lambda link: duration(link.start_ns - path.start_ns),
        "rank": "rank",
        "on": lambda link: graph.processors[graph.processor[link.arrival]].name,
        "name": lambda link: kernel_name(graph.names[graph.name[link.task]]),
        "time": lambda link: duration(link.end_ns - link.start_ns),
    }
    longest = sorted(path.links, key=lambda link: link.start_ns - link.end_ns)[:_LONGEST]
    table(console, columns, longest, title="Longest links")


def _print_slack(console: Console, slack: Mapping[str, ClassSlack]) -> None:
    rows = [
        (
            label,
            row.tasks,
            duration(row.time_ns),
            share_of(row.critical_ns, row.time_ns),
            "no end" if row.median_ns is None else duration(row.median_ns),
        )
        for label, row in slack.items()
    ]
    table(
        console,
        ("class", "tasks", "time", "without slack", "median slack"),
        rows,
        "of the replayed run, one task at a time; over the steps that count, all ranks",
        title="Slack: how much longer tasks could take before a step ends later",
    )
