"""Print the answers of `lumos search` and `lumos explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.report.text.format import paragraph, print_trust, sentence, table
from lumos.units import count
from lumos.vocabulary import Recompute, Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from lumos.plan.plan import Plan
    from lumos.search.engine import Simulated
    from lumos.search.explain import Explanation
    from lumos.search.search import Found


def print_found(out: Console, found: Found) -> None:
    """Print what was searched, then the best plans."""
    p = found.problem
    out.print(f"{p.model.name} on {p.gpus} x {p.cluster.name}, {p.global_batch} sequences of {p.seq_len} tokens, {p.framework.name}")
    if not found.complete:
        out.print("interrupted: the best so far")
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


def print_explanation(out: Console, names: tuple[str, str], steps: tuple[float, float], explanation: Explanation) -> None:
    """Print the parts of two steps and their differences, the largest difference first."""
    faster = 0 if steps[0] <= steps[1] else 1
    out.print(f"A: {names[0]}: step {steps[0]:.4g} s")
    out.print(f"B: {names[1]}: step {steps[1]:.4g} s")
    slower = steps[1 - faster] / steps[faster] - 1
    out.print(f"{'AB'[faster]} is faster by {abs(steps[1] - steps[0]):.4g} s ({slower:.1%} of its step)")
    rows = [
        (name, f"{explanation.first.get(name, 0):.4g}", f"{explanation.second.get(name, 0):.4g}", f"{difference:+.4g}")
        for name, difference in explanation.difference.items()
    ]
    table(out, ("part (mean over stages)", "A s", "B s", "B − A s"), rows)


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
