"""What the axes of a recorded model are called: its batch, sequence, width, heads, feed-forward width, vocabulary.

A size is an axis that stands in a certain place, never a number that occurs often: attention says which axes are the sequence, the heads
and their width; the table of tokens its vocabulary and the model's width; the weights which widths a layer has inside.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from lumos.operators.symbols import Axis
from lumos.operators.table import axis_rule, own_name, views
from lumos.segment.program import axes_of
from lumos.trace.once import once_a_trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumos.operators.calls import OperatorCall
    from lumos.operators.inference import Axes
    from lumos.trace.table import Trace


Named = dict[str, tuple[Axis, ...]]

#: How many calls are kept that show what a name means.
_FIRST_CALLS = 32
#: The axes that a name can mean together, each of them with calls of the program that show it.
Meanings = dict[tuple[Axis, ...], tuple[int, ...]]


@once_a_trace
def names(trace: Trace) -> Names:
    """The names of the axes of a trace."""
    axes = axes_of(trace)
    return Names(axes.inferred, axes.program.calls)


@once_a_trace
def named_axes(trace: Trace) -> Named:
    """The axes that have a name; several where the model has the same size in places that nothing joins. What a user stated of the
    recording goes before what was found."""
    return names(trace).named | dict(trace.stated)


class Names:
    """The names of the axes that were inferred of a program's calls."""

    def __init__(self, axes: Axes, calls: Sequence[OperatorCall]) -> None:
        self.given, self.symbols, self.calls, self.of = axes.given, axes.symbols, calls, axes.of
        self.key = self.symbols.key
        self.batches: tuple[Axis, ...] = ()
        self.inner: tuple[Axis, ...] = ()
        self.of_heads: set[tuple[int, ...]] = set()

    @cached_property
    def named(self) -> Named:
        """The axes that have a name, without what a user states."""
        out: Named = {}
        tokens, table = self._tokens()
        attention = self._attention()
        for name, letter in (("micro_batch", "b"), ("seq", "q"), ("heads", "h"), ("kv_heads", "g"), ("head_dim", "d")):
            commonest = self._most(attention[letter])
            if commonest is not None:
                alike = (axis for axis in attention[letter] if letter in "hgd" and self.symbols.size(axis) == self.symbols.size(commonest))
                out[name] = tuple({self.key(axis): axis for axis in (commonest, *alike)}.values())
        if len(self.positions) == 1 and "seq" in out:
            (out["seq"],) = self.positions
        self.of_heads = {self.symbols.folded(axis).symbols for letter in "hgd" for axis in attention[letter]}
        if tokens is not None:
            self._by_tokens(tokens, out, attention)
        if "micro_batch" not in out:
            batch = self._recurrent("b") or next(iter(self._leading_axes()), None)
            out |= {"micro_batch": (batch,)} if batch is not None else {}
        if "seq" not in out and (steps := self._recurrent("t")) is not None:
            out["seq"] = (steps,)
        weights = list(self._matrices())
        counted = Counter(self.symbols.folded(axis) for pair in weights for axis in {self.key(a): a for a in pair}.values())
        hidden = table[1] if table is not None and not self._is_wide(table, weights) else self._most_shared(counted, len(weights))
        if hidden is not None:
            out["hidden"] = (hidden,)
            self._inside(hidden, weights, out)
            self._vocabulary(table, hidden, weights, out)
        elif table is None and (passed := self._passed_on(counted)):
            out["hidden"] = passed
        if "micro_batch" in out:
            out["micro_batch"] += self._beside(out["micro_batch"][0], out)
        return {name: axes for name, axes in out.items() if self._is_size(name, axes[0])}

    def _beside(self, batch: Axis, named: Named) -> tuple[Axis, ...]:
        """The leading axes of other data that are as long as the batch and that nothing joins to a size: what a step reads beside it."""
        inside = self.symbols.inside
        known = {s for axes in named.values() for axis in axes for s in inside(axis)}
        known |= {s for given in self.given if given.weight for axis in given.axes for s in inside(axis)}
        data = (given.axes[0] for given in self.given if not given.weight and len(given.axes) > 1)
        size = self.symbols.size(batch)
        free = {self.key(axis): axis for axis in data if self.symbols.size(axis) == size > 1 and inside(axis) and not inside(axis) & known}
        return tuple(free.values())

    def _is_size(self, name: str, axis: Axis) -> bool:
        """Whether an axis is a size, and not merely left out: a sequence of one position, or a width of one, is none."""
        return self.symbols.size(axis) > 1 or name in ("micro_batch", "heads", "kv_heads")

    # ------------------------------------------------------------ places

    def _forward(self) -> Iterator[tuple[int, OperatorCall, str]]:
        for number, call in enumerate(self.calls):
            base = own_name(call.name)
            if "backward" not in base and call.shapes:
                yield number, call, base

    def _tokens(self) -> tuple[tuple[Axis, ...] | None, tuple[Axis, Axis] | None]:
        """The axes of the tokens that the largest table is read by, and those of that table, [rows, width]."""
        best: tuple[int, tuple[Axis, ...], tuple[Axis, ...]] | None = None
        for number, call, base in self._forward():
            if base == "embedding" and (number, 0) in self.of and (number, 1) in self.of:
                table, index = self.of[number, 0][0], self.of[number, 1][0]
                if len(table) == 2 and len(index) in (1, 2) and (best is None or call.shapes[0][0] > best[0]):
                    best = call.shapes[0][0], index, table
        return (None, None) if best is None else (best[1] if len(best[1]) == 2 else None, (best[2][0], best[2][1]))

    def _attention(self) -> dict[str, Counter[Axis]]:
        """How often each axis is the batch (b), the queries' positions (q), heads of queries (h) and keys (g), or their width (d)."""
        out: dict[str, Counter[Axis]] = {letter: Counter() for letter in "bqhgd"}
        for number, call, _ in self._forward():
            if all((number, i) in self.of for i in range(3)):
                queries, keys = (self._letters(number, call, i) for i in (0, 1))
                for letter, axis in [*((letter, queries.get(letter)) for letter in "bqhd"), ("g", keys.get("h"))]:
                    if axis is not None:
                        out[letter][self.symbols.folded(axis)] += 1
        of_keys: Counter[Axis] = Counter()
        for axis, times in out["g"].items():
            of_keys[self.symbols.once(axis)] += times
        return out | {"g": of_keys}

    def _letters(self, number: int, call: OperatorCall, argument: int) -> dict[str, Axis]:
        """The axes of an input of attention, by their letters in the table of operators; none of anything else."""
        rule, axes = axis_rule(own_name(call.name), call.shapes), self.of.get((number, argument), ((),))[0]
        pattern = rule.inputs[argument] if rule is not None and len(rule.inputs) > 2 and "attention" in call.name else None
        return dict(zip(pattern.letters(len(axes)), axes, strict=True)) if pattern is not None and axes and pattern.fits(len(axes)) else {}

    def _by_tokens(self, tokens: tuple[Axis, ...], out: Named, attention: Mapping[str, Counter[Axis]]) -> None:
        """Which axis of the tokens is the batch and which the sequence: by attention, else by the scores, else the batch comes first."""
        keys = [self.key(axis) for axis in tokens]
        length = next((axis for axis, _ in attention["q"].most_common() if self.key(axis) in keys), None)
        scores = self._scores(keys) if length is None else None
        length = length or (scores[-1] if scores else None)
        if length is None and "seq" in out:
            return
        at = keys.index(self.key(length)) if length is not None else 1
        if at == 1 and length is None and (steps := self._recurrent("t")) is not None and self.key(steps) == keys[0]:
            at = 0
        out["seq"], out["micro_batch"] = (tokens[at],), (tokens[1 - at],)
        if scores and "heads" not in out:
            heads = self._others(scores[:-2], tokens[1 - at])
            width = self._width_of_heads(tokens[at])
            out |= {"heads": (heads,), "kv_heads": (heads,)} if heads is not None else {}
            out |= {"head_dim": (width,)} if width is not None else {}
        self.of_heads |= {self.symbols.folded(out[name][0]).symbols for name in ("heads", "kv_heads", "head_dim") if name in out}

    @cached_property
    def meanings(self) -> dict[str, Meanings]:
        """What each name can mean. A sequence may be the positions of data that attention relates to each other, or the steps of a
        recurrent layer; a batch any leading axis of data without tokens and attention; a feed-forward width any width that two matrices
        lead into and out of."""
        named = self.named
        out: dict[str, Meanings] = {name: {axes: self._shown_by(axes)} for name, axes in named.items()}
        if len(self.positions) > 1 or "seq" not in named:
            out |= {"seq": self.positions} if self.positions else {}
        if named.get("micro_batch", ())[:1] == self.batches[:1] and len(self.batches) > 1:
            out["micro_batch"] = {(axis,): self._shown_by((axis,)) for axis in self.batches}
        sizes = dict.fromkeys(map(self.symbols.size, self.inner))
        inner = [tuple(axis for axis in self.inner if self.symbols.size(axis) == size) for size in sizes]
        return out | ({"ffn": {axes: self._shown_by(axes) for axes in inner}} if len(inner) > 1 else {})

    def _shown_by(self, axes: tuple[Axis, ...]) -> tuple[int, ...]:
        """The first calls of the forward pass of which an input has one of the axes."""
        keys = {self.key(axis) for axis in axes}
        having = (
            number
            for number, call, _ in self._forward()
            if any(
                self.key(axis) in keys for argument in range(len(call.inputs)) for of in self.of.get((number, argument), ()) for axis in of
            )
        )
        return tuple(islice(having, _FIRST_CALLS))

    @cached_property
    def positions(self) -> Meanings:
        """The axes along which a sequence may lie: but those of what the model holds, where there are others."""
        axes: dict[tuple[int, tuple[int, ...]], Axis] = {}
        shown: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for number, several in self._places():
            for axis in several:
                if self.symbols.size(axis) > 1:
                    axes.setdefault(self.key(axis), self.symbols.folded(axis))
                    shown.setdefault(self.key(axis), []).append(number)
        data = {s for given in self.given if not given.weight for axis in given.axes for s in self.symbols.inside(axis)}
        held = {s for given in self.given if given.weight and len(given.axes) > 1 for a in given.axes for s in self.symbols.inside(a)}
        inside = {key: self.symbols.inside(axes[key]) for key in shown}
        of_data = [key for key in shown if inside[key] & data or not inside[key] & held]
        return {(axes[key],): tuple(dict.fromkeys(shown[key])) for key in of_data or shown}

    def _places(self) -> Iterator[tuple[int, tuple[Axis, ...]]]:
        """The axes of attention, of scores and of recurrent layers that are positions, by call."""
        for number, call, base in self._forward():
            queries, keys = (self._letters(number, call, i) for i in (0, 1))
            if queries or keys:
                if call.parent < 0 or "attention" not in self.calls[call.parent].name:
                    yield number, tuple(of[letter] for of, letter in ((queries, "q"), (keys, "k")) if letter in of)
            elif "softmax" in base and len(call.shapes[0]) == 4 and (number, 0) in self.of:
                yield number, self.of[number, 0][0][-2:]
            elif views().get(base) == "recurrent" and len(call.shapes[0]) == 3 and (steps := self._recurrent("t")) is not None:
                yield number, (steps,)

    def _scores(self, tokens: list[tuple[int, tuple[int, ...]]]) -> tuple[Axis, ...] | None:
        """The axes of what a softmax over positions of the sequence works on."""
        for number, call, base in self._forward():
            if "softmax" in base and len(call.shapes[0]) in (3, 4) and (number, 0) in self.of:
                axes = self.of[number, 0][0]
                if self.key(axes[-1]) == self.key(axes[-2]) and self.key(axes[-1]) in tokens:
                    return axes
        return None

    def _others(self, axes: tuple[Axis, ...], batch: Axis) -> Axis | None:
        """What is left of axes without the batch."""
        whole, gone = self.symbols.folded(self.symbols.product(*axes)), self.symbols.folded(batch)
        left = tuple(s for s in whole.symbols if s not in gone.symbols)
        inside = set(gone.symbols) <= set(whole.symbols) and whole.factor % gone.factor == 0
        return Axis(whole.factor // gone.factor, left) if left and inside else None

    def _width_of_heads(self, length: Axis) -> Axis | None:
        """The width of the heads, by which scores are multiplied: [positions, width] by [width, positions]."""
        for number, call, base in self._forward():
            if base in ("bmm", "baddbmm", "matmul") and len(call.shapes[0]) > 2 and (number, 0) in self.of and (number, 1) in self.of:
                a, b = self.of[number, 0][0], self.of[number, 1][0]
                if self.key(a[-2]) == self.key(b[-1]) == self.key(length):
                    return a[-1]
        return None

    def _recurrent(self, letter: str) -> Axis | None:
        """The steps (t) or the batch (b) of a recurrent layer."""
        for number, call, base in self._forward():
            if views().get(base) == "recurrent" and len(call.shapes[0]) == 3 and (number, 0) in self.of:
                axes = self.of[number, 0][0]
                state = [shape for several in call.inputs[1:] for shape in several if len(shape) == 3]
                batch = 0 if state and state[0][1] == call.shapes[0][0] != call.shapes[0][1] else 1
                return axes[batch if letter == "b" else 1 - batch]
        return None

    def _leading_axes(self) -> tuple[Axis, ...]:
        """The axes that may be the batch in the first data that layers with weights read: all but the features; of pictures the first."""
        free = {s for given in self.given if not given.weight for axis in given.axes[:1] for s in self.symbols.inside(axis)}
        for number, call, base in self._forward():
            layer = base in ("linear", "addmm", "mm", "mkldnn_linear") or "conv" in base
            if layer and call.shapes:
                argument = 1 if base == "addmm" else 0
                axes = self.of.get((number, argument), ((),))[0]
                own = [s for axis in (axes[:-1] if "conv" not in base else axes[:1]) for s in self.symbols.folded(axis).symbols]
                if any(s in free for s in own):
                    first = next(i for i, s in enumerate(own) if s in free)
                    self.batches = tuple(Axis(1, (s,)) for s in dict.fromkeys(own[first:]) if self.symbols.size(Axis(1, (s,))) > 1)
                    return self.batches or (Axis(1, (own[first],)),)
        return ()

    # ------------------------------------------------------------ widths

    def _matrices(self) -> Iterator[tuple[Axis, Axis]]:
        """The two widths of every weight of a layer, as [out, in] or [in, out]; tables are none."""
        for given in self.given:
            if given.weight and len(given.axes) in (2, 3) and own_name(self.calls[given.call].name) not in ("embedding", "embedding_bag"):
                yield given.axes[-2], given.axes[-1]

    def _is_wide(self, table: tuple[Axis, Axis], weights: list[tuple[Axis, Axis]]) -> bool:
        """Whether a table's width is that of no layer, so that it holds features and no tokens."""
        return bool(weights) and not any(self.key(table[1]) in map(self.key, pair) for pair in weights)

    def _most_shared(self, counted: Counter[Axis], number: int) -> Axis | None:
        """The width that more weights than any other have on one side, and at least half of them, of that number."""
        widths = counted.most_common(2)
        return widths[0][0] if widths and widths[0][1] >= max(2, number / 2) and (len(widths) < 2 or widths[1][1] < widths[0][1]) else None

    def _passed_on(self, counted: Counter[Axis]) -> tuple[Axis, ...]:
        """Of layers one after the other the widths that one passes on to the next, where most of these are of one size."""
        sizes = Counter(self.symbols.size(axis) for axis, several in counted.items() if several > 1)
        commonest = sizes.most_common(2)
        if not commonest or (len(commonest) > 1 and commonest[1][1] == commonest[0][1]):
            return ()
        return tuple(axis for axis, several in counted.items() if several > 1 and self.symbols.size(axis) == commonest[0][0])

    def _inside(self, hidden: Axis, weights: list[tuple[Axis, Axis]], out: Named) -> None:
        """The widths inside a layer: of the feed-forward part, which two matrices lead into and out of, and of keys and values."""
        wide = self.symbols.size(hidden)  # an encoder and a decoder are as wide, each with a width of its own
        others = [(pair[1 - side], side) for pair in weights for side in (0, 1) if self.symbols.size(pair[side]) == wide]
        widths = Counter(self.symbols.folded(other) for other, _ in others if self.key(other) != self.key(hidden))
        into, out_of = ({self.symbols.folded(other).symbols for other, at in others if at == side} for side in (0, 1))
        both = into & out_of  # a gate makes the width inside so many times as wide on one side
        inner = [axis for axis, _ in widths.most_common() if axis.symbols in both and not self._of_heads(axis)]
        inner.sort(key=lambda axis: (self.symbols.size(axis) == wide, axis.factor))
        self.inner = tuple(inner)
        if inner:
            size = self.symbols.size(inner[0])
            out["ffn"] = tuple(axis for axis in inner if self.symbols.size(axis) == size)
        width = out.get("head_dim")
        if width is not None and "heads" in out and self.key(out.get("kv_heads", out["heads"])[0]) == self.key(out["heads"][0]):
            narrow = [axis for axis in widths if self._of_heads(axis)]
            rest = [self._others((axis,), width[0]) for axis in narrow]
            fewer = [axis for axis in rest if axis is not None and self.symbols.size(out["heads"][0]) % self.symbols.size(axis) == 0]
            if fewer:
                out["kv_heads"] = (fewer[0],)

    def _of_heads(self, axis: Axis) -> bool:
        """Whether an axis is so many heads of any attention, of any width, or so many times the width of one."""
        own = set(self.symbols.folded(axis).symbols)
        return any(part and set(part) <= own for part in self.of_heads)

    def _vocabulary(self, table: tuple[Axis, Axis] | None, hidden: Axis, weights: list[tuple[Axis, Axis]], out: Named) -> None:
        """The rows of the table of tokens, and the results of the head: that of which the loss is computed, or that has as many."""
        losses = ("nll_loss_forward", "cross_entropy_loss", "nll_loss_nd", "nll_loss")
        scored = [number for number, call, base in self._forward() if base in losses and len(call.shapes[0]) == 2]
        classes = [self.of[number, 0][0][1] for number in scored if (number, 0) in self.of]
        inside = {self.key(axis) for of in out.values() for axis in of}
        heads = [a if self.key(b) == self.key(hidden) else b for a, b in weights if self.key(hidden) in (self.key(a), self.key(b))]
        heads = [axis for axis in heads if self.key(axis) not in inside]
        rows = [table[0], *heads] if table is not None else [axis for axis in classes if self.key(axis) in map(self.key, heads)]
        rows += classes if table is not None else []
        vocabulary = {self.key(axis): axis for axis in rows if self.symbols.size(axis) == self.symbols.size(rows[0])}
        if vocabulary:
            out["vocab"] = tuple(vocabulary.values())

    def _most(self, counted: Counter[Axis]) -> Axis | None:
        return counted.most_common(1)[0][0] if counted else None
