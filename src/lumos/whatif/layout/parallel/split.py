"""The layers of a job without tensor parallelism, shared by several ranks, as Megatron-LM shares them (Shoeybi et al., 2019).

The multiplications that read the residual stream are cut by columns, those that write it by rows, so that each rank holds a part of the
heads and of the feed-forward width. The ranks then sum the residual stream four times in a layer: in the forward pass after the attention's
output projection and after the feed-forward part, in the backward pass after the gradients of the input of each. The table of the
embedding and the multiplication of the head are cut by the vocabulary if the ranks can have equal parts of it, and the head's result is
gathered; a table that the two have in common stays whole unless its vocabulary is padded. Exchanges take the time of the model of a
collective over the stated or usual link, and the work around them waits.

Frameworks differ. PyTorch's DTensor, by modules, sums the gradient of every multiplication that reads the stream, and Megatron the sum of
them; some plans leave embedding and head whole. The interval reaches from one to the other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.cost.collective import collective
from lumos.cost.gemm import gemm
from lumos.cost.operators import elements
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.graph.table import Kind
from lumos.segment.dimensions import Sizes, shapes_of, sizes
from lumos.segment.products import Product, factors, product
from lumos.segment.weights import gradients, weights
from lumos.vocabulary import CollectiveKind, DType, Phase
from lumos.whatif.layout.measured_layout import rewriting
from lumos.whatif.layout.placed import AddedTimes, Addition, next_on_processor, times_of
from lumos.whatif.layout.rescale import CPU_INTERVAL, operator_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumos.cost.cluster import Accelerator, Cluster
    from lumos.segment.products import ShapedOperator
    from lumos.segment.segment import Label
    from lumos.trace.table import Job, Trace
    from lumos.whatif.layout.measured_layout import Factors, MeasuredLayout
    from lumos.whatif.layout.placed import Placed

#: Megatron-LM shares a table that embedding and head have in common, and pads its vocabulary to a multiple of this for each rank
#: (its option make-vocab-size-divisible-by).
PADDED_TO = 128
_NAME, _LANE = "exchange of activations (assumed)", "assumed exchange of activations"


class _Place(NamedTuple):
    """A multiplication of the passes over a rank's tokens. task: of the measured graph. row: of its operator."""

    task: int
    row: int
    sizes: Product
    label: Label
    piece: int
    dtype: str

    @property
    def inside(self) -> bool:
        return self.label.layer >= 0


def split_over_ranks(
    before: MeasuredLayout, after: MeasuredLayout, job: Job, accelerator: Accelerator | None, ranks: int, cluster: Cluster, ratio: float
) -> MeasuredLayout:
    """The layout in which `ranks` ranks share the layers, and sum the residual stream of each.

    before, after: the layout before and after heads and feed-forward width became those of a rank's part. ratio: by which the stream is
    larger than recorded. Raises LumosError where the layers do not show the multiplications around which ranks exchange.
    """
    sites: list[_Site] = []
    columns = after.factor.copy(), after.low.copy(), after.high.copy()
    for position, trace in enumerate(job.traces):
        places = _multiplications(before, position, trace)
        shown = sizes(trace)
        could = shown.vocab if shown.vocab % ranks == 0 else 0
        shown = shown._replace(vocab=could if _has_two_tables(before, position, trace, shown) or not could % (PADDED_TO * ranks) else 0)
        sites += _sites(places, shown)
        for dimension, rows in _share(columns, before, places, shown, could, accelerator, ranks).items():
            after = rewriting(after, position, rows, partial(_cut, dimension, ranks))
        _share_updates(columns, before, position, trace, ranks, outside=shown.vocab > 0)
    if not any(site.inside for site in sites):
        raise LumosError(
            f"--set tp: the layers of {job.traces[0].path} show no multiplications that read and write the residual stream, so they cannot"
            " be shared by ranks; record with record_shapes=True"
        )
    shown, width = sizes(job.traces[0]), stream_width(job.traces[0])
    tokens = shown.micro_batch * shown.seq * ratio * width
    stream = times_of(collective(CollectiveKind.ALL_REDUCE, ranks, round(tokens * shown.hidden), cluster))
    logits = times_of(collective(CollectiveKind.ALL_GATHER, ranks, round(tokens * max(shown.vocab, 1)), cluster))
    outside = ", and around the shared embedding and head," if any(not site.inside for site in sites) else ","
    text = (
        f"tp = {ranks}: the recording is of one rank a layer and shows no exchange inside it; assumed are sums of the residual stream"
        f" ({tokens * shown.hidden / 1e6:,.1f} MB) twice in a layer's forward pass and twice in its backward pass{outside}"
        f" over the links of {cluster.name}"
    )
    times = {site.task: _time(site, stream, logits) for site in sites}
    return replace(
        after,
        factor=columns[0],
        low=columns[1],
        high=columns[2],
        assumed=(*after.assumed, partial(_exchanges, times, len(after.segmentation.graph))),
        diagnostics=(*after.diagnostics, Diagnostic("split-assumed", text)),
    )


