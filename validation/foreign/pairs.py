"""The pairs: a job, and the same script with other settings, with the words of `lumos whatif --set` for the change between them.

Half of the pairs are held out: recorded with the others, scored only when that is asked for, and shown only in sums. A hash of a pair's
name decides. Further jobs and changes are drawn (`drawn`), and those are shown only in sums, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from validation.foreign.drawn import drawn, drawn_odd
from validation.foreign.job import Job
from validation.foreign.mixed import MIXED
from validation.foreign.packages import PACKAGES

#: What the words of `--set` mean to a job where they do not say it in its own.
MEANS: dict[str, dict[str, tuple[str, str | bool]]] = {
    "recompute": {"full": ("recompute", True), "none": ("recompute", False)},
    "schedule": {order: ("schedule", order) for order in ("1f1b", "gpipe", "interleaved")},
    "precision": {"bf16": ("precision", "amp"), "tf32": ("precision", "tf32"), "fp32": ("precision", "fp32")},
}


@dataclass(frozen=True)
class Pair:
    """A job, by its name, and a change of it, as the words KEY=VALUE,… of `lumos whatif --set`.

    draw: the seed of the draw that the job is of; None for one of BASES. odd: it is one of the odd families.
    """

    base: str
    change: str
    draw: int | None = None
    odd: bool = False

    @property
    def name(self) -> str:
        return f"{self.base}: {self.change}"

    @property
    def hidden(self) -> bool:
        """Whether the pair is shown only in sums."""
        return self.held_out or self.draw is not None

    @property
    def held_out(self) -> bool:
        return sha256(self.name.encode()).digest()[0] % 2 == 1

    @property
    def job(self) -> Job:
        """The job before the change."""
        if self.draw is None:
            return BASES[self.base]
        return (drawn_odd if self.odd else drawn)(self.draw)[self.base][0]

    @property
    def target(self) -> Job:
        """The changed job."""
        return changed(self.job, self.change)


def changed(job: Job, change: str) -> Job:
    """The job after a change in the words KEY=VALUE,… of `lumos whatif --set`."""
    changes: dict[str, int | str | bool] = {}
    for word in change.split(","):
        key, value = word.split("=")
        own, meant = MEANS[key][value] if key in MEANS else (key, int(value))
        keeps_tf32 = own == "precision" and meant == "amp" and job.precision == "tf32"
        changes[own] = "tf32 amp" if keeps_tf32 else meant
    return job.changed(changes)


def _sizes(text: str) -> dict[str, int]:
    """Sizes, from words that say a name and a number in turn."""
    words = text.split()
    return {key: int(value) for key, value in zip(words[::2], words[1::2], strict=True)}


def _wide(hidden: int, heads: int, ffn: int) -> str:
    return f"hidden={hidden},heads={heads},ffn={ffn}"


BASES: dict[str, Job] = {
    "GPT-2, bf16": Job("gpt2", _sizes("layers 6 hidden 768 heads 12 ffn 3072 micro_batch 4 seq 1024"), precision="bf16"),
    "GPT-2, fp32, host-bound": Job(
        "gpt2", _sizes("layers 6 hidden 512 heads 8 ffn 2048 micro_batch 1 seq 256"), fused=False, reads_loss=True, host=1.6
    ),
    "GPT-2, amp, 4 microbatches": Job(
        "gpt2", _sizes("layers 4 hidden 1024 heads 16 ffn 4096 micro_batch 2 seq 1024"), 4, precision="amp", fused=False
    ),
    "Llama, bf16": Job(
        "llama", _sizes("layers 4 hidden 2048 heads 16 kv_heads 4 ffn 5632 micro_batch 2 seq 1024"), precision="bf16", fused=False
    ),
    "Llama, bf16, recomputed": Job(
        "llama",
        _sizes("layers 5 hidden 1024 heads 16 kv_heads 16 ffn 2816 micro_batch 2 seq 2048"),
        precision="bf16",
        recompute=True,
        reads_loss=True,
    ),
    "Mixtral, bf16": Job("mixtral", _sizes("layers 3 hidden 1024 heads 16 ffn 3584 experts 4 micro_batch 2 seq 1024"), precision="bf16"),
    "BERT, tf32": Job("bert", _sizes("layers 4 hidden 768 heads 12 ffn 3072 micro_batch 8 seq 512"), precision="tf32", reads_loss=True),
    "T5, tf32": Job("t5", _sizes("layers 3 hidden 512 heads 8 ffn 2048 micro_batch 8 seq 256"), precision="tf32"),
    "ViT, amp": Job("vit", _sizes("layers 4 hidden 768 heads 12 ffn 3072 micro_batch 32"), precision="amp", clip=False),
    "ResNet-50, tf32": Job("resnet", _sizes("micro_batch 32"), precision="tf32", clip=False, fused=False),
    "nn.Transformer, tf32": Job(
        "translator", _sizes("layers 3 hidden 512 heads 8 ffn 2048 micro_batch 16 seq 128"), precision="tf32", clip=False
    ),
    "GPT-2, amp, DDP of 4": Job(
        "gpt2", _sizes("layers 6 hidden 768 heads 12 ffn 3072 micro_batch 4 seq 1024"), precision="amp", clip=False, dp=4
    ),
    "ResNet-50, tf32, DDP of 4": Job("resnet", _sizes("micro_batch 24"), precision="tf32", clip=False, fused=False, dp=4),
    "BERT, tf32, DDP of 2, 2 microbatches": Job(
        "bert", _sizes("layers 4 hidden 768 heads 12 ffn 3072 micro_batch 8 seq 256"), 2, precision="tf32", clip=False, dp=2
    ),
    "Llama, bf16, FSDP2 of 4": Job(
        "llama",
        _sizes("layers 4 hidden 2048 heads 16 kv_heads 4 ffn 5632 micro_batch 2 seq 1024"),
        precision="bf16",
        clip=False,
        dp=4,
        zero=3,
    ),
    "GPT-2, fp32, FSDP2 of 2": Job(
        "gpt2", _sizes("layers 5 hidden 512 heads 8 ffn 2048 micro_batch 4 seq 512"), clip=False, dp=2, zero=3, reads_loss=True
    ),
    "Llama, bf16, tensor 2": Job(
        "llama",
        _sizes("layers 4 hidden 2048 heads 16 kv_heads 8 ffn 5632 micro_batch 2 seq 1024"),
        precision="bf16",
        clip=False,
        fused=False,
        tp=2,
    ),
    "BERT, tf32, tensor 2": Job(
        "bert", _sizes("layers 4 hidden 1024 heads 16 ffn 4096 micro_batch 8 seq 512"), precision="tf32", clip=False, tp=2
    ),
    "Llama, bf16, FSDP2 of 2, tensor 2": Job(
        "llama",
        _sizes("layers 4 hidden 2048 heads 16 kv_heads 8 ffn 5632 micro_batch 2 seq 1024"),
        precision="bf16",
        clip=False,
        dp=2,
        tp=2,
        zero=3,
    ),
    "Llama, bf16, one rank": Job(
        "llama",
        _sizes("layers 4 hidden 2048 heads 16 kv_heads 8 ffn 5632 micro_batch 2 seq 1024"),
        precision="bf16",
        clip=False,
        fused=False,
    ),
    "BERT, tf32, one rank": Job(
        "bert", _sizes("layers 4 hidden 1024 heads 16 ffn 4096 micro_batch 8 seq 512"), precision="tf32", clip=False
    ),
    "Llama, bf16, DDP of 4": Job(
        "llama",
        _sizes("layers 4 hidden 2048 heads 16 kv_heads 4 ffn 5632 micro_batch 2 seq 1024"),
        precision="bf16",
        clip=False,
        dp=4,
    ),
    "BERT, tf32, FSDP2 of 4": Job(
        "bert", _sizes("layers 4 hidden 1024 heads 16 ffn 4096 micro_batch 8 seq 512"), precision="tf32", clip=False, dp=4, zero=3
    ),
    "GPT-2, bf16, ZeRO-2 of 4": Job(
        "gpt2",
        _sizes("layers 6 hidden 1024 heads 16 ffn 4096 micro_batch 4 seq 1024"),
        precision="bf16",
        clip=False,
        dp=4,
        zero=2,
    ),
    "Llama, bf16, pipeline of 2": Job(
        "llama",
        _sizes("layers 6 hidden 2048 heads 16 kv_heads 4 ffn 5632 micro_batch 1 seq 1024"),
        4,
        precision="bf16",
        clip=False,
        chunked=True,
        pp=2,
    ),
    "GPT-2, bf16, GPipe of 4": Job(
        "gpt2",
        _sizes("layers 8 hidden 1536 heads 16 ffn 6144 micro_batch 2 seq 1024"),
        4,
        precision="bf16",
        clip=False,
        chunked=True,
        pp=4,
        schedule="gpipe",
    ),
    "Llama, bf16, interleaved of 2": Job(
        "llama",
        _sizes("layers 8 hidden 2048 heads 16 kv_heads 8 ffn 5632 micro_batch 2 seq 1024"),
        4,
        precision="bf16",
        clip=False,
        chunked=True,
        pp=2,
        vpp=2,
        schedule="interleaved",
    ),
    "Llama, bf16, causal": Job(
        "llama",
        _sizes("layers 4 hidden 2048 heads 16 kv_heads 8 ffn 5632 micro_batch 2 seq 2048"),
        precision="bf16",
        clip=False,
        chunked=True,
    ),
    "GPT-2, bf16, causal, DDP of 2": Job(
        "gpt2",
        _sizes("layers 6 hidden 1024 heads 16 ffn 4096 micro_batch 2 seq 2048"),
        precision="bf16",
        clip=False,
        chunked=True,
        dp=2,
    ),
    "Llama, bf16, context 2": Job(
        "llama",
        _sizes("layers 4 hidden 2048 heads 16 kv_heads 8 ffn 5632 micro_batch 2 seq 4096"),
        precision="bf16",
        clip=False,
        chunked=True,
        cp=2,
    ),
    "GPT-2, bf16, context 2 by a ring": Job(
        "gpt2",
        _sizes("layers 6 hidden 1024 heads 16 ffn 4096 micro_batch 2 seq 4096"),
        precision="bf16",
        clip=False,
        chunked=True,
        cp=2,
        rotation="alltoall",
    ),
    "Mixtral, bf16, DDP of 4": Job(
        "mixtral",
        _sizes("layers 4 hidden 1024 heads 16 ffn 3584 experts 8 micro_batch 2 seq 1024"),
        precision="bf16",
        clip=False,
        dp=4,
    ),
    "Mixtral, bf16, experts on 2 of 4": Job(
        "mixtral",
        _sizes("layers 4 hidden 1024 heads 16 ffn 3584 experts 8 micro_batch 2 seq 1024"),
        precision="bf16",
        clip=False,
        dp=4,
        ep=2,
    ),
    "LSTM, tf32": Job("lstm", _sizes("layers 2 hidden 1024 micro_batch 64 seq 35"), precision="tf32"),
    "DLRM, tf32": Job(
        "dlrm", _sizes("tables 8 width 64 width_of_towers 1024 micro_batch 4096"), precision="tf32", clip=False, reads_loss=True
    ),
    **{name: job for name, (job, _) in (*MIXED.items(), *PACKAGES.items())},
}

CHANGES: dict[str, tuple[str, ...]] = {
    "GPT-2, bf16": (
        "layers=12",
        "layers=3",
        "micro_batch=8",
        "micro_batch=2",
        "seq=512",
        "seq=2048",
        "microbatches=4",
        "recompute=full",
        "dp=4",
    ),
    "GPT-2, fp32, host-bound": ("layers=12", "micro_batch=4", "micro_batch=8", "microbatches=2", "seq=1024", "precision=bf16"),
    "GPT-2, amp, 4 microbatches": ("layers=8", "micro_batch=4", "microbatches=2", "microbatches=8", "seq=2048", "recompute=full"),
    "Llama, bf16": ("layers=8", "layers=2", "micro_batch=4", "seq=2048", "ffn=8192", "microbatches=2", _wide(4096, 32, 11264)),
    "Llama, bf16, recomputed": ("recompute=none", "layers=10", "micro_batch=4", "seq=1024", "microbatches=3"),
    "Mixtral, bf16": ("layers=6", "micro_batch=4", "seq=2048", "microbatches=2", "ffn=7168"),
    "BERT, tf32": ("layers=12", "layers=2", "micro_batch=16", "micro_batch=4", "seq=256", "microbatches=2", _wide(1024, 16, 4096)),
    "T5, tf32": ("layers=6", "micro_batch=16", "seq=512", "microbatches=2", "precision=bf16"),
    "ViT, amp": ("layers=12", "micro_batch=64", "micro_batch=16", "microbatches=2", _wide(1024, 16, 4096)),
    "ResNet-50, tf32": ("micro_batch=64", "micro_batch=16", "microbatches=2", "precision=bf16"),
    "nn.Transformer, tf32": ("layers=6", "micro_batch=32", "seq=256", "microbatches=2", "precision=bf16"),
    "LSTM, tf32": ("micro_batch=128", "micro_batch=32", "hidden=2048", "layers=4", "seq=70", "microbatches=2"),
    "DLRM, tf32": ("micro_batch=8192", "micro_batch=2048", "microbatches=2"),
    "GPT-2, amp, DDP of 4": ("dp=2", "dp=8", "layers=12", "micro_batch=8", "seq=512", "microbatches=2", "zero=3", "zero=1", "zero=2"),
    "ResNet-50, tf32, DDP of 4": ("dp=8", "micro_batch=48", "microbatches=2"),
    "BERT, tf32, DDP of 2, 2 microbatches": ("dp=4", "layers=8", "microbatches=4", "seq=512"),
    "Llama, bf16, FSDP2 of 4": ("dp=8", "dp=2", "layers=8", "micro_batch=4", "seq=2048", "recompute=full", "microbatches=2", "tp=2"),
    "GPT-2, fp32, FSDP2 of 2": ("dp=4", "layers=10", "micro_batch=8", "zero=0"),
    "Llama, bf16, tensor 2": ("tp=4", "tp=1", "layers=8", "micro_batch=4", "seq=2048", "microbatches=2", "recompute=full"),
    "BERT, tf32, tensor 2": ("tp=4", "layers=8", "micro_batch=4", "precision=bf16"),
    "Llama, bf16, FSDP2 of 2, tensor 2": ("tp=4", "dp=4", "layers=8", "micro_batch=4"),
    "Llama, bf16, one rank": ("tp=2", "tp=4", "tp=8", "tp=2,layers=2,micro_batch=4"),
    "BERT, tf32, one rank": ("tp=2", "tp=4", "tp=2,micro_batch=16"),
    "GPT-2, bf16, ZeRO-2 of 4": ("zero=0", "zero=3", "zero=1", "dp=8", "layers=12"),
    "Llama, bf16, pipeline of 2": (
        "pp=3",
        "microbatches=8",
        "microbatches=2",
        "vpp=3",
        "schedule=gpipe",
        "layers=12",
        "micro_batch=2",
        "pp=3,microbatches=6",
        "pp=3,schedule=gpipe",
        "vpp=3,microbatches=8",
        "pp=1",
        "pp=1,microbatches=2",
        "pp=1,layers=4",
        "tp=2",
        "tp=4,microbatches=8",
        "recompute=full",
        "seq=2048",
    ),
    "GPT-2, bf16, GPipe of 4": (
        "schedule=1f1b",
        "pp=2",
        "microbatches=6",
        "microbatches=8",
        "pp=2,schedule=1f1b",
        "seq=512",
        "pp=1",
        "pp=1,layers=12",
        "layers=16",
        "recompute=full",
        "micro_batch=1",
    ),
    "Llama, bf16, interleaved of 2": (
        "microbatches=2",
        "vpp=1,schedule=1f1b",
        "vpp=1,schedule=gpipe",
        "vpp=4",
        "pp=1,vpp=1",
        "tp=2",
        "layers=16",
        "micro_batch=1",
        "pp=4",
        "recompute=full",
    ),
    "Llama, bf16, causal": ("cp=2", "cp=4", "cp=2,layers=8", "cp=2,seq=4096", "cp=4,micro_batch=4"),
    "GPT-2, bf16, causal, DDP of 2": ("cp=2", "cp=4", "cp=2,seq=4096"),
    # without tp: DistributedDataParallel, which exchanges the gradients of ranks that share sequences, takes no distributed tensors
    "Llama, bf16, context 2": (
        "cp=4",
        "cp=1",
        "layers=8",
        "micro_batch=4",
        "cp=4,seq=8192",
        "microbatches=2",
        "recompute=full",
        "seq=8192",
    ),
    "GPT-2, bf16, context 2 by a ring": ("cp=4", "cp=1", "layers=12"),
    "Mixtral, bf16, DDP of 4": ("ep=2", "ep=4", "ep=2,micro_batch=4", "ep=4,layers=8"),
    "Mixtral, bf16, experts on 2 of 4": ("ep=4", "ep=1", "layers=8", "micro_batch=4", "ep=4,seq=2048", "microbatches=2", "recompute=full"),
    "Llama, bf16, DDP of 4": (
        "zero=1",
        "zero=1,layers=8",
        "zero=2",
        "zero=2,micro_batch=1",
        "zero=3",
        "zero=3,layers=8",
        "zero=3,micro_batch=1",
        "recompute=full",
        "microbatches=2",
    ),
    "BERT, tf32, FSDP2 of 4": ("zero=2", "zero=1", "zero=0", "zero=0,layers=8", "zero=0,micro_batch=2"),
    **{name: changes for name, (_, changes) in (*MIXED.items(), *PACKAGES.items())},
}

PAIRS = tuple(Pair(base, change) for base, changes in CHANGES.items() for change in changes)


def drawn_pairs(seed: int, *, odd: bool = False) -> tuple[Pair, ...]:
    """The pairs of a draw, in its order. odd: of the odd families."""
    of = (drawn_odd if odd else drawn)(seed)
    return tuple(Pair(base, change, seed, odd) for base, (_, changes) in of.items() for change in changes)


def folder_of(base: str) -> str:
    """The folder of a base's recording, by its name."""
    return "".join(c if c.isalnum() or c == "-" else "_" for c in base)
