"""The layers of a job without tensor parallelism, shared by several ranks, as Megatron-LM shares them (Shoeybi et al., 2019).

The multiplications that read the residual stream are cut by columns, those that write it by rows, so that each rank holds a part of the
heads and of the feed-forward width. The ranks then sum the residual stream four times in a layer: in the forward pass after the attention's
output projection and after the feed-forward part, in the backward pass after the gradients of the input of each. The table of the
embedding and the multiplication of the head are cut by the vocabulary if the ranks can have equal parts of it: the ranks sum what
each looked up, gather the head's results, put them in order, and take each its part of their gradient. A table that the two have in common
stays whole unless its vocabulary is padded. What exchanges and copies take follows the recording's own, else their models over the stated
or usual link, and the work around them waits.

Frameworks differ (`Ways`). PyTorch's DTensor, by modules, sums the gradient of every multiplication that reads the stream, and Megatron
the sum of them; some plans leave embedding and head whole, and others compute the loss from parts of the head's result; and where the ranks
have the stream between the layers' halves in parts (sequence parallelism), they share the work on that as well, and gather and scatter it
instead of summing it, which takes as long. Where nobody says which framework it is, the interval reaches from one to the other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.changes.layout.measured_layout import as_before, rewriting
from lumos.changes.layout.placed import AddedTimes, Addition, anchors, times_of
from lumos.changes.layout.prices import Ratio, TaskPrices, exactly
from lumos.changes.layout.regroup import regroup
from lumos.changes.layout.reprice import changed_tasks
from lumos.changes.layout.reshaped import OperatorsNow
from lumos.changes.layout.sharding.exchanged import exchanged_by_rank, within_rows
from lumos.cost.collective_model import collective
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.graph.table import Kind
from lumos.operators.shaped import Product, elements, factors, product
from lumos.segment.program import shapes_of
from lumos.segment.rank import GATHERED, recordings_of
from lumos.segment.sizes import Sizes, sizes
from lumos.trace.table import excluding, unique
from lumos.vocabulary import CollectiveKind, DType, Loss, Phase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.changes.layout.placed import Placed
    from lumos.changes.layout.rates import Rates
    from lumos.changes.layout.sharding.exchanged import Exchanged
    from lumos.cost.cluster import Cluster
    from lumos.operators.shaped import ShapedOperator
    from lumos.operators.table import Shape
    from lumos.plan.framework import Framework
    from lumos.segment.rank import RankRecording
    from lumos.segment.segment import Label
    from lumos.trace.table import Int64, Job, Trace

#: Megatron-LM shares a table that embedding and head have in common, and pads its vocabulary to a multiple of this for each rank
#: (its option make-vocab-size-divisible-by).
PADDED_TO = 128
#: Operators that look up rows of a table, the one called in the other.
_LOOKUPS = ("aten::embedding", "aten::index_select")
#: How many times as long the CPU takes over the layers, and the ends of its 80 % interval, where PyTorch's DTensor dispatches every
#: operator again, on this rank's parts of its tensors (1.4 and 1.46 times in two emulated Llamas of Python modules); Megatron-LM calls the
#: same operators as one rank does.
DISPATCHED_AGAIN = Ratio(1.45, 1.3, 1.6)


class Ways(NamedTuple):
    """How ranks most likely share layers. framework: whose ways these are; None for those of Megatron-LM without its option of sequences in
    parts. sure: whether somebody said so; else the interval holds other ways too."""

    framework: Framework | None = None
    sure: bool = False

    @property
    def dispatched(self) -> Ratio:
        """How many times as long the CPU takes over the layers."""
        again = self.framework is not None and self.framework.dtensor
        if self.sure:
            return DISPATCHED_AGAIN if again else exactly(1.0)
        return Ratio(DISPATCHED_AGAIN.best if again else 1.0, 1.0, DISPATCHED_AGAIN.high)

    @property
    def shares_loss(self) -> bool:
        """Whether the ranks are known to compute the loss from parts of the head's result."""
        return self.sure and self.framework is not None and self.framework.loss is Loss.MEGATRON

    @property
    def shares_sequences(self) -> bool:
        """Whether each rank has a part of the stream between the halves of a layer."""
        return self.framework is not None and self.framework.sequence_parallel


