"""Prices of work from the cost models. Each distinct piece of work is priced once, together with others of its kind.

The cost models are fitted to kernels that ran alone. `StepCoefficients` correct them for a whole step, for effects that measurements of
single kernels do not show. There are at most 25, the same for all jobs, none for a single run or source, and each has a physical meaning.
`validation/runs.py --fit` fits the shipped ones to published runs; validation/results/runs.md lists them with their errors on runs that
were left out of the fit.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from lumos.blocks.block import Times
from lumos.blocks.work import Attention, Collective, Contention, Gemm, GroupedGemm, Traffic, Work
from lumos.cost.attention_model import attention
from lumos.cost.coefficients import GENERIC
from lumos.cost.coefficients import shipped_coefficients as fitted
from lumos.cost.collective_model import collective
from lumos.cost.estimate import Bound, Estimate
from lumos.cost.gemm_model import gemm
from lumos.cost.memory_bound_model import moved
from lumos.cost.power import attention_clock, held_clock
from lumos.diagnostics import Diagnostic
from lumos.vocabulary import AttentionKernel, DType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lumos.cost.cluster import Cluster

#: Attention kernels that were not measured: a similar kernel that was, and how many times slower they are. FlashAttention 1
#: against 2, forward and backward on A100: 1.5 to 2 (Dao, FlashAttention-2, arXiv:2307.08691, figures 4 and 5).
SLOWER_KERNELS: dict[AttentionKernel, tuple[AttentionKernel, float]] = {AttentionKernel.FA1: (AttentionKernel.FA2, 1.65)}


@dataclass(frozen=True, slots=True)
class Price:
    """The time of one piece of work, and what bounds it."""

    times: Times
    bound: Bound


class Pricer:
    """Prices work on one cluster, and keeps the prices. diagnostics: the remarks of the cost models, each once, in order."""

    def __init__(self, cluster: Cluster, coefficients: StepCoefficients | None = None) -> None:
        self.cluster = cluster
        self.coefficients = coefficients or shipped_step_coefficients()
        self.diagnostics: dict[Diagnostic, None] = {}
        self._prices: dict[Work, Price] = {}

    def __call__(self, work: Sequence[Work]) -> list[Price]:
        """The price of each piece of work."""
        self._price(w for w in dict.fromkeys(work) if w not in self._prices)
        return [self._prices[w] for w in work]

    def _price(self, work: Iterable[Work]) -> None:
        families: dict[tuple[object, ...], list[Work]] = {}
        for w in work:
            families.setdefault(_family(w), []).append(w)
        for members in families.values():
            estimate = self._estimate(members)
            self.diagnostics.update(dict.fromkeys(estimate.diagnostics))
            rows = zip(
                members, estimate.time.tolist(), estimate.low.tolist(), estimate.high.tolist(), estimate.bound_by.tolist(), strict=True
            )
            for w, time, low, high, bound in rows:
                self._prices[w] = Price(Times(time, low, high), Bound(bound))

    def _estimate(self, members: list[Work]) -> Estimate:
        first, a = members[0], self.cluster.accelerator
        c = self.coefficients
        columns = list(zip(*members, strict=True))
        if isinstance(first, Gemm):
            m, n, k, _, batch = columns[:5]
            estimate = gemm(
                m,
                n,
                k,
                a.with_older_kernels() if first.older else a,
                first.dtype,
                batch=batch,
                out_bytes=first.out_bytes,
                accumulate=first.accumulate,
                cast=first.cast,
                taps=first.taps,
                shared_bytes=columns[9],
                split=first.split,
                clock=held_clock(a, DType(first.dtype)),
                in_step=True,
            )
            return narrower_loads(estimate.scaled(c.gemm), first.narrower)
        if isinstance(first, GroupedGemm):
            rows = np.array([_skewed(w) for w in members if isinstance(w, GroupedGemm)])
            estimate = gemm(
                rows, columns[2], columns[3], a, first.dtype, grouped=True, out_bytes=first.out_bytes, accumulate=first.accumulate,
                clock=held_clock(a, DType(first.dtype)), in_step=True,
            )  # fmt: skip
            return estimate.scaled(c.gemm)
        if isinstance(first, Attention):
            batch, queries, keys, heads, kv_heads, head_dim, value_dim = columns[:7]
            asked, slower = SLOWER_KERNELS.get(first.kernel, (first.kernel, 1.0))
            kernel = self._kernel(asked)
            estimate = attention(
                batch, queries, heads, head_dim, a, first.dtype, kv_heads=kv_heads, value_dim=value_dim, kv_len=keys, causal=first.causal,
                direction=first.direction, kernel=kernel, clock=attention_clock(a),
            )  # fmt: skip
            return estimate.scaled(c.attention * slower)
        if isinstance(first, Traffic):
            nbytes, kernels, issued, in_turn = (np.array(columns[i], float) for i in (0, 1, 3, 4))
            own = kernels * c.traffic  # what a step changes about memory, it does not change about the cores
            estimate = moved(nbytes / kernels, a, first.kernel_class, instructions=issued / own, in_turn=in_turn / own)
            return estimate.scaled(own)
        if isinstance(first, Contention):
            taken = first.cores / (a.cores or first.cores) if first.cores else 0.0
            whole = self._estimate([w.collective for w in members if isinstance(w, Contention)])
            most = [sum(price.times.best for price in self(w.beside)) or np.inf for w in members if isinstance(w, Contention)]
            return whole.scaled(max(c.contention, taken) * np.minimum(1.0, np.array(most) / np.maximum(whole.time, 1)))
        if isinstance(first, Collective):
            _, ranks, size, per_node, concurrent, span = columns
            estimate = collective(first.kind, ranks, size, self.cluster, per_node=per_node, concurrent=concurrent, span=span)
            return estimate.scaled(c.collective)
        time = np.array(columns[0], np.int64)
        return Estimate(time, time, time, np.full(len(time), Bound.HOST, np.uint8), time, np.zeros(len(time), bool))

    def _kernel(self, asked: AttentionKernel) -> AttentionKernel:
        """The attention kernel `asked` if it exists for the device and has coefficients (of it, of one in `fitted_as`, or generic); else
        the best known."""
        sets = fitted().get("attention", {})
        a = self.cluster.accelerator
        exists = not a.attention_kernels or asked in a.attention_kernels
        if asked is AttentionKernel.FLASH or (exists and any(asked in sets.get(name, {}) for name in (a.name, *a.fitted_as, GENERIC))):
            return asked
        why = "was not measured on" if exists else "is not written for"
        note = f"attention: {asked} {why} {a.name}: its best known flash kernel instead"
        self.diagnostics[Diagnostic("attention-kernel", note)] = None
        return AttentionKernel.FLASH


def narrower_loads(aligned: Estimate, times: int) -> Estimate:
    """A multiplication whose loads are so many times narrower, from the same one with aligned rows. It takes at least as long, where loads
    hide behind the products, and at most as many times longer, where they do not; in between, the middle of both factors."""
    slower = aligned.scaled(times**0.5)
    return replace(slower, low=aligned.low, high=aligned.scaled(times).high)


def _family(w: Work) -> tuple[object, ...]:
    """A key that is equal for work which one call of a cost function can price together."""
    if isinstance(w, Gemm):
        return ("gemm", w.dtype, w.out_bytes, w.accumulate, w.cast, w.taps, w.split, w.older, w.narrower)
    if isinstance(w, GroupedGemm):
        return ("grouped", w.dtype, w.out_bytes, w.accumulate, w.groups)
    if isinstance(w, Attention):
        return ("attention", w.causal, w.direction, w.kernel, w.dtype)
    if isinstance(w, Collective):
        return ("collective", w.kind)
    if isinstance(w, Contention):
        return ("contention", w.collective.kind, w.cores)
    return ("traffic", w.kernel_class) if isinstance(w, Traffic) else ("fixed",)


def _skewed(w: GroupedGemm) -> np.ndarray:
    """Rows of each expert, in even steps from the least to the most loaded one."""
    if w.groups == 1:
        return np.array([w.rows])
    return np.rint(w.rows * np.linspace(2 - w.skew, w.skew, w.groups))


STEP_FILE = Path(__file__).parent / "data" / "step.toml"


class StepCoefficients(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Factors multiply the cost models' times; 1 leaves them as they are.

    gemm, attention, traffic (element-wise kernels), collective: time inside a step / time alone. contention: compute loses this share of
    the time of concurrent communication, which takes SMs and memory bandwidth, while it runs. step: factor on the profiles' step_us. The
    last five are half-widths of the interval, as shares of the step (`lumos.prediction.step_time.half_width`). spread: the least of a
    profile that published runs were compared with. untried: of one that was not compared on the accelerator, beyond the cost models'
    intervals. Both are calibrated on sources without the runs that stand behind their profile. unprofiled: of a framework without a
    profile, beyond those and its questions (calibrated on frameworks left out). unmeasured: of an accelerator whose kernels were not
    measured, beyond that (accelerators left out of the fit of multiplications: docs/cost-models.md). mixture: of a model with experts,
    beyond that: no table of kernels has products for many experts, permutations of tokens or DeepEP's exchanges, and frameworks differ in
    them most (calibrated on mixtures of experts that were never fitted to).
    """

    gemm: float = 1.0
    attention: float = 1.0
    collective: float = 1.0
    traffic: float = 1.0
    contention: float = 0.3
    step: float = 1.0
    spread: float = 0.07
    unprofiled: float = 0.05
    untried: float = 0.2
    unmeasured: float = 0.12
    mixture: float = 0.2


@cache
def shipped_step_coefficients() -> StepCoefficients:
    """The coefficients that ship with Lumos."""
    if not STEP_FILE.exists():
        return StepCoefficients()
    return msgspec.convert(tomllib.loads(STEP_FILE.read_text(encoding="utf-8")), StepCoefficients)


def kernel_by_kernel() -> StepCoefficients:
    """The shipped coefficients for a step whose every kernel is known, as in an emulated script.

    Multiplications, attention and element-wise kernels then take what the cost models say. The fitted factors on them also stand for
    kernels that frameworks launch and their profiles do not list, which such a step has for itself.
    """
    return msgspec.structs.replace(shipped_step_coefficients(), gemm=1.0, attention=1.0, traffic=1.0)
