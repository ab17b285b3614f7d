"""Print the answers of `lumos predict`, `lumos search` and `lumos explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from lumos.prediction.operating import Campaign, Operating, operating
from lumos.reports.text.format import ShownField, heading, paragraph, percent, print_diagnostics, print_shares, sentence, table
from lumos.reports.text.whatif import PARTS_IN_SECONDS
from lumos.units import count, duration
from lumos.vocabulary import Recompute, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console

    from lumos.plan.plan import Plan
    from lumos.prediction.predict import Prediction
    from lumos.searching.engine import Simulated
    from lumos.searching.explain import Against
    from lumos.searching.facade import Explained
    from lumos.searching.search import Found

#: How many kinds of work on the critical path are listed.
MOST_KINDS = 8
#: The parts of a device's memory: fields of `Memory`, and their names for people.
MEMORY_PARTS = {
    "parameters_bytes": "parameters",
    "gradients_bytes": "gradients",
    "optimizer_bytes": "optimizer",
    "activations_bytes": "activations",
}


def print_prediction(console: Console, p: Prediction) -> None:
    """Print the time of the step, its parts, what bounds it, and the memory."""
    sentence(console, predict_headline(p))
    chosen = [d.message for d in p.diagnostics if d.code == "chosen-plan"]
    for line in (*chosen, *_job(p), *operating_lines(p.operating)):
        paragraph(console, line)
    parts = {label: p.breakdown[key] * 1e9 for key, label in PARTS_IN_SECONDS.items()}
    print_shares(console, "Where the step goes (mean over stages)", parts, p.time.time_s * 1e9)
    path = [(kind, percent(share, decimals=1)) for kind, share in list(p.critical_path.items())[:MOST_KINDS]]
    bounds = ", ".join(f"{bound} {percent(share, decimals=1)}" for bound, share in p.bound_by.items())
    table(console, ("", "of the step"), path, f"bound by {bounds}", title="Along the critical path")
    m = p.memory
    held = [(name, f"{getattr(m, key) / 1e9:.1f}") for key, name in MEMORY_PARTS.items()]
    fits = "fits" if m.fits else "does not fit"
    table(console, ("", "GB"), held, title=f"Memory of stage {m.stage}: {m.peak_bytes / 1e9:.1f} GB, {fits}")
    print_diagnostics(console, [d for d in p.diagnostics if d.code != "chosen-plan"])


def predict_headline(p: Prediction) -> str:
    """The answer in one sentence. A plan that does not fit is no answer, and that is said first."""
    low, high = (duration(seconds * 1e9) for seconds in (p.time.low_s, p.time.high_s))
    step = f"{duration(p.time.time_s * 1e9)} a step (80 % interval {low} to {high}), MFU {percent(p.model_flops_utilization, decimals=1)}"
    if p.memory.fits:
        return step
    capacity = (p.job.cluster.accelerator.usable_bytes or 0) / 1e9
    return f"does not fit: {p.memory.peak_bytes / 1e9:.1f} GB of {capacity:.0f} on stage {p.memory.stage}; it would take {step}"


def _job(p: Prediction) -> tuple[str, str, str]:
    """What was predicted, and its rates."""
    job, plan = p.job, p.job.plan
    sizes = (("tp", plan.tp), ("pp", plan.pp), ("vpp", plan.vpp), ("cp", plan.cp), ("ep", plan.ep))
    dims = "".join(f"{name} {size} " for name, size in sizes if size > 1)
    tflops = p.model_flops_utilization * job.cluster.accelerator.peak(plan.precision) / 1e12
    return (
        f"{job.model.name} ({job.model.parameters / 1e9:.1f} B parameters) on {plan.devices} x {job.cluster.name}, {job.framework.name}",
        f"{dims}dp {plan.dp} zero {plan.zero}, {plan.microbatches} microbatches of {plan.micro_batch} x {plan.seq_len} tokens, "
        f"{plan.precision}, recompute {plan.recompute}",
        f"{p.tokens_per_s_per_gpu:,.0f} tokens/s per device, {tflops:.0f} TFLOP/s per device",
    )


def operating_lines(o: Operating) -> list[str]:
    """What the job costs to run, as far as it is known."""
    lines = []
    if o.goodput is not None and o.checkpoint_every_s is not None:
        every = duration(o.checkpoint_every_s * 1e9)
        lines.append(f"goodput {percent(o.goodput, decimals=1)} with failures, if a checkpoint is written after every {every} of work")
    costs = []
    if o.dollars_per_trillion_tokens is not None:
        costs.append(f"{o.dollars_per_trillion_tokens:,.0f} dollars")
    if o.kwh_per_trillion_tokens is not None and o.power_w is not None:
        of = "with host, network and cooling" if o.whole_power else "the device alone, at its limit"
        costs.append(f"{o.kwh_per_trillion_tokens:,.0f} kWh ({o.power_w:,.0f} W a device: {of})")
    return [*lines, f"a trillion tokens: {', '.join(costs)}"] if costs else lines


#: Columns of plans, of what the best cost to run for a trillion tokens, where the cluster's file says what they take, and of whole runs.
_PLANS: Mapping[str, Callable[[Simulated], str]] = {
    "plan": lambda p: plan_words(p.job.plan),
    "step s": lambda p: f"{p.time.time_s:.4g}",
    "tok/s/GPU": lambda p: f"{p.tokens_per_s_per_gpu:,.0f}",
    "MFU": lambda p: f"{p.model_flops_utilization:.1%}",
    "peak GB": lambda p: f"{p.memory.peak_bytes / 1e9:.1f}",
}
_COSTS: Mapping[str, Callable[[Operating], str]] = {
    "goodput": lambda o: "" if o.goodput is None else f"{o.goodput:.1%}",
    "dollars": lambda o: "" if o.dollars_per_trillion_tokens is None else f"{o.dollars_per_trillion_tokens:,.0f}",
    "kWh": lambda o: "" if not o.whole_power or o.kwh_per_trillion_tokens is None else f"{o.kwh_per_trillion_tokens:,.0f}",
}
_RUNS: Mapping[str, Callable[[Campaign], str]] = {
    "days": lambda run: "" if run.days is None else f"{run.days:,.1f}",
    "dollars": lambda run: "" if run.dollars is None else f"{run.dollars:,.0f}",
}


class _Line(NamedTuple):
    """The best plan of a search or another, what it costs to run, and the run of it; None where that is not known. name: what was swept."""

    name: str
    plan: Simulated | None
    cost: Operating | None
    run: Campaign | None

    @classmethod
    def of(cls, searched: Found, value: int | str) -> _Line:
        """The line of a search for one value of what is swept."""
        best = searched.best[0] if searched.best else None
        name = value if isinstance(value, str) else f"{value:,}"
        cost = operating(searched.problem.cluster, searched.problem.gpus, best.tokens_per_s_per_gpu) if best else None
        return cls(name, best, cost, searched.campaigns[0] if searched.campaigns else None)


def _of(part: str, columns: Mapping[str, Callable[[Any], str]]) -> dict[str, ShownField]:
    """The columns that show a part of a line; a dash for what is not known."""

    def shown(text: Callable[[Any], str]) -> ShownField:
        return lambda line: "–" if getattr(line, part) is None else text(getattr(line, part)) or "–"

    return {name: shown(text) for name, text in columns.items()}


def print_found(out: Console, searched: Found) -> None:
    """Print what was searched, then the best plans."""
    p = searched.problem
    out.print(f"{p.model.name} on {p.gpus} x {p.cluster.name}, {p.global_batch} sequences of {p.seq_len} tokens, {p.framework.name}")
    if not searched.complete:
        fit = searched.plans - searched.infeasible
        sentence(out, f"partial: interrupted when {searched.evaluated:,} of the {fit:,} plans that fit were timed")
    if not searched.best:
        sentence(out, _why_none(searched))
        return
    best = searched.best[0]
    sentence(
        out,
        f"fastest: {plan_words(best.job.plan)}: step {best.time.time_s:.4g} s (80 %: {best.time.low_s:.4g} – {best.time.high_s:.4g}), "
        f"MFU {best.model_flops_utilization:.1%}",
    )
    paragraph(
        out,
        f"{count(searched.plans, 'plan')}: {searched.infeasible:,} need more than {_capacity(searched)}, "
        f"{searched.pruned:,} are proved slower, {searched.evaluated:,} timed, "
        f"{searched.simulated} simulated in full, in {searched.seconds_s:.1f} s",
    )
    for note in p.assumed:
        paragraph(out, note.message)
    step = best.time.time_s
    slower: dict[str, Callable[[Simulated], str]] = {"+ %": lambda p: f"{100 * (p.time.time_s / step - 1):.1f}"}
    columns = {**dict(list(_PLANS.items())[:2]), **slower, **_PLANS}
    lines = [_Line("", p, None, searched.campaigns[i] if searched.campaigns else None) for i, p in enumerate(searched.best)]
    if searched.campaigns:
        del columns["MFU"]
    table(out, {**_of("plan", columns), **(_of("run", _RUNS) if searched.campaigns else {})}, lines, whole=True)
    _print_prices(out, [searched])
    for line in operating_lines(operating(p.cluster, p.gpus, best.tokens_per_s_per_gpu)):
        paragraph(out, line)
    _print_equal(out, searched)


def _print_equal(out: Console, searched: Found) -> None:
    """Say which plans are equal to the first as far as is known, which of them is the safest, and what would tell them apart."""
    against = searched.against_first
    equal = [i for i, a in enumerate(against) if a is not None and a.equal]
    if not equal:
        return
    which = "all" if len(equal) == len(against) - 1 else f"{len(equal)} of the others"
    heading(out, f"Equal as far as is known: {which} overlap the first plan's interval")
    if searched.safest:
        safest = searched.best[searched.safest]
        paragraph(
            out, f"least to lose, by the upper end of the interval: {plan_words(safest.job.plan)} (at most {safest.time.high_s:.4g} s)"
        )
    measured: dict[str, tuple[str, list[str]]] = {}
    undecided = [str(i + 1) for i in equal if (a := against[i]) is not None and a.measure is None]
    for i in equal:
        a = against[i]
        if a is not None and a.decides is not None and a.measure is not None:
            tie = "" if a.tie is None else f" (equal at {100 * a.tie:+.0f} %)"
            measured.setdefault(a.measure, (a.decides, []))[1].append(f"{i + 1}{tie}")
    for measure, (decides, plans) in measured.items():
        paragraph(out, f"• {decides} decides about {_listed_plans(plans)}; measure {measure}")
    if undecided:
        paragraph(out, f"• no single part decides about {_listed_plans(undecided)}; measure a few steps of each")


def _listed_plans(plans: Sequence[str]) -> str:
    return f"plan {plans[0]}" if len(plans) == 1 else f"plans {', '.join(plans)}"


def _why_none(searched: Found) -> str:
    if not searched.plans:
        return "no plan keeps the rules"
    return (
        f"none of {count(searched.plans, 'plan')} fits {_capacity(searched)}: the one that needs least takes"
        f" {(searched.least_bytes or 0) / 1e9:.1f} GB; with more devices or shorter sequences plans need less"
    )


def _capacity(searched: Found) -> str:
    """The memory that a plan may use."""
    reserved = f" ({searched.problem.reserved_bytes / 1e9:g} GB are reserved)" if searched.problem.reserved_bytes else ""
    return "the memory" if searched.problem.capacity is None else f"{searched.problem.capacity / 1e9:.1f} GB{reserved}"


def _print_prices(out: Console, searches: Sequence[Found]) -> None:
    """Say for how many tokens days and dollars are, and by whose prices."""
    runs = {f.problem.cluster.name: f.campaigns[0] for f in searches if f.campaigns}
    for name, run in runs.items():
        price = "no price is known (--price)"
        if run.price is not None:
            of = f"{run.price.source}, {run.price.date}" if run.price.date else run.price.source
            price = f"{run.price.dollars_per_hour:g} dollars an hour of a device ({of})"
        paragraph(out, f"days and dollars for {run.tokens:,.0f} tokens on {name}: {price}")


def print_sweep(out: Console, key: str, rows: Sequence[tuple[int | str, Found]]) -> None:
    """Print the best plan for every value of the swept size."""
    p = rows[0][1].problem
    where = f"{p.gpus} devices" if key == "cluster" else p.cluster.name
    out.print(f"{p.model.name} on {where}: the best plan for every {key}")
    for note in p.assumed:
        paragraph(out, note.message)
    lines = [_Line.of(searched, value) for value, searched in rows]
    priced = any(line.run is not None for line in lines)
    costs = {name: text for name, text in _COSTS.items() if name not in _RUNS or not priced}
    shown = {name: text for name, text in costs.items() if any(line.cost is not None and text(line.cost) for line in lines)}
    columns = {name: text for name, text in _of("plan", _PLANS).items() if name != "MFU" or not (shown or priced)}
    columns["plan"] = lambda line: "no plan fits" if line.plan is None else plan_words(line.plan.job.plan)
    runs = {name: text for name, text in _of("run", _RUNS).items() if priced}
    table(out, {key: "name", **columns, **_of("cost", shown), **runs}, lines, whole=True)
    _print_prices(out, [searched for _, searched in rows])
    if shown:
        paragraph(out, f"{', '.join(shown)}: for a trillion tokens whose progress is kept")


def print_explanation(out: Console, explained: Explained) -> None:
    """Print two steps, their parts with the differences, the largest first, their memory, and whether one is known to be faster."""
    sides = {"A": explained.first, "B": explained.second}
    for letter, p in sides.items():
        sentence(out, f"{letter}: {plan_words(p.job.plan)}: {predict_headline(p)}")
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
    paragraph(out, f"peak memory: {', '.join(f'{letter} {p.memory.peak_bytes / 1e9:.1f} GB' for letter, p in sides.items())}")
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


def plan_words(plan: Plan) -> str:
    """A plan in one line: the degrees above 1, then every choice that is not the default."""
    sizes = (("tp", plan.tp), ("pp", plan.pp), ("v", plan.vpp), ("cp", plan.cp), ("ep", plan.ep), ("dp", plan.dp), ("mb", plan.micro_batch))
    words = [f"{name}{size}" for name, size in sizes if size > 1 or name == "mb"]
    words += [f"z{plan.zero}"] + (["sp"] if plan.sequence_parallel else [])
    words += [plan.schedule] if plan.schedule not in (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED) else []
    return " ".join(words + ([f"recompute {plan.recompute}"] if plan.recompute is not Recompute.NONE else []))