class _Place(NamedTuple):
    """A multiplication of the passes over a rank's tokens. task: of the measured graph. row: of its operator."""

    task: int
    row: int
    sizes: Product
    label: Label
    piece: int
    operator: ShapedOperator

    @property
    def inside(self) -> bool:
        return self.label.layer >= 0


def split_over_ranks(
    before: MeasuredLayout,
    after: MeasuredLayout,
    job: Job,
    ranks: int,
    cluster: Cluster,
    ratio: float,
    rates: Rates | None = None,
    ways: Ways = Ways(),
) -> MeasuredLayout:
    """The layout in which `ranks` ranks share the layers, and sum the residual stream of each.

    before, after: the layout before and after heads and feed-forward width became those of a rank's part. ratio: by which the stream is
    larger than recorded. rates: what exchanges and copies take; None for those of the models of `cluster`, and no copies. Raises LumosError
    where the layers do not show the multiplications around which ranks exchange.
    """
    sites: list[_Site] = []
    cut, tables = after, list[int]()
    recorded = recordings_of(before.segmentation, job)
    for rank in recorded:
        places, shown = _multiplications(rank), rank.sizes
        could = _vocabulary(rank.trace, ranks)
        looked_up = _lookups(rank, (shown.vocab, shown.hidden))
        apart = _has_two_tables(rank, places, looked_up)
        pads = not (ways.framework is not None and ways.framework.dtensor) and not could % (PADDED_TO * ranks)
        shown = shown._replace(vocab=could if apart or pads else 0)
        sites += [*_sites(places, shown), *(_Site(task, inside=False) for task in looked_up if shown.vocab)]
        tables.append(shown.vocab)
        alike: dict[_Share, set[int]] = defaultdict(set)
        for row, share in _shares(before, after, rank, places, shown, could):
            alike[share].add(row)
        for share, rows in alike.items():
            in_parts = partial(_cut, share.dimension, ranks)
            likely, other = (as_before, in_parts) if share.whole else (in_parts, as_before)
            cut = rewriting(cut, rank.position, rows, *((likely,) if share.sure or ways.sure else (likely, other)))
    if not any(site.inside for site in sites):
        raise LumosError(
            f"--set tp: the layers of {job.traces[0].path} show no multiplications that read and write the residual stream, so they cannot"
            " be shared by ranks; record with record_shapes=True"
        )
    prices = cut.prices.copy()
    for rank, exchanged, vocab in zip(recorded, exchanged_by_rank(before, job), tables, strict=True):
        _share_loss(prices, rank, ranks, sure=ways.shares_loss)
        prices.multiply(_calls_of_layers(rank), ways.dispatched)
        part = share_weights(prices, rank, exchanged, changed_tasks(before, after, rank), ranks, outside=vocab > 0)
        cut = _share_exchanges(cut, exchanged, part, ranks)
    shown, width = sizes(job.traces[0]), stream_width(job.traces[0])
    tokens = shown.micro_batch * shown.seq * ratio * width
    vocab = max(1, *(sizes(trace).vocab for trace in job.traces))
    times = _times(round(tokens * shown.hidden), round(tokens * vocab), ranks, cluster, rates)
    outside = ", and around the shared embedding and head," if any(not site.inside for site in sites) else ","
    text = (
        f"tp = {ranks}: the recording is of one rank a layer and shows no exchange inside it; assumed are sums of the residual stream"
        f" ({tokens * shown.hidden / 1e6:,.1f} MB) twice in a layer's forward pass and twice in its backward pass{outside}"
        f" over the links of {cluster.name}"
        + (f", as {ways.framework.name} shares them" if ways.framework is not None else "")
        + ("" if ways.sure else "; --base framework=NAME says how they are shared: else the interval holds how others do it")
    )
    of_site = {site.task: _time(site, times, ways) for site in sites}
    return replace(
        cut,
        prices=prices,
        assumed=(*after.assumed, partial(_exchanges, of_site)),
        diagnostics=(*after.diagnostics, Diagnostic("split-assumed", text)),
    )


