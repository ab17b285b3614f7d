"""Print the answer of `lumos critical-path`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.analyze.critical_path import PATH_GROUPS, CriticalPath
from lumos.reports.text.format import (
    MOST_ROWS,
    a_step,
    heading,
    kernel_name,
    marked,
    paragraph,
    percent,
    print_diagnostics,
    print_marks,
    print_trust,
    sentence,
    table,
)
from lumos.units import count, duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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


def print_critical_paths(
    console: Console,
    run: str,
    graph: Graph,
    headline: JobTime,
    paths: Sequence[CriticalPath],
    slack: Mapping[str, ClassSlack],
    trust: Trust,
    diagnostics: Sequence[Diagnostic],
) -> None:
    """Print the whole answer. run: "measured" or "replayed". paths: of all steps, or of the one that was asked for."""
    counted = paths if len(paths) == 1 else [path for path in paths if path.counts]
    sentence(console, path_headline(run, graph, headline, paths))
    print_trust(console, trust)
    if len(graph.ranks) > 1:
        paragraph(console, ranks_sentence(counted))
    if len(paths) > 1:
        _print_steps(console, headline, paths)
    _print_shares(console, counted)
    if len(graph.ranks) > 1:
        _print_ranks(console, graph, counted)
    _print_names(console, graph, counted)
    if len(counted) == 1:
        _print_links(console, graph, counted[0])
    _print_slack(console, slack)
    print_diagnostics(console, diagnostics)


def _which(paths: Sequence[CriticalPath]) -> str:
    return paths[0].name if len(paths) == 1 else "mean over steps"


def path_headline(run: str, graph: Graph, headline: JobTime, paths: Sequence[CriticalPath]) -> str:
    """How long the job takes for a step, and what bounds its steps, or the one step that was asked for, in a sentence."""
    who = f"rank {graph.ranks[0]}" if len(graph.ranks) == 1 else count(len(graph.ranks), "rank")
    each = f"{a_step(headline.step_time_ns, headline.latency_ns, headline.basis)} as {run}"
    shown = paths if len(paths) == 1 else [path for path in paths if path.counts]
    bound, total = "", sum(path.duration_ns for path in shown)
    if total:
        share = {group: sum(path.by_group.get(group, 0) for path in shown) for group in PATH_GROUPS}
        largest = max(share, key=lambda group: share[group])
        bound = f"bound by {largest} ({percent(share[largest] / total, decimals=0)})"
    if len(paths) == 1 and (headline.steps > 1 or not paths[0].counts):
        of_path = f"{paths[0].name}, {duration(paths[0].duration_ns)} ({paths[0].basis})"
        return f"{who}: {each}; {of_path}, is {bound}" if bound else f"{who}: {each}; {of_path}"
    what = paths[0].name if len(paths) == 1 else count(len(paths), "step")
    return f"{who}: {what}, {each}, {bound}" if bound else f"{who}: {what}, {each}"


def ranks_sentence(paths: Sequence[CriticalPath]) -> str:
    """Which rank the others waited for most."""
    waited_for = _sums(((share.rank, share.waited_for_ns) for path in paths for share in path.by_rank), len(paths))
    total = sum(waited_for.values())
    if not total:
        return "no rank waited for another in a collective whose ranks were all given"
    rank = max(waited_for, key=lambda r: waited_for[r])
    share = percent(waited_for[rank] / total, decimals=0)
    return f"ranks waited {duration(total)} in collectives, all together, of which {share} for rank {rank}"


def _sums(pairs: Iterable[tuple[int, int]], number: int) -> dict[int, float]:
    """The sum of the values of each key, divided by `number` steps."""
    totals: dict[int, float] = {}
    for key, value in pairs:
        totals[key] = totals.get(key, 0) + value / number
    return totals


def _print_steps(console: Console, headline: JobTime, paths: Sequence[CriticalPath]) -> None:
    heading(console, "Steps: what their critical paths consist of")
    groups = [group for group in PATH_GROUPS if any(path.by_group.get(group) for path in paths)]
    short = {"CPU work": "CPU", "communication": "comm.", "launches and gaps": "gaps"}
    rows = [
        (
            marked(path.name, path.basis is not headline.basis, not path.counts),
            duration(path.duration_ns),
            *(percent(path.by_group.get(g, 0) / max(path.duration_ns, 1), decimals=1) for g in groups),
        )
        for path in paths
    ]
    table(console, ("step", "time", *(short.get(g, g) for g in groups)), rows)
    left_out = any(path.basis is headline.basis and not path.counts for path in paths)
    print_marks(console, any(path.basis is not headline.basis for path in paths), left_out)


def _print_shares(console: Console, paths: Sequence[CriticalPath]) -> None:
    heading(console, f"Along the critical path ({_which(paths)})")
    total = sum(path.duration_ns for path in paths) or 1
    shares: dict[str, int] = {}
    for path in paths:
        for label, time in path.by_class.items():
            shares[label] = shares.get(label, 0) + time
    shown = {label: time for label, time in shares.items() if time >= _LEAST * total}
    rest = sum(shares.values()) - sum(shown.values())
    ordered = [*sorted(shown.items(), key=lambda item: -item[1]), *([("the rest", rest)] if rest else [])]
    rows = [(label, duration(time / len(paths)), percent(time / total, decimals=1)) for label, time in ordered]
    table(console, ("", "time", "of the step"), rows)


def _print_ranks(console: Console, graph: Graph, paths: Sequence[CriticalPath]) -> None:
    heading(console, f"Ranks ({_which(paths)})")
    shares = [share for path in paths for share in path.by_rank]
    path_ns, waited, waited_for = (
        _sums(((s.rank, time) for s, time in zip(shares, times, strict=True)), len(paths))
        for times in ([s.path_ns for s in shares], [s.waited_ns for s in shares], [s.waited_for_ns for s in shares])
    )
    total = sum(path_ns.values()) or 1
    order = sorted(graph.ranks, key=lambda r: (-waited_for[r], -path_ns[r])) if len(graph.ranks) > MOST_ROWS else graph.ranks
    rows = [
        (
            f"{r}",
            duration(path_ns[r] or None),
            percent(path_ns[r] / total, decimals=1),
            duration(waited[r] or None),
            duration(waited_for[r] or None),
        )
        for r in order
    ]
    table(console, ("rank", "on the path", "share", "it waited", "others waited for it"), rows, left=())
    console.print("  waiting: in collectives, for the rank that came last; summed over ranks")


def _print_names(console: Console, graph: Graph, paths: Sequence[CriticalPath]) -> None:
    """Print the names whose tasks take most of the path."""
    heading(console, f"Most of it, by name ({_which(paths)})")
    time: dict[str, int] = {}
    times: dict[str, int] = {}
    for path in paths:
        for link in path.links:
            name = graph.names[graph.name[link.task]]
            time[name] = time.get(name, 0) + link.end_ns - link.start_ns
            times[name] = times.get(name, 0) + 1
    total = sum(path.duration_ns for path in paths) or 1
    rows = [
        (kernel_name(name), f"{times[name] / len(paths):,.4g}", duration(ns / len(paths)), percent(ns / total, decimals=1))
        for name, ns in sorted(time.items(), key=lambda item: -item[1])[:_LONGEST]
    ]
    table(console, ("name", "links", "time", "of the step"), rows)


def _print_links(console: Console, graph: Graph, path: CriticalPath) -> None:
    heading(console, "Longest links")
    links = sorted(path.links, key=lambda link: link.start_ns - link.end_ns)[:_LONGEST]
    rows = [
        (
            duration(link.start_ns - path.start_ns),
            f"{link.rank}",
            graph.processors[graph.processor[link.arrival]].name,
            kernel_name(graph.names[graph.name[link.task]]),
            duration(link.end_ns - link.start_ns),
        )
        for link in links
    ]
    table(console, ("at", "rank", "on", "name", "time"), rows, left=(2, 3))


def _print_slack(console: Console, slack: Mapping[str, ClassSlack]) -> None:
    heading(console, "Slack: how much longer tasks could take before a step ends later")
    rows = [
        (
            label,
            f"{row.tasks:,}",
            duration(row.time_ns),
            percent(row.critical_ns / row.time_ns if row.time_ns else None, decimals=1),
            "no end" if row.median_ns is None else duration(row.median_ns),
        )
        for label, row in slack.items()
    ]
    table(console, ("class", "tasks", "time", "without slack", "median slack"), rows)
    console.print("  of the replayed run, one task at a time; over the steps that count, all ranks")
