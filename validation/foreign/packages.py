"""Jobs of packages that train language models at scale, with their own layers: Megatron-Core's GPT and torchtitan's Llama 3.

Neither package need be installed: pairs of a base that cannot be imported are left out of a recording, with a note.
"""

from __future__ import annotations

from validation.foreign.job import Job

_GPT = {"layers": 4, "hidden": 1024, "heads": 16, "ffn": 4096, "micro_batch": 4, "seq": 1024}
_LLAMA = {"layers": 4, "hidden": 2048, "heads": 16, "kv_heads": 8, "ffn": 5632, "micro_batch": 2, "seq": 1024}


def _gpt(**how: int) -> Job:
    return Job("megatron", _GPT, precision="bf16", clip=False, fused=False).changed(dict(how))


def _llama(**how: int | str) -> Job:
    return Job("torchtitan", _LLAMA, precision="bf16", clip=False).changed(dict(how))


PACKAGES: dict[str, tuple[Job, tuple[str, ...]]] = {
    "Megatron-Core's GPT, bf16": (
        _gpt(),
        ("layers=8", "micro_batch=8", "seq=2048", "microbatches=2", "recompute=full", "ffn=8192", "tp=2", "dp=4"),
    ),
    "Megatron-Core's GPT, bf16, tensor 2": (
        _gpt(tp=2),
        ("tp=4", "tp=1", "layers=8", "micro_batch=2", "seq=512", "microbatches=2", "recompute=full"),
    ),
    "Megatron-Core's GPT, bf16, DDP of 4": (_gpt(dp=4), ("dp=8", "layers=8", "zero=3", "microbatches=2", "micro_batch=8")),
    "torchtitan's Llama 3, bf16": (
        _llama(),
        ("layers=8", "micro_batch=4", "seq=2048", "microbatches=2", "recompute=full", "ffn=8192", "dp=4"),
    ),
    "torchtitan's Llama 3, bf16, FSDP2 of 4": (
        _llama(dp=4, zero=3),
        ("dp=8", "dp=2", "layers=8", "micro_batch=4", "seq=2048", "recompute=full", "zero=0", "microbatches=2"),
    ),
    "torchtitan's Llama 3, tf32": (_llama(precision="tf32"), ("precision=bf16", "micro_batch=4", "layers=8")),
}