def _calls_of_layers(rank: RankRecording) -> Int64:
    """The tasks of a rank's threads that belong to layers."""
    segmentation, mine = rank.segmentation, rank.tasks
    return mine[(segmentation.layer[mine] >= 0) & ~segmentation.owners.on_device[mine]]


def _has_two_tables(rank: RankRecording, places: Sequence[_Place], looked_up: Sequence[int]) -> bool:
    """Whether embedding and head have a table each, as far as the gradients show. Of a single one for both (tied), PyTorch's
    `parallelize_module` would give each of the two modules a parameter of its own, so its plans leave it whole. A stage of a pipeline that
    has but one of the two has its table alone."""
    table = (rank.sizes.vocab, rank.sizes.hidden)
    multiplied = any(not of.inside and {of.sizes.n, of.sizes.k} == set(table) for of in places)
    tables = [gradient.shape for gradient in rank.gradients].count(table)
    return tables != 1 or not (looked_up and multiplied)


def _lookups(rank: RankRecording, table: Shape) -> list[int]:
    """The last task of every piece of a rank that looks tokens up in a table."""
    reads = rank.work.of(lambda o: o.name in _LOOKUPS and o.shapes[:1] == (table,))
    return sorted({int(rank.segmentation.piece[task]): task for task in np.sort(reads).tolist()}.values())


class _Site(NamedTuple):
    """Where ranks exchange: after a task. most: the most exchanges that a framework makes there. gathers: whether the head's result; takes:
    whether each first takes its part of that result's gradient."""

    task: int
    inside: bool
    most: int = 1
    gathers: bool = False
    takes: bool = False


class _Times(NamedTuple):
    """What ranks do for one microbatch: a sum of the stream; a gather of the head's results, which puts them in order as well; a copy of a
    rank's part of them."""

    stream: AddedTimes
    results: AddedTimes
    part: AddedTimes


