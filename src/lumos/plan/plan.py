"""A parallel plan: how one training step of a model is spread over devices and time.

`Plan` holds the sizes; `check` applies the rules that frameworks enforce. Ranks are numbered by tensor, context, data and
pipeline position, innermost first (Megatron's default), so the ranks of a tensor group are neighbours in a node. Expert
parallel groups lie inside the data and context dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.errors import UsageError
from lumos.model.transformer import MOST_TOKENS
from lumos.vocabulary import Precision, Recompute, Schedule, one_of

if TYPE_CHECKING:
    from lumos.model import Model

#: Fields of `Plan` that count devices, replicas, stages or sequences: whole numbers from 1.
_SIZES = ("tp", "pp", "vpp", "cp", "ep", "dp", "micro_batch", "global_batch", "seq_len")
#: The most passes (forward or backward, of one microbatch through one chunk) of a step that is simulated: it takes half a minute and 1 GB.
MOST_PASSES = 500_000
#: Fields of `Plan` that are enums.
_WORDS: dict[str, type[Schedule | Recompute | Precision]] = {"schedule": Schedule, "recompute": Recompute, "precision": Precision}


class PlanError(UsageError):
    """The plan breaks a rule. The message names the rule and the sizes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes and choices of one training step. Batches are counted in sequences; `seq_len` is in tokens.

    Raises UsageError for a word that is not in its enum (a valid word becomes the member), and PlanError for a size that no step
    of any model can have. `check` tests the rules between sizes, and between them and a model.

    tp, pp, vpp, cp, ep, dp: tensor, pipeline, virtual stages per device, context, expert, data parallel sizes; dp counts the
    replicas of the dense layers (ep divides cp · dp, or tp · cp · dp: `folded`). zero: 0 none, 1 optimizer states sharded, 2
    gradients too (`lumos.plan.schedules`), 3 parameters too (FSDP, `gathers_each`). shard: how many devices share one set of shards
    (0: the whole data-parallel group; fewer is hybrid sharding, with replicas of each set). recompute_layers: layers of each stage that
    are recomputed if `recompute` is "full" (-1: all). lora_rank: rank of the only parameters that are trained, the adapters (0: all
    parameters are trained). document: mean tokens of the documents that are packed into a sequence, each of which attends only to itself
    (0: the sequence is one document). first_layers, last_layers: layers of the first and of the last stage of a pipeline (0: as
    many as the others, `layers_of_places`).
    """

    seq_len: int
    global_batch: int
    micro_batch: int = 1
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    zero: int = 0
    shard: int = 0
    sequence_parallel: bool = False
    schedule: Schedule = Schedule.ONE_F_ONE_B
    recompute: Recompute = Recompute.NONE
    recompute_layers: int = -1
    precision: Precision = Precision.BF16
    lora_rank: int = 0
    document: int = 0
    first_layers: int = 0
    last_layers: int = 0

    def __post_init__(self) -> None:
        for key, kind in _WORDS.items():
            object.__setattr__(self, key, one_of(kind, getattr(self, key), key))
        for key in _SIZES:
            _whole(self, key, 1)
        for key in ("shard", "lora_rank", "document", "first_layers", "last_layers"):
            _whole(self, key, 0)
        _whole(self, "recompute_layers", -1)
        _rule(self.zero in (0, 1, 2, 3), f"zero = {self.zero}; valid: 0, 1, 2, 3")

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.cp * self.dp

    @property
    def microbatches(self) -> int:
        """Microbatches that one pipeline runs in a step."""
        return self.global_batch // (self.dp * self.micro_batch)

    @property
    def shards(self) -> int:
        """How many devices share one set of optimizer states (zero ≥ 1)."""
        return self.shard or self.dp * self.cp

    @property
    def gathers_each(self) -> bool:
        """Whether parameters are gathered for every pass, and gradients reduced after it (zero 3). In a pipeline they are not, as in torch
        (FSDP2 in `torch.distributed.pipelining`, torchtitan's `reshard_after_forward`): a stage gathers its parameters once for all
        microbatches, and reduces gradients after the last."""
        return self.zero == 3 and self.pp == 1

    @property
    def shards_gradients(self) -> bool:
        """Whether a rank keeps only its part of the gradients, but whole parameters (zero 2)."""
        return self.zero == 2

    @property
    def folded(self) -> bool:
        """Whether expert groups span the tensor ranks, because the data- and context-parallel ranks alone cannot be divided into them.
        Whole experts then lie on each rank (parallel folding; Liu et al. 2025, arXiv:2504.14960)."""
        return (self.dp * self.cp) % self.ep != 0

    @property
    def expert_replicas(self) -> int:
        """How many ranks hold the same experts and reduce their gradients together."""
        return (self.tp if self.folded else 1) * self.dp * self.cp // self.ep

    @property
    def ends(self) -> Ends:
        """The layers of the first and of the last stage, where they are stated."""
        return Ends(self.first_layers, self.last_layers)

    @property
    def documents(self) -> int:
        """Documents of one sequence."""
        return max(1, round(self.seq_len / self.document)) if self.document else 1

    @property
    def tokens(self) -> int:
        """Tokens of the whole step."""
        return self.global_batch * self.seq_len


def check_plan(plan: Plan, model: Model) -> None:
    """Raise PlanError if the plan breaks a rule between its sizes, or between them and the model."""
    _rule(plan.seq_len <= MOST_TOKENS, f"seq_len ({plan.seq_len:,}) must be at most {MOST_TOKENS:,} tokens; no model has so long a context")
    tokens = plan.micro_batch * plan.seq_len
    _rule(tokens < 1 << 31, f"micro_batch · seq_len = {tokens:,} tokens: more than kernels can index (2^31)")
    per_step = plan.dp * plan.micro_batch
    _rule(
        plan.global_batch % per_step == 0,
        f"global_batch ({plan.global_batch}) must be a multiple of dp · micro_batch ({plan.dp} · {plan.micro_batch} = {per_step})",
    )
    passes = 2 * plan.microbatches * plan.pp * plan.vpp
    _rule(
        passes <= MOST_PASSES,
        f"{plan.microbatches:,} microbatches make {passes:,} passes of a step, more than the {MOST_PASSES:,} that are simulated; beyond "
        "the pipeline's filling the step grows by equal parts: predict a smaller global_batch and extend it",
    )
    _rule(model.heads % plan.tp == 0, f"heads ({model.heads}) must be a multiple of tp ({plan.tp})")
    _rule(
        model.kv_heads % plan.tp == 0 or plan.tp % model.kv_heads == 0,
        f"kv_heads ({model.kv_heads}) and tp ({plan.tp}): one must be a multiple of the other",
    )
    _rule(model.ffn % plan.tp == 0, f"ffn ({model.ffn}) must be a multiple of tp ({plan.tp})")
    _rule(plan.lora_rank <= model.hidden, f"lora_rank ({plan.lora_rank}) must be at most the model's hidden size ({model.hidden})")
    if plan.document:
        _rule(0 < plan.document <= plan.seq_len, f"document ({plan.document}) must be at most seq_len ({plan.seq_len})")
        _rule(plan.cp == 1, f"document ({plan.document}) with cp = {plan.cp}: how packed documents are split over a ring is not modelled")
    parts = 2 * plan.cp if plan.cp > 1 else 1
    _rule(plan.seq_len % parts == 0, f"seq_len ({plan.seq_len}) must be a multiple of 2 · cp ({parts}) to balance causal attention")
    if plan.sequence_parallel:
        _rule(
            (plan.seq_len // plan.cp) % plan.tp == 0,
            f"seq_len / cp ({plan.seq_len // plan.cp}) must be a multiple of tp ({plan.tp}) with sequence parallel",
        )
    if plan.pp > 1:  # the first and the last chunk may hold only the embedding and only the head
        most = model.layers + 2
        _rule(
            plan.pp * plan.vpp <= most,
            f"pp · vpp ({plan.pp} · {plan.vpp}) must not exceed the {model.layers} layers, the embedding and the head ({most})",
        )
    layers_of_places(model.layers, plan.pp, plan.vpp, plan.ends)
    _rule(
        plan.ends == EVEN or plan.schedule is not Schedule.DUALPIPE,
        "dualpipe, in which every device holds the parts of two stages, has no first_layers and last_layers of its own",
    )
    if plan.vpp > 1:
        _rule(plan.pp > 1, f"vpp ({plan.vpp}) needs pp > 1")
        _rule(
            plan.schedule in (Schedule.INTERLEAVED, Schedule.ONE_F_ONE_B),
            f"vpp ({plan.vpp}) needs the interleaved schedule, not {plan.schedule}",
        )
        _rule(plan.microbatches % plan.pp == 0, f"microbatches ({plan.microbatches}) must be a multiple of pp ({plan.pp}) with vpp > 1")
    if plan.schedule is Schedule.DUALPIPE:
        _rule(
            plan.pp % 2 == 0 and plan.microbatches % 2 == 0 and plan.microbatches >= 2 * plan.pp,
            f"dualpipe needs an even pp ({plan.pp}) and an even number of microbatches ({plan.microbatches}), at least 2 · pp",
        )
        _rule(plan.vpp == 1, f"dualpipe has no virtual stages (vpp = {plan.vpp})")
    if plan.ep > 1:
        _rule(model.experts is not None, f"ep ({plan.ep}) needs a model with experts; {model.name} has none")
        _rule(
            (plan.tp * plan.dp * plan.cp) % plan.ep == 0,
            f"ep ({plan.ep}) must divide dp · cp ({plan.dp} · {plan.cp}), or tp · dp · cp where experts span tensor ranks",
        )
        _rule(
            not plan.folded or plan.sequence_parallel,
            f"ep ({plan.ep}) over tp ({plan.tp}) ranks needs sequence parallel, which splits tokens",
        )
        if model.experts is not None:
            _rule(model.experts.count % plan.ep == 0, f"experts ({model.experts.count}) must be a multiple of ep ({plan.ep})")
    if plan.shard:
        _rule((plan.dp * plan.cp) % plan.shard == 0, f"shard ({plan.shard}) must divide dp · cp ({plan.dp * plan.cp})")


def _whole(plan: Plan, key: str, least: int) -> None:
    value = getattr(plan, key)
    if not isinstance(value, int | np.integer):
        raise PlanError(f"plan: {key} = {value!r} must be a whole number")
    if value < least:
        raise PlanError(f"plan: {key} = {value} must be at least {least}")


def _rule(holds: bool, message: str) -> None:
    if not holds:
        raise PlanError(f"plan: {message}")


class OuterParts(NamedTuple):
    """Whether a pipeline stage holds the embedding (`first`), and whether it holds the final norm and the head (`last`)."""

    first: bool
    last: bool


def outer_parts(schedule: Schedule, stages: int, stage: int) -> OuterParts:
    """What a stage holds besides its layers. With DualPipe every device also holds the part of the mirrored stage."""
    mirrored = stages - 1 - stage if schedule == Schedule.DUALPIPE else stage
    return OuterParts(0 in (stage, mirrored), stages - 1 in (stage, mirrored))


def layer_count(chunks: list[range]) -> int:
    """How many layers the chunks of a stage have together."""
    return sum(map(len, chunks))


class Ends(NamedTuple):
    """How many layers the first and the last stage of a pipeline have; 0 for as many as the others."""

    first: int
    last: int


EVEN = Ends(0, 0)


def layers_of_places(layers: int, stages: int, chunks: int = 1, ends: Ends = EVEN) -> list[int]:
    """How many layers each chunk of a pipeline has, in the order of the forward pass: the first chunk of every stage, then the second.

    If the layers do not divide evenly, the last chunk gets one fewer, then the first, because these also hold the head and the embedding
    (Llama 3 takes one layer from each end). ends: those of the first and the last stage where they are not as many as the others
    (Megatron-LM's `decoder_first_pipeline_num_layers` and `decoder_last_pipeline_num_layers`): the others share the rest equally.

    Raises PlanError where that cannot be done with whole layers.
    """
    places = stages * chunks
    if ends == EVEN:
        base, extra = divmod(layers, places)
        order = [*range(1, places - 1), 0, places - 1] if places > 1 else [0]
        return [base + (part in order[:extra]) for part in range(places)]
    _rule(stages > 1, "first_layers and last_layers need pp > 1")
    stated = {stage: n for stage, n in ((0, ends.first), (stages - 1, ends.last)) if n}
    others, rest = stages - len(stated), layers - sum(stated.values())
    whole = rest == 0 if not others else rest > 0 and rest % others == 0
    text = f"first_layers ({ends.first}) and last_layers ({ends.last}) leave {rest} of {layers} layers, which the {others} other stages"
    _rule(whole, f"{text} cannot share equally")
    of_stage = [stated.get(stage, rest // max(others, 1)) for stage in range(stages)]
    _rule(all(n % chunks == 0 for n in of_stage), f"the layers of each stage ({of_stage}) must be a multiple of vpp ({chunks})")
    return [n // chunks for n in of_stage] * chunks


def layers_of_chunks(plan: Plan, model: Model) -> list[list[range]]:
    """The layers of each chunk, as ranges: [stage][virtual stage] (`layers_of_places`)."""
    sizes = layers_of_places(model.layers, plan.pp, plan.vpp, plan.ends)  # with dualpipe every device holds its part and the mirrored one
    ranges = [range(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]
    if plan.schedule is Schedule.DUALPIPE:
        return [[ranges[stage], ranges[plan.pp - 1 - stage]] for stage in range(plan.pp)]
    return [[ranges[v * plan.pp + stage] for v in range(plan.vpp)] for stage in range(plan.pp)]
