"""A prediction, for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from lumos.layout.predict import Prediction


def print_prediction(out: Console, p: Prediction) -> None:
    """The step's time, parts, bounds and memory."""
    job, plan, t = p.job, p.job.plan, p.time
    sizes = (("tp", plan.tp), ("pp", plan.pp), ("vpp", plan.vpp), ("cp", plan.cp), ("ep", plan.ep))
    dims = "".join(f"{name} {size} " for name, size in sizes if size > 1)
    out.print(
        f"{job.model.name} ({job.model.parameters / 1e9:.1f} B parameters) on {plan.devices} x {job.cluster.name}, {job.framework.name}"
    )
    out.print(
        f"{dims}dp {plan.dp} zero {plan.zero}, {plan.microbatches} microbatches of {plan.micro_batch} x {plan.seq_len} tokens, "
        f"{plan.precision}, recompute {plan.recompute}"
    )
    tflops = p.model_flops_utilization * job.cluster.accelerator.peak(plan.precision) / 1e12
    out.print(
        f"step {t.time_s:.4g} s (80 %: {t.low_s:.4g} – {t.high_s:.4g}), {p.tokens_per_s_per_gpu:,.0f} tokens/s per device, "
        f"{tflops:.0f} TFLOP/s, MFU {p.model_flops_utilization:.1%}"
    )
    table = Table("part", "s", "share", title="where the step goes (mean over stages)", title_justify="left")
    for key, value in p.breakdown.items():
        table.add_row(key.removesuffix("_s").replace("_", " "), f"{value:.4g}", f"{value / t.time_s:.1%}")
    out.print(table)
    out.print("critical path: " + ", ".join(f"{key} {value:.1%}" for key, value in list(p.critical_path.items())[:8]))
    out.print("bound by: " + ", ".join(f"{key} {value:.1%}" for key, value in p.bound_by.items()))
    m = p.memory
    parts = (
        ("parameters", m.parameters_bytes),
        ("gradients", m.gradients_bytes),
        ("optimizer", m.optimizer_bytes),
        ("activations", m.activations_bytes),
    )
    words = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in parts)
    out.print(f"memory of stage {m.stage}: {m.peak_bytes / 1e9:.1f} GB ({words}), {'fits' if m.fits else 'does not fit'}")
    for d in p.diagnostics:
        out.print(f"{d.code}: {d.message}", style="dim")
