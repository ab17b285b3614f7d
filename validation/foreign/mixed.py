"""Jobs whose ranks differ in two ways at once, and changes of one plan into another: a pipeline whose stages are shared by tensor-parallel
ranks or replicas, and such ranks or replicas that become a pipeline.

The pairs of `pairs` change one plan at a time, and mostly its own numbers. Here a setting meets a recording of another kind of plan.
"""

from __future__ import annotations

from validation.foreign.job import Job

_LLAMA = {"layers": 4, "hidden": 2048, "heads": 16, "kv_heads": 8, "ffn": 5632, "micro_batch": 2, "seq": 1024}
_GPT2 = {"layers": 4, "hidden": 1024, "heads": 16, "ffn": 4096, "micro_batch": 4, "seq": 512}


def _llama(**how: int) -> Job:
    """Layers of Llama as chunks of a pipeline's script, over four microbatches."""
    return Job("llama", _LLAMA, 4, precision="bf16", clip=False, chunked=True).changed(dict(how))


MIXED: dict[str, tuple[Job, tuple[str, ...]]] = {
    "Llama, bf16, 4 microbatches, tensor 2": (_llama(tp=2), ("pp=2", "pp=2,tp=4", "pp=2,vpp=2", "pp=2,tp=1")),
    "Llama, bf16, 4 microbatches, FSDP2 of 2": (
        _llama(dp=2, zero=3),
        ("pp=2", "pp=2,schedule=gpipe", "pp=2,microbatches=8", "tp=2", "microbatches=2"),
    ),
    "Llama, bf16, 4 microbatches, DDP of 2": (_llama(dp=2), ("pp=2", "pp=4", "recompute=full")),
    "Llama, bf16, pipeline of 2, tensor 2": (
        _llama(pp=2, tp=2),
        ("tp=4", "tp=1", "pp=1", "pp=4", "microbatches=8", "layers=8", "seq=2048", "recompute=full", "schedule=gpipe"),
    ),
    "Llama, bf16, pipeline of 2, FSDP2 of 2": (
        _llama(pp=2, dp=2, zero=3),
        ("pp=1", "pp=4", "microbatches=8", "layers=8", "dp=4", "zero=0", "tp=2", "micro_batch=1"),
    ),
    "Llama, bf16, pipeline of 2, DDP of 2": (
        _llama(pp=2, dp=2),
        ("pp=1", "pp=4", "microbatches=8", "layers=8", "dp=4", "zero=3", "micro_batch=1"),
    ),
    "GPT-2, tf32, pipeline of 2": (
        Job("gpt2", _GPT2, 4, precision="tf32", clip=False, chunked=True, pp=2),
        ("precision=bf16", "recompute=full", "seq=1024", "micro_batch=8", "hidden=1536,heads=24,ffn=6144"),
    ),
    "GPT-2, tf32, DDP of 2": (
        Job("gpt2", _GPT2, 2, precision="tf32", clip=False, dp=2),
        ("precision=bf16", "recompute=full", "hidden=1536,heads=24,ffn=6144"),
    ),
    "GPT-2, tf32, FSDP2 of 2": (
        Job("gpt2", _GPT2, precision="tf32", clip=False, dp=2, zero=3),
        ("precision=bf16", "microbatches=2", "seq=1024", "hidden=1536,heads=24,ffn=6144", "zero=0,precision=bf16"),
    ),
}
