"""Jobs and changes that a seeded generator draws, so that nobody chose them, and nobody has worked towards their answers.

Every family of models comes up equally often, in an order that is drawn; its sizes, number format, ranks and changes are drawn from what
the family can be. Two changes of a job never set the same keys. The first draw is from the families of FIRST; those of LATER were written
after it and lead every other draw, of which anybody can make one more by another seed.
"""

from __future__ import annotations

from functools import cache
from random import Random

from validation.foreign.job import Job

#: The seed of the first draw; the jobs of a draw, and the changes of each.
SEED, JOBS, CHANGES_EACH = 20_251_123, 14, 3
#: Families that an odd draw holds a second time.
ODD_TWICE = 4
FIRST = ("opt", "qwen2", "gemma", "roberta", "bart", "deit", "llama", "gpt2")
#: The families written later, with the names of their sizes.
LATER = {
    "gpt_neox": "layers hidden heads ffn micro_batch seq",
    "falcon": "layers hidden heads ffn micro_batch seq",
    "qwen3_moe": "layers hidden heads kv_heads ffn experts micro_batch seq",
    "mamba2": "layers hidden micro_batch seq",
    "whisper": "layers hidden heads ffn micro_batch",
    "decoder": "layers hidden heads ffn micro_batch seq",
    "pictures": "layers hidden heads ffn micro_batch",
    "convnext": "micro_batch",
    "unet": "hidden micro_batch",
    "dlrm": "tables width width_of_towers micro_batch",
}
#: The families of the odd draws, with the names of their sizes: recommenders, loops over time, arrays of latents, two lengths, low-rank
#: parts with recomputed layers, preferences against a frozen reference, and experts of a fixed capacity.
ODD = {
    "dlrm": "tables width width_of_towers micro_batch",
    "bags": "tables width width_of_towers micro_batch",
    "time_loop": "hidden micro_batch seq",
    "latents": "layers hidden heads ffn latents micro_batch seq",
    "two_lengths": "layers hidden heads ffn source micro_batch seq",
    "lora": "layers hidden heads kv_heads ffn rank micro_batch seq",
    "preferences": "layers hidden heads kv_heads ffn micro_batch seq",
    "capacity": "layers hidden heads ffn experts micro_batch seq",
}
DECODERS, GATED = ("opt", "qwen2", "gemma"), ("qwen2", "gemma")
#: Families whose scripts can recompute their layers, share them among tensor-parallel ranks, have their experts on several ranks, and run
#: in a pipeline.
RECOMPUTED = (*DECODERS, "roberta", "gpt_neox", "falcon", "qwen3_moe", "whisper")
TENSOR, EXPERTS, PIPELINE = ("qwen2", "decoder"), ("qwen3_moe",), ("llama", "gpt2")


@cache
def drawn(seed: int = SEED) -> dict[str, tuple[Job, tuple[str, ...]]]:
    """The jobs of a draw by name, each with its changes in the words of `lumos whatif --set`."""
    random = Random(seed)
    out: dict[str, tuple[Job, tuple[str, ...]]] = {}
    families, named = ([*FIRST], "drawn") if seed == SEED else ([*LATER], f"draw of {seed},")
    order = random.sample(families, len(families)) + random.sample(FIRST, len(FIRST))
    for number, family in enumerate(order[:JOBS]):
        job = _later_job(random, family) if family in LATER else _first_job(random, family)
        changes = _changes(random, job)
        keys = random.sample(sorted(changes), CHANGES_EACH)
        out[f"{named} {number + 1}, {family}"] = job, tuple(random.choice(changes[key]) for key in keys)
    return out


@cache
def drawn_odd(seed: int) -> dict[str, tuple[Job, tuple[str, ...]]]:
    """The jobs of an odd draw by name: every family of ODD once, and some a second time."""
    random = Random(seed)
    out: dict[str, tuple[Job, tuple[str, ...]]] = {}
    for number, family in enumerate(random.sample([*ODD], len(ODD)) + random.sample([*ODD], ODD_TWICE)):
        job = _odd_job(random, family)
        changes = _odd_changes(random, job)
        keys = random.sample(sorted(changes), CHANGES_EACH)
        out[f"odd draw of {seed}, {number + 1}, {family}"] = job, tuple(random.choice(changes[key]) for key in keys)
    return out


def _odd_job(random: Random, family: str) -> Job:
    heads = random.choice((8, 12, 16))
    rows = {"dlrm": (2048, 4096), "bags": (2048, 4096), "time_loop": (64, 128, 256)}.get(family, (2, 4, 6))
    sizes = {
        "layers": random.choice((3, 4, 6)),
        "hidden": random.choice((256, 512)) if family == "time_loop" else 64 * heads,
        "heads": heads,
        "kv_heads": heads // 2,
        "ffn": 64 * heads * random.choice((2, 4)),
        "experts": random.choice((8, 16)),
        "rank": random.choice((8, 16)),
        "latents": random.choice((128, 256, 512)),
        "source": random.choice((768, 1024)),
        "seq": random.choice((16, 24, 32) if family == "time_loop" else (256, 384, 512)),
        "tables": random.choice((8, 16, 26)),
        "width": random.choice((64, 128)),
        "width_of_towers": random.choice((1024, 2048)),
        "micro_batch": random.choice(rows),
    }
    ways: list[dict[str, int]] = [{}, {"microbatches": 2}, {} if family in ("lora", "preferences") else {"dp": 2}]
    precision = random.choice(("bf16", "tf32") if family in ("lora", "capacity") else ("bf16", "tf32", "amp"))
    return _spread(random, Job(family, {key: sizes[key] for key in ODD[family].split()}, precision=precision), ways)


