"""Predict every published run and score: with coefficients fitted to all sources, each source with those of the others, and each
framework as if it had no profile.

    LUMOS_MEASURED=... python -m validation.runs [--fit] [--rows N]

With --rows at most N rows of each source are scored, which the text says. Without --fit the shipped coefficients are scored and the
sources left out are fitted anew; with --fit the shipped ones are fitted first and written to src/lumos/blocks/data/step.toml.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from tools import fit_step as fitting
from tools.document import markdown_table
from tools.figures import write_result
from tools.leave_out import LeaveOut, score_left_out
from tools.leave_out import thinned as sampled
from validation.composed import described, independent
from validation.goals import marked

from lumos.blocks.price import STEP_FILE, StepCoefficients, shipped_step_coefficients
from lumos.cost.cluster import load_cluster
from lumos.model import load_model
from lumos.plan.job import PlannedJob
from lumos.plan.plan import Plan
from lumos.plan.profiles import evidence, framework_profile
from lumos.prediction.predict import Prediction, predict_job
from lumos.prediction.validate import (
    PublishedRun,
    Scored,
    figures,
    memory_figures,
    read_tables,
    score,
    spearman_within,
    summary,
)

TABLES = (
    "vtrain", "llm_foundry", "internevo", "simumax_b200", "nemo_legacy", "torchtitan", "bloom", "dgxc", "megatron_bridge",
    "mlperf_lora", "llm_foundry_h100", "nemo_launcher", "torchao", "nanotron_bench",
)  # fmt: skip
#: Tables that were first scored by a version of which nobody had read a row of them: rows, median, 90th percentile, bias, share inside the
#: interval; then the same with the framework as one without a profile.
FIRST = {
    "NeMo Megatron launcher of 2022, 11 rows": ("28.5%, 38.0%, -29.4%, 0%", "11.1%, 18.1%, -10.7%, 55%"),
    "torchao, 12 rows": ("38.5%, 53.1%, -39.1%, 0%", "39.5%, 53.0%, -39.4%, 0%"),
    "nanotron, 31 rows": ("23.2%, 47.1%, -27.3%, 35%", "the same: it has no profile"),
}
#: Of the largest tables, only every so many rows one is used in the fit: their rows are alike, and all sources have equal weight.
THINNED = {"vtrain": 32, "llm_foundry": 8, "dgxc": 2, "internevo": 3, "bloom": 2, "nemo_legacy": 2}
PRIOR = StepCoefficients()
class _Device(NamedTuple):
    """A device that a source names by a word which stands for others too, and one of those."""

    source: str
    gpu: str
    said: str
    watts: int


#: What may explain the rows of a source, and is not taken for granted.
OTHER_DEVICE = _Device("torchao e2e training benchmarks", "H100", "H100-96GB-HBM2e", 500)
#: The source whose peak memory says what it counts: what the allocator has handed out.
PEAKS = "SimuMax"
#: How many rows the table of the worst has, each of another kind.
WORST = 30
#: Rows of each source that are predicted without their framework's profile, which takes some ten simulations a row.
PER_SOURCE = 30


def main() -> int:
    folder = os.environ.get("LUMOS_MEASURED")
    if not folder:
        print("LUMOS_MEASURED is not set: no published runs are at hand", file=sys.stderr)
        return 1
    most = int(sys.argv[sys.argv.index("--rows") + 1]) if "--rows" in sys.argv else None
    read = {name: list(read_tables([str(Path(folder) / f"{name}.csv")])) for name in TABLES}
    rows = {name: [row for row in table if complete(row)] for name, table in read.items()}
    told = described(row for table in rows.values() for row in table)
    to_fit = [row for name, table in rows.items() for row in table[:: THINNED.get(name, 1)]]
    if "--fit" in sys.argv:
        _ship(fitting.fit(fitting.problem(to_fit), PRIOR))
    every = independent(row for table in rows.values() for row in table)
    incomplete = [row for table in read.values() for row in table if not complete(row)]
    if most is not None:
        every, incomplete, to_fit = (sampled(part, most) for part in (every, incomplete, to_fit))
    with ProcessPoolExecutor(4) as pool:
        scored = [
            pool.submit(score, every),
            pool.submit(score_left_out, every, LeaveOut.SOURCE, fitted_to=to_fit),
            pool.submit(score_left_out, sampled(every, PER_SOURCE), LeaveOut.FRAMEWORK),
            pool.submit(score, incomplete),
        ]
        fitted, apart, unprofiled, incompletely = (future.result() for future in scored)
    write_result("validation/results/runs.md", report(fitted, apart, unprofiled, incompletely, most, told))
    return 0


def complete(row: PublishedRun) -> bool:
    """Whether the row determines its job. Remarks that begin with a bracket name what the source does not print: recomputation,
    dispatch and capacity of experts, what is trained. Such rows are scored apart and never fitted to."""
    return not row.get("notes", "").startswith("[")


def _ship(coefficients: StepCoefficients) -> None:
    lines = [f"{key} = {value:g}" for key, value in msgspec.structs.asdict(coefficients).items()]
    heading = "# Fitted by validation/runs.py --fit over published runs; see validation/results/runs.md. Do not edit by hand.\n"
    STEP_FILE.write_text(heading + "\n".join(lines) + "\n", encoding="utf-8")
    shipped_step_coefficients.cache_clear()


def report(
    fitted: Sequence[Scored],
    left_out: Sequence[Scored],
    unprofiled: Sequence[Scored],
    incomplete: Sequence[Scored],
    most: int | None,
    told: Sequence[str],
) -> str:
    whole, apart, alone = summary(fitted), summary(left_out), summary(unprofiled)
    sources = list(whole["by_source"])
    table = []
    for source in sources:
        a, b, c = (found["by_source"][source] for found in (whole, apart, alone))
        table.append((source, str(a["scored"]), *_cells(a), *_short(b), *_short(c)))
    means = [sum(s["by_source"][x]["median_abs_error"] for x in sources) / len(sources) for s in (whole, apart)]
    p90 = max(apart["by_source"][x]["p90_abs_error"] for x in sources)
    worst = max(apart["by_source"][x]["median_abs_error"] for x in sources)
    ranked = spearman_within(fitted)  # None where no group of equal jobs has enough rows
    part = f" (a sample: at most {most} rows of each source, spread evenly)" if most is not None else ""
    lines = [
        f"{whole['scored']} complete rows of {len(TABLES)} public tables (`lumos validate`), {whole['skipped_count']} skipped{part}. "
        "Source left out: the coefficients are fitted "
        "without any row of the source. The frameworks' profiles (which kernels, what overlaps, what a launch costs the host) are "
        "priors written with these tables in view and are not refitted, so a source left out is not wholly unseen. Framework left "
        f"out (at most {PER_SOURCE} rows a source): the job is predicted as that of a framework of which only "
        "the year is known. Each cell: median of |predicted − measured| / measured, 90th percentile, how often the 80 % interval "
        "holds.",
        "",
        markdown_table(("source", "rows", "median", "p90", "bias", "rank", "in interval", "source left out", "framework left out"), table),
        "",
        *(line for text in told for line in (text, "")),
        _other_device([s.row for s in fitted if s.row.get("gpu") == OTHER_DEVICE.gpu and s.source.startswith(OTHER_DEVICE.source)]),
        "",
        markdown_table(
            ("figure", "to reach", "reached"),
            (
                ("mean over sources of the median, fitted", "≤ 5 %", _at_most(means[0], 0.05)),
                ("the same, each source left out", "≤ 8 %", _at_most(means[1], 0.08)),
                ("worst source left out: median; p90", "≤ 12 %; ≤ 25 %", f"{_at_most(worst, 0.12)}; {_at_most(p90, 0.25)}"),
                (
                    "rank correlation within equal jobs",
                    "≥ 0.8",
                    "–" if ranked is None else marked(f"{ranked:.2f}", ranked >= 0.8),
                ),
                ("80 % interval holds", "70–90 %", _holds(whole)),
                ("the same, source left out", "70–90 %", _holds(apart)),
                (
                    "framework left out: median over rows; interval holds",
                    "≤ 12 %; 70–90 %",
                    f"{_at_most(alone['median_abs_error'], 0.12)}; {_holds(alone)}",
                ),
                (f"peak memory of {PEAKS}, mean; worst", "≤ 3 %; ≤ 8 %", _memory(fitted, PEAKS)),
                ("peak memory of BLOOM, whose source does not say what it counts", "reported", _memory(fitted, "BigScience")),
            ),
        ),
        "",
        "Rows whose source does not print what decides the time (recomputation, dispatch and capacity of experts, what is trained), "
        "predicted with the interval that this leaves, and never fitted to:",
        "",
        _groups(incomplete, lambda s: s.source),
        "",
        "First scores: tables of which nobody had read a row when they were first predicted (median, 90th percentile, bias, inside the "
        "interval). Since then the number of parameters in a model's name decides its style, NeMo of 2022 is Megatron-LM of its year, and "
        "what a network of many nodes reaches is a question; the table above has them as they are now:",
        "",
        markdown_table(("table", "first score", "without a profile"), [(name, *scores) for name, scores in FIRST.items()]),
        "",
        "How many published runs stand behind a profile on an accelerator, of how many sources, and the error that four of five of them "
        "stay within, which its interval follows (`python -m validation.profiles`):",
        "",
        markdown_table(("profile", "accelerator", "rows", "sources", "within"), _evidence()),
        "",
        "By what is split (fitted):",
        "",
        _groups(fitted, _parallel_kind),
        "",
        "By device (fitted):",
        "",
        _groups(fitted, lambda s: s.row.get("gpu", "")),
        "",
        "Worst rows (fitted): the part of the predicted step that takes longest, what the row leaves open, and the rest of its kind:",
        "",
        _worst(fitted),
        "",
        f"The {len(fitting.FITTED_COEFFICIENTS)} coefficients of a step, one set for all sources, GPUs and frameworks (prior → fitted):",
        "",
        _coefficients(),
        "",
        *llama(),
        "",
        *megatron_2022(),
        "",
        *deepseek(),
        "",
        _plot(fitted),
    ]
    return "\n".join(lines)


def _other_device(rows: Sequence[PublishedRun]) -> str:
    """What the rows of a source would be off by on another device of the same name."""
    other = score({**row, "gpu": OTHER_DEVICE.said, "notes": f"{row['notes']}; {OTHER_DEVICE.watts} W"} for row in rows)
    errors = ", ".join(_percent(s.error, True) for s in other if s.skipped is None)
    device = f"{OTHER_DEVICE.said} at {OTHER_DEVICE.watts} W"
    return (
        f"{OTHER_DEVICE.source} says {OTHER_DEVICE.gpu} and no more. As {device}, that of torchtitan's reports, its {len(other)} rows "
        f"on it would be off by {errors}: their name does not tell a device of 700 W from one of 500. They are scored as the former."
    )


def _cells(f: Mapping[str, Any]) -> tuple[str, ...]:
    rank = "–" if f["spearman_within"] is None else f"{f['spearman_within']:.2f}"
    return _percent(f["median_abs_error"]), _percent(f["p90_abs_error"]), _percent(f["bias"], True), rank, _percent(f["interval_coverage"])


def _memory(scored: Sequence[Scored], source: str) -> str:
    found = memory_figures([s for s in scored if s.source.startswith(source)])
    return f"{_percent(found['mean_abs_error'])}; {_percent(found['max_abs_error'])}"


def _short(f: Mapping[str, Any]) -> tuple[str]:
    return (f"{_percent(f['median_abs_error'])}, {_percent(f['p90_abs_error'])}, {_percent(f['interval_coverage'])}",)


def _parallel_kind(s: Scored) -> str:
    """The kinds of parallelism that a row uses: "tp+pp", "zero3", "dp", …"""
    assert s.job is not None
    p = s.job.plan
    parts = [name for name, size in (("tp", p.tp), ("pp", p.pp), ("cp", p.cp), ("ep", p.ep)) if size > 1]
    return "+".join([*parts, *([f"zero{p.zero}" if p.zero else "dp"] if p.dp > 1 else [])]) or "one device"


def _groups(scored: Sequence[Scored], key: Any) -> str:
    groups: dict[str, list[Scored]] = {}
    for s in scored:
        if s.skipped is None:
            groups.setdefault(key(s), []).append(s)
    table = [(name, str(len(members)), *_cells(figures(members))) for name, members in sorted(groups.items())]
    return markdown_table(("", "rows", "median", "p90", "bias", "rank", "in interval"), table)


def _worst(scored: Sequence[Scored]) -> str:
    """The worst row of each kind of job, so that one sweep does not fill the table."""
    kinds: dict[tuple[str, ...], list[Scored]] = {}
    for s in scored:
        if s.skipped is None:
            kinds.setdefault(_kind(s), []).append(s)
    picked = sorted((max(members, key=lambda s: abs(s.error)) for members in kinds.values()), key=lambda s: -abs(s.error))[:WORST]
    table = []
    for s in picked:
        assert s.job is not None and s.predicted is not None
        members = kinds[_kind(s)]
        p = s.job.plan
        sizes = f"tp {p.tp} pp {p.pp} cp {p.cp} dp {p.dp}, mb {p.micro_batch} x {p.microbatches}"
        plan = f"{s.row['model']}, {p.devices} x {s.row['gpu']}, {sizes}"
        path = predict_job(s.job, coarse=True).critical_path
        longest = max(path, key=lambda part: path[part])
        mechanism = f"{longest} {path[longest]:.0%}" + (f"; {s.unknowns[0].code}" if s.unknowns and s.unknowns[0].worth_asking else "")
        typical = sorted(abs(m.error) for m in members)[len(members) // 2]
        table.append(
            (
                s.id,
                plan,
                f"{s.measured_s:.3g}",
                f"{s.predicted.time_s:.3g}",
                _percent(s.error, True),
                mechanism,
                f"{len(members)}: {_percent(typical)}",
            )
        )
    return markdown_table(
        ("row", "job", "measured s", "predicted s", "error", "longest part; what is open", "its kind: rows, median"), table
    )


def _kind(s: Scored) -> tuple[str, ...]:
    return s.source, *(s.row.get(key, "") for key in ("model", "tp", "pp", "precision"))


def _evidence() -> list[tuple[str, ...]]:
    return [
        (profile, accelerator, str(e.rows), str(e.sources), _percent(e.within))
        for profile, each in evidence().items()
        for accelerator, e in each.items()
    ]


def _coefficients() -> str:
    now = shipped_step_coefficients()
    rows = [(key, f"{getattr(PRIOR, key):g}", f"{getattr(now, key):g}") for key in fitting.FITTED_COEFFICIENTS]
    return markdown_table(("coefficient", "prior", "fitted"), rows)


#: Published runs of Llama 3.1 405B pre-training (arXiv:2407.21783, table 4): devices, tp, cp, pp, dp, batch per dp, sequence, TFLOP/s.
LLAMA = (
    (8192, 8, 1, 16, 64, 32, 8192, 430),
    (16384, 8, 1, 16, 128, 16, 8192, 400),
    (16384, 8, 16, 16, 8, 16, 131072, 380),
)


def llama_runs() -> list[tuple[Prediction, int]]:
    """Llama 3 405B by the plan in its report (arXiv:2407.21783), with virtual stages of one layer as in its section 3.3.2, each with the
    TFLOP/s per device that were published."""
    runs, cluster = [], load_cluster("llama3-h100")
    for _, tp, cp, pp, dp, batch, seq, published in LLAMA:
        plan = Plan(seq, batch * dp, tp=tp, pp=pp, vpp=8, cp=cp, dp=dp, zero=1, sequence_parallel=True, schedule="interleaved")
        runs.append((predict_job(PlannedJob(load_model("llama3-405b"), plan, framework_profile("megatron-core"), cluster)), published))
    return runs


def achieved(p: Prediction) -> float:
    """TFLOP/s per device."""
    return p.model_flops_utilization * p.job.cluster.accelerator.peak("bf16") / 1e12


def llama() -> list[str]:
    """The table of Llama 3 405B."""
    rows = []
    for p, published in llama_runs():
        plan = p.job.plan
        run = f"{plan.devices} x H100, {plan.seq_len} tokens, tp {plan.tp} cp {plan.cp} pp {plan.pp} dp {plan.dp}"
        rows.append((run, str(published), f"{achieved(p):.0f}", f"{achieved(p) / published - 1:+.1%}", f"{p.time.time_s:.2f}"))
    return [
        "Runs that were never fitted to. Llama 3.1 405B, pre-training as published (virtual stages of one layer assumed), TFLOP/s per GPU:",
        "",
        markdown_table(("run", "published", "predicted", "difference", "step s"), rows),
    ]


#: Korthikanti et al. 2022 (arXiv:2205.05198, table 5): model, layers, hidden, heads, tp, pp, vpp, micro-batch, global batch, and
#: seconds an iteration with full recomputation and with selective recomputation and sequence parallelism. A100 80 GB, fp16.
KORTHIKANTI = (
    ("22B", 48, 6144, 64, 8, 1, 1, 4, 4, 1.42, 1.10),
    ("175B", 96, 12288, 96, 8, 8, 3, 1, 64, 18.13, 13.75),
    ("530B", 105, 20480, 128, 8, 35, 3, 1, 280, 49.05, 37.83),
    ("1T", 128, 25600, 160, 8, 64, 1, 1, 512, 94.42, 71.49),
)
#: DeepSeek-V3 (arXiv:2412.19437): 14.8 T tokens in 2.664 M H800 hours on 2,048 devices: tokens/s per device.
DEEPSEEK_RATE = 14.8e12 / (2.664e6 * 3600)


def korthikanti() -> list[Scored]:
    """The runs of Korthikanti et al., predicted as rows of a table of runs."""
    rows: list[PublishedRun] = []
    for name, layers, hidden, heads, tp, pp, vpp, micro, batch, full, selective in KORTHIKANTI:
        for recompute, measured in (("full", full), ("selective", selective)):
            row = {
                "id": f"GPT {name}, {tp * pp} x A100, {recompute} recomputation", "source": "Korthikanti et al. 2022",
                "model": f"GPT {name}", "layers": str(layers), "hidden": str(hidden), "heads": str(heads), "vocab": "51200",
                "seq_len": "2048", "precision": "fp16", "gpu": "A100-80GB", "n_gpus": str(tp * pp), "gpus_per_node": "8", "tp": str(tp),
                "pp": str(pp), "vpp": str(vpp), "dp": "1", "micro_batch": str(micro), "global_batch": str(batch), "recompute": recompute,
                "step_time_s": str(measured), "sequence_parallel": "yes" if recompute == "selective" else "no",
                "framework": "Megatron-LM", "year": "2022",
            }  # fmt: skip
            rows.append(row)
    return score(rows)


def megatron_2022() -> list[str]:
    """Selective recomputation's own table."""
    rows = []
    for s in korthikanti():
        assert s.predicted is not None, s.skipped
        rows.append((s.id, f"{s.measured_s:.2f}", f"{s.predicted.time_s:.2f}", _percent(s.error, True)))
    return [
        "Megatron-LM of 2022 (Korthikanti et al., table 5), seconds a step. Its profile's switches (gradients accumulated inside the "
        "multiplication, reduced beside it, transfers scattered) follow that paper and Narayanan et al. 2021, and were written with these "
        "rows in view; no number was fitted to them:",
        "",
        markdown_table(("run", "published", "predicted", "difference"), rows),
    ]


