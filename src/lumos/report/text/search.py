"""Print the answers of `lumos search` and `lumos explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.predict.operating import operating
from lumos.report.text.format import heading, paragraph, print_trust, sentence, table
from lumos.report.text.predict import operating_lines
from lumos.units import count
from lumos.vocabulary import Recompute, Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from lumos.plan.plan import Plan
    from lumos.search.engine import Simulated
    from lumos.search.explain import Against
    from lumos.search.facade import Explained
    from lumos.search.search import Found


def print_found(out: Console, found: Found) -> None:
    """Print what was searched, then the best plans."""
    p = found.problem
    out.print(f"{p.model.name} on {p.gpus} x {p.cluster.name}, {p.global_batch} sequences of {p.seq_len} tokens, {p.framework.name}")
    if not found.complete:
        fit = found.plans - found.infeasible - found.excluded
        sentence(out, f"partial: interrupted when {found.evaluated:,} of the {fit:,} plans that fit were timed")
    if found.trust is not None:
        print_trust(out, found.trust)
    if not found.best:
        out.print(_why_none(found))
        return
    best = found.best[0]
    sentence(
        out,
        f"fastest: {plan_words(best.job.plan)}: step {best.time.time_s:.4g} s (80 %: {best.time.low_s:.4g} – {best.time.high_s:.4g}), "
        f"MFU {best.model_flops_utilization:.1%}",
    )
    paragraph(
        out,
        f"{count(found.plans, 'plan')}: {found.infeasible:,} need more memory, {found.excluded:,} break a condition, "
        f"{found.pruned:,} are proved slower, "
        f"{found.evaluated:,} timed, {len(found.best)} simulated in full, in {found.seconds_s:.1f} s",
    )
    table(out, ("plan", "step s", "+ %", "tok/s/GPU", "MFU", "peak GB"), [_row(q, best) for q in found.best], whole=True)
    for line in operating_lines(operating(p.cluster, p.gpus, best.tokens_per_s_per_gpu)):
        paragraph(out, line)
    _print_equal(out, found)


def _print_equal(out: Console, found: Found) -> None:
    """Say which plans are equal to the first as far as is known, which of them is the safest, and what would tell them apart."""
    against = found.against_first
    equal = [i for i, a in enumerate(against) if a is not None and a.equal]
    if not equal:
        return
    which = "all" if len(equal) == len(against) - 1 else f"{len(equal)} of the others"
    heading(out, f"Equal as far as is known: {which} overlap the first plan's interval")
    if found.safest:
        safest = found.best[found.safest]
        paragraph(
            out, f"least to lose, by the upper end of the interval: {plan_words(safest.job.plan)} (at most {safest.time.high_s:.4g} s)"
        )
    measured: dict[str, tuple[str, list[str]]] = {}
    for i in equal:
        a = against[i]
        if a is not None and a.decides is not None and a.measure is not None:
            tie = "" if a.tie is None else f" (equal at {100 * a.tie:+.0f} %)"
            measured.setdefault(a.measure, (a.decides, []))[1].append(f"{i + 1}{tie}")
    for measure, (decides, plans) in measured.items():
        paragraph(out, f"• {decides} decides about {_listed_plans(plans)}; measure {measure}")


def _listed_plans(plans: Sequence[str]) -> str:
    return f"plan {plans[0]}" if len(plans) == 1 else f"plans {', '.join(plans)}"


def _why_none(found: Found) -> str:
    if not found.plans:
        return "no plan keeps the rules"
    if not found.complete:
        return f"none of the {count(found.evaluated, 'plan')} that were timed is known to meet the conditions"
    if found.infeasible == found.plans:
        return f"no plan of {count(found.plans, 'plan')} fits the memory"
    return f"no plan of {count(found.plans, 'plan')} meets the conditions ({found.infeasible:,} of them do not fit the memory)"


def print_sweep(out: Console, key: str, rows: Sequence[tuple[int, Found]], best: int | None) -> None:
    """Print the best plan for every value of the swept size."""
    p = rows[0][1].problem
    out.print(f"{p.model.name} on {p.cluster.name}: the best plan for every {key}; best of all: {best}")
    if (trust := rows[0][1].trust) is not None:
        print_trust(out, trust)
    lines = []
    for value, found in rows:
        if found.best:
            q = found.best[0]
            lines.append((f"{value:,}", *_row(q, q)[:2], *_row(q, q)[3:]))
        else:
            lines.append((f"{value:,}", "no plan fits", "–", "–", "–", "–"))
    table(out, (key, "plan", "step s", "tok/s/GPU", "MFU", "peak GB"), lines, left=(1,), whole=True)


def print_explanation(out: Console, explained: Explained) -> None:
    """Print two steps, their parts with the differences, the largest first, their memory, and whether one is known to be faster."""
    sides = {"A": explained.first, "B": explained.second}
    for letter, p in sides.items():
        low, high = f"{p.time.low_s:.4g}", f"{p.time.high_s:.4g}"
        out.print(f"{letter}: {plan_words(p.job.plan)}: step {p.time.time_s:.4g} s (80 %: {low} – {high})")
    steps = [p.time.time_s for p in sides.values()]
    faster = 0 if steps[0] <= steps[1] else 1
    slower = steps[1 - faster] / steps[faster] - 1
    out.print(f"{'AB'[faster]} is faster by {abs(steps[1] - steps[0]):.4g} s ({slower:.1%} of its step)")
    parts = explained.parts
    rows = [
        (name, f"{parts.first.get(name, 0):.4g}", f"{parts.second.get(name, 0):.4g}", f"{difference:+.4g}")
        for name, difference in parts.difference.items()
    ]
    table(out, ("part (mean over stages)", "A s", "B s", "B − A s"), rows)
    for line in _verdict(parts.against):
        paragraph(out, line)
    memory = (f"{letter} {p.memory.peak_bytes / 1e9:.1f} GB{'' if p.memory.fits else ' (does not fit)'}" for letter, p in sides.items())
    paragraph(out, f"peak memory: {', '.join(memory)}")
    for letter, p in sides.items():
        shared = (explained.second if letter == "A" else explained.first).diagnostics
        for note in p.diagnostics:
            if note not in shared and note.code != "out-of-memory":
                paragraph(out, f"{letter} only: {note.message}")


def _verdict(a: Against) -> list[str]:
    """Whether the faster of two plans is known to be faster, and what would tell."""
    lines = ["the 80 % intervals of the two steps overlap: equal as far as is known" if a.equal else "the 80 % intervals are apart"]
    if a.decides is not None:
        tie = f"; the steps are equal if it costs {100 * a.tie:+.0f} %" if a.tie is not None else ""
        lines.append(f"{a.decides} decides{tie}; measure {a.measure}")
    return lines


def _row(p: Simulated, best: Simulated) -> tuple[str, ...]:
    slower = p.time.time_s / best.time.time_s - 1
    return (
        plan_words(p.job.plan), f"{p.time.time_s:.4g}", f"{100 * slower:.1f}", f"{p.tokens_per_s_per_gpu:,.0f}",
        f"{p.model_flops_utilization:.1%}", f"{p.memory.peak_bytes / 1e9:.1f}",
    )  # fmt: skip


def plan_words(plan: Plan) -> str:
    """A plan in one line: the degrees above 1, then every choice that is not the default."""
    sizes = (("tp", plan.tp), ("pp", plan.pp), ("v", plan.vpp), ("cp", plan.cp), ("ep", plan.ep), ("dp", plan.dp), ("mb", plan.micro_batch))
    words = [f"{name}{size}" for name, size in sizes if size > 1 or name == "mb"]
    words += [f"z{plan.zero}"] + (["sp"] if plan.sequence_parallel else [])
    words += [plan.schedule] if plan.schedule not in (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED) else []
    return " ".join(words + ([f"recompute {plan.recompute}"] if plan.recompute is not Recompute.NONE else []))