def _odd_changes(random: Random, job: Job) -> dict[str, list[str]]:
    """What may be asked of a job of an odd draw, by key."""
    sizes = job.sizes
    keys = [key for key in ("layers", "seq", "micro_batch", "ffn") if key in sizes]
    keys += ["hidden"] if job.family == "time_loop" else []
    out = {key: [f"{key}={sizes[key] * n}" for n in (2, 3)] for key in keys}
    out["microbatches"] = [f"microbatches={job.microbatches * n}" for n in (2, 3)]
    if job.precision == "tf32":
        out["precision"] = ["precision=bf16"]
    return out | ({"dp": [f"dp={2 * job.dp}"]} if job.dp > 1 or job.family in ("dlrm", "bags") else {})


def _first_job(random: Random, family: str) -> Job:
    heads = random.choice((8, 10, 12, 16))
    sizes = {"layers": random.choice((3, 4, 5, 6)), "hidden": 64 * heads, "heads": heads, "ffn": 64 * heads * random.choice((3, 4))}
    if family == "deit":
        sizes["micro_batch"] = random.choice((16, 24, 48))
    else:
        sizes |= {"seq": random.choice((384, 512, 768, 1024)), "micro_batch": random.choice((2, 3, 4, 6))}
    if family in (*GATED, "llama"):
        sizes["kv_heads"] = heads // 2
    precision = random.choice(("bf16", "tf32", "amp"))
    if family in PIPELINE:
        sizes["layers"] = 8
        return Job(family, sizes, random.choice((4, 8)), precision="bf16", clip=False, chunked=True, pp=random.choice((2, 4)))
    ways: list[dict[str, int]] = [{}, {"microbatches": 2}, {"dp": random.choice((2, 4))}, {"dp": random.choice((2, 3)), "zero": 3}]
    if family in TENSOR:
        ways.append({"tp": 2})
    return _spread(random, Job(family, sizes, precision=precision), ways)


def _later_job(random: Random, family: str) -> Job:
    heads = random.choice((8, 12, 16))
    asked = LATER[family].split()
    rows = random.choice((2, 3, 4, 6) if "seq" in asked else (4, 6, 8) if family == "whisper" else (16, 24))
    drawn_sizes = {
        "layers": random.choice((3, 4, 5, 6)),
        "hidden": random.choice((128, 192)) if family == "unet" else 64 * heads,
        "heads": heads,
        "kv_heads": heads // 2,
        "ffn": 64 * heads * (1 if family in EXPERTS else random.choice((3, 4))),
        "experts": random.choice((8, 16)),
        "seq": random.choice((384, 512, 768, 1024)),
        "tables": random.choice((8, 16, 26)),
        "width": random.choice((64, 128)),
        "width_of_towers": random.choice((1024, 2048)),
        "micro_batch": random.choice((2048, 4096)) if family == "dlrm" else rows,
    }
    ways: list[dict[str, int]] = [{}, {"microbatches": 2}, {"dp": random.choice((2, 4))}]
    if family in TENSOR:
        ways += [{"tp": 2}, {"tp": 2, "microbatches": 2}, {"tp": 4}]
    elif family in EXPERTS:
        ways += [{"dp": 4, "ep": 2}] * 2
    elif "layers" in asked:
        ways += [{"dp": random.choice((2, 4)), "zero": zero} for zero in (1, 2, 3)]
    precision = random.choice(("bf16",) * 3 if family in EXPERTS else ("bf16", "tf32", "amp"))  # experts' operators are of bf16 alone
    return _spread(random, Job(family, {key: drawn_sizes[key] for key in asked}, precision=precision), ways)


def _spread(random: Random, job: Job, ways: list[dict[str, int]]) -> Job:
    """The job in one of the ways, and with an optimizer of either kind."""
    way = random.choice(ways)
    return job.changed({"clip": not way and random.random() < 0.5, "fused": random.random() < 0.5, **way})


def _changes(random: Random, job: Job) -> dict[str, list[str]]:
    """What may be asked of a job, by key."""
    sizes, later = job.sizes, job.family in LATER
    batch, layers = sizes["micro_batch"], sizes.get("layers", 0)
    out = {
        "layers": [f"layers={layers * n}" for n in (2, 3)],
        "micro_batch": [f"micro_batch={batch * n}" for n in (2, 3, 4)],
        "microbatches": [f"microbatches={job.microbatches * n}" for n in (2, 3)],
    }
    if "seq" in sizes:
        out["seq"] = [f"seq={sizes['seq'] * n}" for n in (2, 3)]
    if not layers:
        del out["layers"]
    elif later:
        out["layers,micro_batch"] = [f"layers={2 * layers},micro_batch={2 * batch}"]
    if job.pp > 1:
        return out | {"schedule": ["schedule=gpipe"], "pp": [f"pp={6 - job.pp}"]}
    if job.family in RECOMPUTED:
        out["recompute"] = ["recompute=full"]
    if job.tp > 1:
        return out | {"tp": [f"tp={job.tp * 2}", "tp=1"] if later else ["tp=1"]}
    if "ffn" in sizes:
        out["ffn"] = [f"ffn={2 * sizes['ffn']}"]
    if job.dp > 1:
        out["dp"] = [f"dp={2 * job.dp}"]
        if job.ep > 1:
            out["ep"] = ["ep=1", f"ep={2 * job.ep}"]
        elif layers:
            out["zero"] = ["zero=0" if job.zero else "zero=3"]
    elif job.precision != "bf16":
        out["precision"] = ["precision=bf16"] if job.precision == "tf32" else ["precision=tf32"]
    if later and job.dp == 1:
        out["dp"] = ["dp=2", "dp=4"]
    return out
