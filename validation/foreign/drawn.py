"""Jobs and changes that a seeded generator draws, so that nobody chose them, and nobody has worked towards their answers.

Every family of models comes up equally often, in an order that is drawn; its sizes, number format, ranks and changes are drawn from what
the family can be. Two changes of a job never set the same key.
"""

from __future__ import annotations

from random import Random

from validation.foreign.job import Job

#: The draws follow from these numbers alone.
SEED, JOBS, CHANGES_EACH = 20_251_123, 14, 3
DECODERS, GATED, BY_LAYER = ("opt", "qwen2", "gemma"), ("qwen2", "gemma"), ("opt", "qwen2", "gemma", "roberta", "bart", "deit")
#: Families whose scripts can share layers among tensor-parallel ranks, and run in a pipeline.
TENSOR, PIPELINE = ("qwen2",), ("llama", "gpt2")


def drawn() -> dict[str, tuple[Job, tuple[str, ...]]]:
    """The jobs by name, each with its changes in the words of `lumos whatif --set`."""
    random = Random(SEED)
    out: dict[str, tuple[Job, tuple[str, ...]]] = {}
    families = [*BY_LAYER, *PIPELINE]
    order = random.sample(families, len(families)) + random.sample(families, len(families))
    for number, family in enumerate(order[:JOBS]):
        job = _job(random, family)
        changes = _changes(random, job)
        keys = random.sample(sorted(changes), CHANGES_EACH)
        out[f"drawn {number + 1}, {family}"] = job, tuple(random.choice(changes[key]) for key in keys)
    return out


def _job(random: Random, family: str) -> Job:
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
    way = random.choice(ways)
    return Job(family, sizes, precision=precision, clip=not way and random.random() < 0.5, fused=random.random() < 0.5).changed(way)


def _changes(random: Random, job: Job) -> dict[str, list[str]]:
    """What may be asked of a job, by key."""
    sizes = job.sizes
    batch, layers = sizes["micro_batch"], sizes["layers"]
    out = {
        "layers": [f"layers={layers * n}" for n in (2, 3)],
        "micro_batch": [f"micro_batch={batch * n}" for n in (2, 3, 4)],
        "microbatches": [f"microbatches={job.microbatches * n}" for n in (2, 3)],
    }
    if "seq" in sizes:
        out["seq"] = [f"seq={sizes['seq'] * n}" for n in (2, 3)]
    if job.pp > 1:
        return out | {"schedule": ["schedule=gpipe"], "pp": [f"pp={6 - job.pp}"]}
    if job.family in DECODERS or job.family == "roberta":
        out["recompute"] = ["recompute=full"]
    if job.tp > 1:
        return out | {"tp": ["tp=1"]}
    out["ffn"] = [f"ffn={2 * sizes['ffn']}"]
    if job.dp > 1:
        out["dp"] = [f"dp={2 * job.dp}"]
        out["zero"] = ["zero=0" if job.zero else "zero=3"]
    elif job.precision != "bf16":
        out["precision"] = ["precision=bf16"] if job.precision == "tf32" else ["precision=tf32"]
    return out