def _has_two_tables(layout: MeasuredLayout, position: int, trace: Trace, shown: Sizes) -> bool:
    """Whether embedding and head have a table each, as far as the gradients show. Of a single one for both (tied), PyTorch's
    `parallelize_module` would give each of the two modules a parameter of its own, so its plans leave it whole."""
    table = (shown.vocab, shown.hidden)
    return [gradient.shape for gradient in gradients(layout.segmentation, position, trace)].count(table) != 1


class _Site(NamedTuple):
    """Where ranks exchange: after a task. most: the most exchanges that a framework makes there. gathers: whether the head's result."""

    task: int
    inside: bool
    most: int = 1
    gathers: bool = False


def _time(site: _Site, stream: AddedTimes, logits: AddedTimes) -> AddedTimes:
    """What the exchange takes. Outside the layers there may be none."""
    time = logits if site.gathers else stream
    return AddedTimes(time.best, time.low if site.inside else 0, time.high * site.most)


def _share(
    columns: Sequence[Factors],
    before: MeasuredLayout,
    places: Sequence[_Place],
    shown: Sizes,
    could: int,
    accelerator: Accelerator | None,
    ranks: int,
) -> dict[str, list[int]]:
    """Multiply the factors of the multiplications that sizes did not tell to be a part, in place: those of square weights, and those of
    embedding and head and of no width that ranks share (the narrow projections of latent attention), which some plans leave whole. could:
    the vocabulary that ranks could share; where `shown` has none, embedding and head stay whole, and only their low ends are of a part.
    Returns the rows of those that are cut, by the dimension of `Product` of which every rank has a part."""
    cut: dict[str, list[int]] = defaultdict(list)
    shared = {n * shown.head_dim for n in (shown.heads, shown.kv_heads, shown.heads + 2 * shown.kv_heads)} | {shown.ffn, 2 * shown.ffn}
    for place in places:
        m, n, k, batch = place.sizes
        task, of_vocabulary = place.task, could > 0 and could in (m, n, k) and not place.inside
        if batch > 1 or not (place.inside or of_vocabulary) or columns[0][task] != before.factor[task]:
            continue
        dimension = "k" if of_vocabulary and k == could else "m" if m == could else "n"
        part = place.sizes._replace(**{dimension: getattr(place.sizes, dimension) // ranks})[:3]
        factor = 1 / ranks
        if accelerator is not None:
            old, new = (gemm(*each, accelerator, place.dtype, cast=False) for each in ((m, n, k), part))
            factor = int(new.time) / max(int(old.time), 1)
        columns[1][task] *= factor / (1 + CPU_INTERVAL)
        if of_vocabulary and not shown.vocab:
            continue
        columns[0][task] *= factor
        cut[dimension].append(place.row)
        sure = not of_vocabulary and not shared.isdisjoint(place.sizes)
        columns[2][task] *= min(factor * (1 + CPU_INTERVAL), 1.0) if sure else 1.0
    return cut


def _cut(dimension: str, ranks: int, _: ShapedOperator, o: ShapedOperator) -> ShapedOperator:
    """A rank's part of a multiplication, of which the ranks share a dimension of `Product`."""
    found, whole = factors(o), product(o)
    if found is None or whole is None:
        return o
    part = whole._replace(**{dimension: getattr(whole, dimension) // ranks})
    out = list(o.shapes)
    rows = (part.m,) if len(out[found.first]) == 2 else out[found.first][:-1]
    out[found.first] = (*rows, part.k)
    out[found.second] = (part.n, part.k) if found.transposed else (part.k, part.n)
    return o._replace(shapes=tuple(out))


def _share_updates(columns: Sequence[Factors], before: MeasuredLayout, position: int, trace: Trace, ranks: int, *, outside: bool) -> None:
    """Let the optimizer's work be that on a rank's part of all weights, in place; at most, on a part of those of the layers. outside:
    whether ranks share the weights outside the layers."""
    segmentation = before.segmentation
    mine = np.array([p.rank == position and p.label.phase == Phase.OPTIMIZER for p in segmentation.pieces], bool)[segmentation.piece]
    tasks = np.flatnonzero(mine & np.isin(segmentation.graph.kind, (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)))
    by_layer = weights(segmentation, position, trace)
    inner, outer = sum(n for layer, n in by_layer.items() if layer >= 0), by_layer.get(-1, 0)
    whole = (inner / ranks + outer) / (inner + outer) if inner else 1.0
    best = 1 / ranks if outside else whole
    for column, was, share in zip(columns, (before.factor, before.low, before.high), (best, 1 / ranks, whole), strict=True):
        column[tasks] = was[tasks] * share


def stream_bytes(trace: Trace) -> int:
    """Bytes of what runs through the layers of a microbatch: the residual stream of a model for sequences, else what most multiplications
    and convolutions read; 0 where the trace does not say."""
    shown, shapes, found = sizes(trace), shapes_of(trace), Counter[int]()
    for o, times in shapes.counted():
        if o.shapes and ("linear" in o.name or "conv" in o.name) and "backward" not in o.name:
            found[elements(o.shapes[0])] += times
    usual = found.most_common(1)[0][0] if found else 0
    return (shown.micro_batch * shown.seq * shown.hidden or usual) * stream_width(trace)


def stream_width(trace: Trace) -> int:
    """Bytes of one value of the residual stream: of the type that most multiplications read; 4 where the trace does not say."""
    shapes, found = shapes_of(trace), Counter[str]()
    for o, times in shapes.counted(shapes.own):
        places = factors(o)
        if places is not None and places.first < len(o.dtypes):
            found[o.dtypes[places.first]] += times
    dtype = DType.parse(found.most_common(1)[0][0]) if found else None
    return (dtype or DType.FP32).bytes


def _exchanges(times: Mapping[int, AddedTimes], recorded: int, placed: Placed) -> Iterator[Addition]:
    """An exchange after every copy of the tasks in `times`. recorded: the number of measured tasks; where ranks were copied, those of each
    copy follow those of the one before (`multiplied`)."""
    following = next_on_processor(placed)
    rank = placed.graph.position_of_task
    source = np.where(placed.source >= 0, placed.source % max(recorded, 1), -1)
    for task in np.flatnonzero(np.isin(source, np.array(sorted(times), np.int64))).tolist():
        waiting = (int(following[task]),) if following[task] >= 0 else ()
        yield Addition(_NAME, int(rank[task]), _LANE, times[int(source[task])], (task,), waiting, int(placed.instance[task]))


def _sites(places: Sequence[_Place], shown: Sizes) -> Iterator[_Site]:
    """Where the ranks exchange."""
    of_piece: dict[int, list[_Place]] = defaultdict(list)
    for place in places:
        m, n, k, batch = place.sizes
        if m * batch != shown.micro_batch * shown.seq:
            continue
        if place.inside and n == shown.hidden:
            of_piece[place.piece].append(place)
        elif not place.inside and (n, k) == (shown.vocab, shown.hidden):
            yield _Site(place.task, inside=False, gathers=True)
        elif not place.inside and (n, k) == (shown.hidden, shown.vocab):
            yield _Site(place.task, inside=False)
    for found in of_piece.values():
        inner = [p for p in found if p.sizes.k in (shown.ffn, 2 * shown.ffn)]
        attended = [p for p in found if p not in inner]
        if found[0].label.phase == Phase.BACKWARD:
            # the gradient of what attention gives has the output projection's shape, and comes first
            halves = [(inner, len(inner)), (attended, max(len(attended) - 1, 1))]
        else:
            halves = [([p for p in inner if p.sizes.k == shown.ffn], 1), (attended, 1)]
        yield from (_Site(half[-1].task, True, most) for half, most in halves if half)


def _multiplications(layout: MeasuredLayout, position: int, trace: Trace) -> list[_Place]:
    """The multiplications in the passes of a rank, in order."""
    segmentation, shapes = layout.segmentation, shapes_of(trace)
    tasks, rows = operator_rows(segmentation, position, trace)
    known = [(o, product(o)) for o in shapes.operators]
    out = []
    for task, row in sorted(zip(tasks.tolist(), rows.tolist(), strict=True)):
        o, found = known[shapes.of_row[row]] if shapes.of_row[row] >= 0 else (None, None)
        piece = int(segmentation.piece[task])
        label = segmentation.pieces[piece].label
        if o is None or found is None or label.phase not in (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE):
            continue
        dtype = DType.parse(next((d for d in o.dtypes if d), "")) or DType.BF16
        out.append(_Place(task, row, found, label, piece, dtype))
    return out
