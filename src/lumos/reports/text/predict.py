"""Print the answer of `lumos predict`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.reports.text.format import paragraph, percent, print_diagnostics, print_shares, sentence, table
from lumos.reports.text.whatif import PARTS_IN_SECONDS
from lumos.units import duration

if TYPE_CHECKING:
    from rich.console import Console

    from lumos.prediction.operating import Operating
    from lumos.prediction.predict import Prediction

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