def _times(stream: int, results: int, ranks: int, cluster: Cluster, rates: Rates | None) -> _Times:
    """The times of exchanges and copies of so many bytes."""
    if rates is None:
        summed = times_of(collective(CollectiveKind.ALL_REDUCE, ranks, stream, cluster))
        return _Times(summed, times_of(collective(CollectiveKind.ALL_GATHER, ranks, results, cluster)), AddedTimes(0, 0, 0))
    gather, ordered = rates.exchange(CollectiveKind.ALL_GATHER, ranks, results), rates.copy(results)
    return _Times(rates.exchange(CollectiveKind.ALL_REDUCE, ranks, stream), _together(gather, ordered), rates.copy(results // ranks))


def _together(one: AddedTimes, other: AddedTimes) -> AddedTimes:
    return AddedTimes(*(a + b for a, b in zip(one, other, strict=True)))


def _time(site: _Site, times: _Times, ways: Ways) -> AddedTimes:
    """What the ranks do at a site takes. Outside the layers there may be nothing, and no results are gathered where the loss is shared."""
    if site.inside:
        most = 1 if ways.sure and ways.shares_loss else site.most
        return times.stream._replace(high=times.stream.high * most)
    if ways.shares_loss:
        return AddedTimes(0, 0, 0) if site.gathers else times.stream
    time = times.results if site.gathers else _together(times.stream, times.part) if site.takes else times.stream
    return time._replace(low=0)


class _Share(NamedTuple):
    """How ranks share a multiplication where sizes do not tell so. dimension: of `Product`, of which each has a part. whole: whether they
    most likely leave it whole. sure: whether it is known to be shared."""

    dimension: str
    whole: bool
    sure: bool


def _shares(
    before: MeasuredLayout, after: MeasuredLayout, rank: RankRecording, places: Sequence[_Place], shown: Sizes, could: int
) -> Iterator[tuple[int, _Share]]:
    """The multiplications, by row, that sizes did not tell to be a part: those of square weights, and those of embedding and head and of no
    width that ranks share (the narrow projections of latent attention), which some plans leave whole. could: the vocabulary that ranks
    could share; where `shown` has none, embedding and head stay whole."""
    was, now = OperatorsNow(before, rank), OperatorsNow(after, rank)
    shared = {n * shown.head_dim for n in (shown.heads, shown.kv_heads, shown.heads + 2 * shown.kv_heads)} | {shown.ffn, 2 * shown.ffn}
    for multiplication in places:
        m, n, k, batch = multiplication.sizes
        of_vocabulary = could > 0 and could in (m, n, k) and not multiplication.inside
        if batch > 1 or not (multiplication.inside or of_vocabulary) or was[multiplication.row] != now[multiplication.row]:
            continue
        dimension = "k" if of_vocabulary and k == could else "m" if m == could else "n"
        sure = not of_vocabulary and not shared.isdisjoint(multiplication.sizes)
        whole = of_vocabulary and not shown.vocab
        yield multiplication.row, _Share(dimension, whole, sure and not whole)


def _cut(dimension: str, ranks: int, _: ShapedOperator, o: ShapedOperator) -> ShapedOperator:
    """A rank's part of a multiplication, of which the ranks share a dimension of `Product`."""
    inputs, whole = factors(o), product(o)
    if inputs is None or whole is None:
        return o
    part = whole._replace(**{dimension: getattr(whole, dimension) // ranks})
    out = list(o.shapes)
    rows = (part.m,) if len(out[inputs.first]) == 2 else out[inputs.first][:-1]
    out[inputs.first] = (*rows, part.k)
    out[inputs.second] = (part.n, part.k) if inputs.transposed else (part.k, part.n)
    return o._replace(shapes=tuple(out))


def _vocabulary(trace: Trace, ranks: int) -> int:
    """The vocabulary that ranks could share equally; 0 for none."""
    vocab = sizes(trace).vocab
    return 0 if vocab % ranks else vocab


def _share_loss(prices: TaskPrices, rank: RankRecording, ranks: int, *, sure: bool) -> None:
    """Let the low ends of what runs over the vocabulary outside the layers, the loss, be those of a rank's part, in place: ranks that leave
    the head's result in parts compute the loss from these (Megatron-LM, and PyTorch's `loss_parallel`). sure: whether they are known to."""
    could, segmentation = _vocabulary(rank.trace, ranks), rank.segmentation
    over = rank.work.of(lambda o: could and product(o) is None and any(shape[-1:] == (could,) for shape in o.shapes))
    outside = (segmentation.layer[over] < 0) & np.isin(segmentation.phase[over], (Phase.FORWARD, Phase.BACKWARD))
    prices.multiply(over[outside], exactly(1 / ranks) if sure else Ratio(1.0, 1 / ranks, 1.0))


def stream_bytes(trace: Trace) -> int:
    """Bytes of what runs through the layers of a microbatch: the residual stream of a model for sequences, else what most multiplications
    and convolutions read; 0 where the trace does not say."""
    shown, shapes, read = sizes(trace), shapes_of(trace), Counter[int]()
    for o, times in shapes.counted():
        if o.shapes and ("linear" in o.name or "conv" in o.name) and "backward" not in o.name:
            read[elements(o.shapes[0])] += times
    usual = read.most_common(1)[0][0] if read else 0
    return (shown.micro_batch * shown.seq * shown.hidden or usual) * stream_width(trace)


def stream_width(trace: Trace) -> int:
    """Bytes of one value of the residual stream: of the type that most multiplications read; 4 where the trace does not say."""
    shapes, types = shapes_of(trace), Counter[str]()
    for o, times in shapes.counted(shapes.own):
        places = factors(o)
        if places is not None and places.first < len(o.dtypes):
            types[o.dtypes[places.first]] += times
    dtype = DType.parse(types.most_common(1)[0][0]) if types else None
    return (dtype or DType.FP32).bytes


def _exchanges(times: Mapping[int, AddedTimes], placed: Placed) -> Iterator[Addition]:
    """An exchange after every copy of the tasks in `times`."""
    for at in anchors(placed, times):
        yield at.addition("exchange of activations (assumed)", "assumed exchange of activations", times[at.recorded])


def _sites(places: Sequence[_Place], shown: Sizes) -> Iterator[_Site]:
    """Where the ranks exchange."""
    of_piece: dict[int, list[_Place]] = defaultdict(list)
    for multiplication in places:
        m, n, k, batch = multiplication.sizes
        if m * batch != shown.micro_batch * shown.seq:
            continue
        if multiplication.inside and n == shown.hidden:
            of_piece[multiplication.piece].append(multiplication)
        elif not multiplication.inside and (n, k) == (shown.vocab, shown.hidden):
            yield _Site(multiplication.task, inside=False, gathers=True)
        elif not multiplication.inside and (n, k) == (shown.hidden, shown.vocab):
            yield _Site(multiplication.task, inside=False, takes=True)
    for of_one_piece in of_piece.values():
        inner = [p for p in of_one_piece if p.sizes.k in (shown.ffn, 2 * shown.ffn)]
        attended = [p for p in of_one_piece if p not in inner]
        if of_one_piece[0].label.phase == Phase.BACKWARD:
            # the gradient of what attention gives has the output projection's shape, and comes first
            halves = [(inner, len(inner)), (attended, max(len(attended) - 1, 1))]
        else:
            halves = [([p for p in inner if p.sizes.k == shown.ffn], 1), (attended, 1)]
        yield from (_Site(half[-1].task, True, most) for half, most in halves if half)


def _multiplications(rank: RankRecording) -> list[_Place]:
    """The multiplications in the passes of a rank, in order."""
    segmentation, out = rank.segmentation, []
    for task, row, o in rank.work.in_order(product):
        piece, shape = int(segmentation.piece[task]), product(o)
        label = segmentation.pieces[piece].label
        if shape is not None and label.phase in (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE):
            out.append(_Place(task, row, shape, label, piece, o))
    return out


# ---------------------------------------------------------------- weights
# Every matrix of the layers is shared, and the tables of embedding and head where the ranks share the vocabulary. Plans differ in the
# latter, so the interval reaches from all weights in parts to those of the layers alone.


def share_weights(
    prices: TaskPrices, rank: RankRecording, exchanged: Exchanged, changed: Int64, ranks: int, *, outside: bool
) -> Ratio:
    """Let the work on all weights of a rank be that on its part of them, in place, where sizes do not say so. Returns how large that is.

    exchanged: what the replicas of the rank exchange by. changed: the tasks that sizes made others. outside: whether ranks share the
    weights outside the layers.
    """
    segmentation, by_layer, mine = rank.segmentation, rank.weights(), rank.tasks
    inner, outer = sum(n for layer, n in by_layer.items() if layer >= 0), by_layer.get(-1, 0)
    whole = (inner / ranks + outer) / (inner + outer) if inner else 1.0
    share = Ratio(1 / ranks if outside else whole, 1 / ranks, whole)
    mine = mine[segmentation.phase[mine] == Phase.OPTIMIZER]
    updates = mine[np.isin(segmentation.graph.kind[mine], (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET))]
    prices.multiply(excluding(unique(updates, exchanged.copies), changed), share)
    inside, tables = _accumulated(rank)
    prices.multiply(excluding(inside, changed), exactly(1 / ranks))
    prices.multiply(excluding(tables, changed), Ratio(1 / ranks if outside else 1.0, 1 / ranks, 1.0))
    return share


def _share_exchanges(layout: MeasuredLayout, exchanged: Exchanged, share: Ratio, ranks: int) -> MeasuredLayout:
    """The layout in which replicas exchange a rank's part of weights and gradients. share: how large it is. ranks: among how many."""
    facts = layout.segmentation.graph.collectives
    if facts is None:
        return layout
    rows = facts.rows_of(exchanged.gathers, exchanged.gradients, exchanged.updated)
    parts = [lambda whole, times=times: (whole.of(times, apart=ranks),) for times in share[:3]]
    return regroup(layout, rows.tolist(), *parts)


def _accumulated(rank: RankRecording) -> tuple[Int64, Int64]:
    """The tasks of a rank in which autograd adds the gradients of matrices to those that are there: of the layers', and of others."""
    work = rank.work
    matrices = {gradient.shape for gradient in rank.gradients if len(gradient.shape) == 2}
    adds = work.like(lambda o: (shown := {s for s in o.shapes if s}) and shown <= matrices)
    tasks = work.tasks[adds & within_rows(rank.trace, work.rows, GATHERED)]
    in_layer = rank.segmentation.layer[tasks] >= 0
    return tasks[in_layer], tasks[~in_layer]