def deepseek() -> list[str]:
    """DeepSeek-V3's pre-training by the plan in its report (arXiv:2412.19437)."""
    cluster = load_cluster("h800")
    framework = framework_profile("hai-llm")
    plan = Plan(4096, 15360, pp=16, ep=64, dp=128, zero=1, precision="fp8", schedule="dualpipe", recompute=framework.recompute)
    p = predict_job(PlannedJob(load_model("deepseek-v3"), plan, framework, cluster), coarse=None)
    reached = p.tokens_per_s_per_gpu
    return [
        f"DeepSeek-V3 on 2,048 H800 (pp 16, ep 64, DualPipe, fp8, {framework.name}): {DEEPSEEK_RATE:.0f} tokens/s per GPU published "
        f"(14.8 T tokens in 2.664 M GPU hours), {reached:.0f} predicted ({reached / DEEPSEEK_RATE - 1:+.1%}; 80 % interval "
        f"{plan.tokens / (2048 * p.time.high_s):.0f} to {plan.tokens / (2048 * p.time.low_s):.0f}), "
        f"with {p.memory.peak_bytes / 1e9:.0f} GB of 80.",
    ]


def _plot(scored: Sequence[Scored]) -> str:
    """Distribution of the errors as text, and the interactive plot's command."""
    edges = (-0.3, -0.2, -0.1, -0.05, 0.0, 0.05, 0.1, 0.2, 0.3)
    good = [s for s in scored if s.skipped is None]
    lines = []
    for source in dict.fromkeys(s.source for s in good):
        errors = [s.error for s in good if s.source == source]
        counts = [0] * (len(edges) + 1)
        for e in errors:
            counts[sum(e >= edge for edge in edges)] += 1
        cells = "".join(" ▁▂▃▄▅▆▇█"[min(8, round(8 * c / max(counts)) if c else 0)] for c in counts)
        lines.append(f"{cells}  {source}")
    scale = "< -30 %, -30, -20, -10, -5, 0, +5, +10, +20, > +30 %"
    body = "\n".join(lines)
    return f"Errors by source, from {scale}:\n\n```text\n{body}\n```"


def _at_most(value: float | None, most: float) -> str:
    return marked(_percent(value), value is None or value <= most)


def _holds(found: Mapping[str, Any]) -> str:
    """How often the 80 % interval holds the measured step."""
    share = found["interval_coverage"]
    return marked(_percent(share), share is None or 0.7 <= share <= 0.9)


def _percent(value: float | None, signed: bool = False) -> str:
    if value is None:
        return "–"
    return f"{value:+.1%}" if signed else f"{value:.1%}"


if __name__ == "__main__":
    sys.exit(main())
