"""What a user writes against `import lumos`: every public function once, with types that a strict checker accepts.

`tests/test_facade.py` runs it in a folder with `traces/` and `runs.csv`, and has mypy check it.
"""

from __future__ import annotations

from pathlib import Path

import lumos


def measured(folder: Path) -> lumos.Job:
    """A recorded job: what it holds, its replay, and where its time goes."""
    job: lumos.Job = lumos.read(folder / "traces")
    contents: lumos.Rows[lumos.Contents] = lumos.inspect(job)
    devices: list[str] = [device for trace in contents for device in trace.devices]
    graph: lumos.Graph = lumos.build(job)
    timeline: lumos.Timeline = lumos.simulate(graph)
    error: float | None = lumos.replay(graph, ignore=["occupancy"]).mean_abs_error
    steps: lumos.Rows[lumos.StepBreakdown] = lumos.breakdown(lumos.measured(graph), step="11")
    print(lumos.queue_lengths(timeline)[0].mean, lumos.tensor_cores(timeline).share, lumos.outline(job, graph=graph).layers)
    busy: lumos.Rows[lumos.Utilization] = lumos.utilization(lumos.measured(graph))
    held: lumos.Rows[lumos.MemoryUse] = lumos.memory(job)
    alone: int = sum(step.breakdown.exposed_compute_ns for step in steps)
    path: lumos.CriticalPath = lumos.critical_path(timeline, step="11")[0]
    slack: lumos.Slack = lumos.slack(timeline)
    probes: lumos.Probes = lumos.probes(graph)
    grounds: lumos.Trust = lumos.trust(graph, timeline)
    slow: lumos.Stragglers = lumos.stragglers(graph, job, force=grounds.grade == "unsound")
    first: lumos.Finding = lumos.diagnose(job, graph=graph).findings[0]
    diagnosis: lumos.Diagnosis = lumos.diagnose(folder / "traces", force=True)
    print(first.title, first.worth_s, diagnosis.step_time_s)
    change: lumos.Comparison = lumos.compare(job, step=("10", "11"))
    print([b.mean_busy for b in busy], [m.peak_bytes for m in held])
    print(devices, error, alone, path.by_class, len(slack.slack), probes.cpu_double, slow.slowdown, change.change_ns)
    print(steps.to_arrow().num_rows, steps.to_dict()["rows"][0]["name"])
    return job


def changed(job: lumos.Job) -> float:
    """The same job, changed."""
    faster: lumos.Answer = lumos.whatif(job, scale={"aten::mm": 0.5}, drop="aten::copy_", rank_slowdown={1: 1.2}, force=True)
    deeper: lumos.Answer = lumos.whatif(job, layers=8, recompute="full")
    cells: lumos.Rows[lumos.Cell] = lumos.whatif(job, grid={"scale:aten::mm": (0.5, 1.0)})
    times: list[float | None] = [cell.step_time_s for cell in cells]
    print(faster.outcome.step_time_s, deeper.changes, times)
    return faster.base.step_time_s - faster.outcome.step_time_s


def predicted(folder: Path) -> lumos.Prediction:
    """Jobs that never ran."""
    cluster: lumos.Cluster = lumos.load_cluster("h100")
    model: lumos.Model = lumos.load_model(lumos.model_names()[0])
    prediction: lumos.Prediction = lumos.predict(model="llama3-8b", cluster="h100", gpus=8, global_batch=64, seq=8192, tp=2)
    layout: lumos.Layout = prediction.layout
    plan: lumos.Plan = layout.plan
    found: lumos.Found = lumos.search(model="llama3-8b", cluster="h100", gpus=8, global_batch=64, seq=8192, tp=(1, 2), pp=1, refine=1)
    swept: lumos.Rows[lumos.Swept] = lumos.search(
        model="llama3-8b", cluster="h100", gpus=8, global_batch=64, seq=8192, tp=2, pp=1, refine=1, sweep={"gpus": (8, 16)}
    )
    why: lumos.Explained = lumos.explain({"tp": 2}, "tp=4", model="llama3-8b", cluster="h100", gpus=8, global_batch=64, seq=8192)
    score: lumos.Validation = lumos.validate(folder / "runs.csv")
    estimate: lumos.Estimate = lumos.cost.gemm(4096, 4096, 4096, cluster.accelerator)
    print(model.parameters, plan.microbatches, found.best[0].time.time_s, [row.value for row in swept], why.parts.difference)
    print(score.to_dict()["scored"], estimate.time, prediction.to_dict()["step_time_s"])
    return prediction


def written(job: lumos.Job, folder: Path) -> None:
    """What goes to files: a report, a changed job, coefficients, a Chakra set, a benchmark."""
    report: lumos.Written = lumos.report(job, folder / "report.html", step="11", scale={"aten::mm": 0.5})
    answer: lumos.Answer = lumos.whatif(job, scale={"aten::mm": 0.5}, force=True)
    timeline: lumos.Timeline = answer.timeline
    lumos.export(answer, chakra=folder / "changed", perfetto=folder / "changed.json")
    lumos.export(timeline, perfetto=folder / "run.json")
    exported: lumos.chakra.Exported = lumos.chakra.export(job, folder / "set", astra_sim=True, cluster="h100")
    checked: lumos.chakra.Checked = lumos.chakra.check(folder / "set")
    repriced: lumos.Graph = lumos.chakra.priced(folder / "set", folder / "set" / "net.yml")
    imported: lumos.chakra.Imported = lumos.chakra.import_(folder / "set")
    other: lumos.chakra.Synthetic = lumos.chakra.synthesize(folder / "set", output=folder / "other", seed=1)
    stat: lumos.chakra.Stat = lumos.chakra.stat(folder / "set")
    benchmark: lumos.proxy.Generated = lumos.proxy.generate(folder / "traces" / "rank0.json.gz", folder / "proxy")
    print(len(repriced))
    print(report.size_bytes, timeline.nbytes, exported.nodes, checked.ok, imported.graph, other.symbols, stat.total, benchmark.operators)


def on_other_machines(folder: Path) -> None:
    """What needs torch, an execution trace or measurements of one's own."""
    linked: lumos.chakra.LinkedJob = lumos.chakra.link(folder / "rank0.et.json.gz", folder / "traces" / "rank0.json.gz")
    together: lumos.chakra.LinkedJob = lumos.chakra.link(folder / "observed", folder / "traces", output=folder / "linked")
    step: int = lumos.proxy.run(folder / "proxy", mode="compute", warmup=0, repeat=1)["replayed_step_ns"]
    fitted: lumos.Calibration = lumos.calibrate([folder / "gemm.csv"], output=folder / "mine.toml")
    recorded: lumos.collect.Recorded = lumos.collect.run(["torchrun", "--nproc-per-node", "2", "train.py"], folder / "out", steps=3)
    emulated: lumos.Emulated = lumos.emulate(["python", "train.py"], folder / "emulated", "h100", ranks=64)
    print(linked.link_rate, together, step, len(list(fitted.sets)), recorded.files, emulated.files)


def main(folder: Path) -> None:
    """All that runs on any machine."""
    job = measured(folder)
    try:
        changed(job)
        predicted(folder)
    except lumos.LumosError as error:
        raise SystemExit(str(error)) from error
    written(job, folder)


if __name__ == "__main__":
    main(Path.cwd())
