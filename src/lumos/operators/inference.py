"""What the axes of the operators of one recording have in common.

A recording says which shapes every operator was called with, and neither which tensors they were nor what came out. So the program is
run again on axes alone: each operator takes tensors that earlier ones made, the table of operators says what it makes of their axes and
which of them must be equal, and tensors that nothing made have axes of their own. A tensor is recognised by its whole shape:

- inside an operator that calls others, among its inputs and what they have made;
- in the node of a backward pass, among what autograd kept for it: the inputs and results of the operator that it belongs to, by its
  sequence number, and the gradients of those results;
- else among the tensors that are still to be used. A differentiable tensor is used once for every gradient that comes back to it, and a
  backward pass shows where several were added up.

Where several tensors have one shape, those are taken whose axes need nothing new to be equal. Operators at the same place of repeated
stretches of the program have the same axes. Nothing is taken as equal because its size is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from lumos.operators.calls import BACKWARD_NODE, GATHERS, nodes_around, nodes_of, run_again, same_places, to_be_undone, whole_of_parts
from lumos.operators.symbols import Axis, Symbols
from lumos.operators.table import OperatorKind, axis_rule, elementwise_names, forced, kind_of, own_name, views, weights_of
from lumos.operators.views import HOW, CallArguments, Sized, seen_as
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lumos.operators.calls import OperatorCall
    from lumos.operators.table import AxisPlace, Rule, Shape

#: Of how many tensors of one shape, the latest, an operator's input may be any.
_CHOICE = 6
#: How many operators ago a tensor with one axis may have been made to be recognised by it: its shape is only a number.
_JUST_NOW = 6
#: How many operators ago another one may have selected, by values, what an input is.
_SOON = 12
#: What a checkpoint that keeps some results keeps those of.
_KEPT_RESULTS = (OperatorKind.MULTIPLICATION, OperatorKind.ATTENTION, OperatorKind.CONVOLUTION)


@dataclass(eq=False, slots=True)
class _Tensor:
    """A tensor of the program. made: when. maker: as in `Axes.makers`. given: it comes from outside, as data or a weight.
    data: it is data, or was made of data. undoing: a node of the
    backward pass made it. whole: the shape of the tensor that ranks share and that it is a part of, () if unknown. used: a
    call has taken it. strides: how far apart the neighbours along its axes lie, () if unknown."""

    shape: Shape
    axes: tuple[Axis, ...]
    made: int
    differentiable: bool = False
    given: bool = False
    gradient: bool = False
    alive: bool = True
    data: bool = False
    undoing: bool = False
    maker: int = -1
    whole: Shape = ()
    used: bool = False
    strides: Shape = ()

    def lies(self, strides: Shape) -> bool:
        """Whether its neighbours may lie so far apart; () for strides that no row says. What an operator computed stands nowhere twice."""
        known = zip(self.shape, strides, self.strides or strides, strict=False)
        return not strides or all(a == b and (a or self.strides) for size, a, b in known if size > 1)

    def part_of(self, whole: Shape) -> bool:
        """Whether it may be a part of a tensor of that shape; () for none that is known."""
        return not (whole and self.whole) or whole == self.whole


@dataclass(eq=False, slots=True)
class _Scope:
    """The tensors among which the calls inside an operator, or inside a node of the backward pass, find their inputs. passed: those that
    were handed in and that none of the calls has used yet. kept: autograd kept them, so that the forward pass has used them all."""

    tensors: list[_Tensor]
    passed: set[int] = field(default_factory=set)
    kept: bool = False


@dataclass(eq=False, slots=True)
class _Product:
    """The two gradients of a multiplication [m, k] · [k, n] that a node of the backward pass computes. behind: the last call of a forward
    pass that the node runs again before."""

    first: tuple[Axis, ...]
    second: tuple[Axis, ...]
    first_comes_first: bool
    behind: int
    done: set[int] = field(default_factory=set)


class Given(NamedTuple):
    """A tensor that no operator made. call, place: of its first use."""

    axes: tuple[Axis, ...]
    call: int
    place: int
    weight: bool


class Axes(NamedTuple):
    """What was inferred. of: by call and argument, the axes of each tensor in it. given: the tensors that come from outside. makers: by
    call and for each tensor that it takes, in their order, the call that made it, or `given_number` of what came from outside. forward: by
    autograd's number of a node of the backward pass the call that it undoes."""

    symbols: Symbols
    of: Mapping[tuple[int, int], tuple[tuple[Axis, ...], ...]]
    given: tuple[Given, ...]
    makers: Mapping[int, tuple[int, ...]]
    forward: Mapping[int, int]


def given_number(position: int) -> int:
    """What stands in place of a tensor's maker for the one at a position of `Axes.given`; its own inverse. -1 is of no tensor there."""
    return -2 - position


def infer(calls: Sequence[OperatorCall]) -> Axes:
    """The axes of a program's operators. calls: in order, each behind the one that it is in."""
    inference = _Inference(calls)
    for number, call in enumerate(calls):
        if call.parent < 0:
            inference.visit(number)
    return Axes(inference.symbols, inference.axes, tuple(inference.given), inference.makers, inference.forward)


class _Inference:
    def __init__(self, calls: Sequence[OperatorCall]) -> None:
        self.calls = calls
        self.symbols = Symbols()
        self.axes: dict[tuple[int, int], tuple[tuple[Axis, ...], ...]] = {}
        self.given: list[Given] = []
        self.makers: dict[int, tuple[int, ...]] = {}
        self._inside: list[list[int]] = [[] for _ in calls]
        for number, call in enumerate(calls):
            if call.parent >= 0:
                self._inside[call.parent].append(number)
        self._pool: dict[Shape, list[_Tensor]] = defaultdict(list)
        self._weights: dict[Shape, list[_Tensor]] = defaultdict(list)
        self._scopes: list[_Scope] = []
        self._product: _Product | None = None
        self._results: dict[int, list[_Tensor]] = {}
        self._used: dict[int, list[_Tensor]] = {}
        self._unseen: list[_Tensor] = []
        self._selected: list[tuple[_Tensor, int]] = []
        self._valued = any(any(call.values) for call in calls)
        self._clock = 0
        self._added, self._node_of, self.forward = nodes_of(calls)
        self._of_weights = {call.shapes[0] for call in calls if call.name.startswith(GATHERS) and call.shapes and call.shapes[0]}
        self._around = nodes_around(calls)
        self._undone = to_be_undone(calls, self._around, self._node_of)
        self._alike = same_places(calls, self._around)
        self._whole = whole_of_parts(calls)
        self._of_pass = run_again(calls, self._around)

    # ------------------------------------------------------------ the program

    def visit(self, number: int) -> None:
        """Run one call, and those inside it."""
        self._clock += 1
        call = self.calls[number]
        if call.name.startswith(BACKWARD_NODE):
            self._visit_node(number)
        elif number in self._whole:
            self._visit_whole(number)
        elif not self._gradient_of_product(number):
            self._visit_call(number)

    def _visit_node(self, number: int) -> None:
        """Run a node of the backward pass among what autograd kept for it."""
        forward = self.forward.get(self.calls[number].sequence, -1)
        kept = self._scopes, self._product
        used, results = self._used.get(forward, []), self._results.get(forward, [])
        scope = _Scope([*used, *results], {id(t) for t in (*used, *results)}, kept=True)
        self._scopes, self._product = [scope], self._product_of(number, forward, used)
        for inner in self._inside[number]:
            call = self.calls[inner]
            own = "Backward" in call.name and not call.name.startswith("aten::")
            if not own or not results:
                self._scopes = [scope] if own or call.name.startswith("aten::") else []  # what a library's hook does is no gradient
                self.visit(inner)
                self._scopes = [scope]
                continue
            for argument, shape in enumerate(call.shapes):
                like = next((t for t in (*results, *used) if t.shape == shape), None) if shape else None
                if like is not None:
                    gradient = _Tensor(shape, like.axes, self._clock, gradient=True, strides=call.strides_of(argument))
                    self.axes[inner, argument] = (like.axes,)
                    scope.tensors.append(gradient)
                    self._pool[shape].append(gradient)
            for innermost in self._inside[inner]:
                self.visit(innermost)
        self._scopes, self._product = kept

    def _product_of(self, node: int, forward: int, used: Sequence[_Tensor]) -> _Product | None:
        name = own_name(self.calls[forward].name) if forward >= 0 else ""
        factors = [t for t in used if len(t.shape) > 1][-2:]
        if name not in ("mm", "addmm", "bmm", "baddbmm", "linear") or len(factors) != 2:
            return None
        first, second = (t.axes for t in factors)
        if name == "linear":
            first, second = (self.symbols.product(*first[:-1]), first[-1]), second[::-1]
        behind = max(filter(self._again, self._within(node)), default=-1)
        products = [n for n in self._within(node) if n > behind and own_name(self.calls[n].name) in ("mm", "bmm")]
        missing = {int(factors[0].differentiable)} if len(products) == 1 else set()  # data, or a weight that is not trained
        return _Product(first, second, name not in ("mm", "linear"), behind, missing)

    def _within(self, number: int) -> Iterator[int]:
        """The calls in a call."""
        for inner in self._inside[number]:
            yield inner
            yield from self._within(inner)

    def _again(self, number: int) -> bool:
        """Whether a call in a node of the backward pass is one of a forward pass."""
        return self.calls[number].forward and self.calls[number].sequence >= 0

    def _gradient_of_product(self, number: int) -> bool:
        """Read a multiplication in the backward pass of another as one of the two gradients, or its transpose, if its shapes are those."""
        call, of = self.calls[number], self._product
        if of is None or number <= of.behind or own_name(call.name) not in ("mm", "bmm") or len(call.shapes) < 2:
            return False
        (m, k), n, lead = of.first[-2:], of.second[-1], of.first[:-2]
        forms = [(1, (n, m, k)), (0, (m, n, k)), (1, (k, m, n)), (0, (k, n, m))]
        if of.first_comes_first:
            forms.sort(key=lambda form: form[0])
        a, b = call.shapes[:2]
        for gradient, (rows, depth, columns) in forms:
            sizes = [self.symbols.size(axis) for axis in (rows, depth, columns)]
            if gradient not in of.done and [*a[-2:], b[-1]] == sizes and b[-2] == sizes[1]:
                of.done.add(gradient)
                self.axes[number, 0], self.axes[number, 1] = ((*lead, rows, depth),), ((*lead, depth, columns),)
                made = _Tensor((*a[:-1], b[-1]), (*lead, rows, columns), self._clock)
                self._keep(number, [], [made])
                return True
        return False

    def _visit_whole(self, number: int) -> None:
        """Run the parts of an operator on tensors that ranks share: the inner rows work on this rank's parts and are the program."""
        around = self._scopes[-1].tensors if self._scopes else []
        before = len(around)
        for inner in self._inside[number]:
            self.visit(inner)
        ran = [inner for inner in self._inside[number] if self._results.get(inner)]
        same = [inner for inner in ran if own_name(self.calls[inner].name) == own_name(self.calls[number].name)] or ran
        self._results[number], self._used[number] = (self._results[same[-1]], self._used[same[-1]]) if same else ([], [])
        whole = {argument: _Tensor(shape, tuple(map(Axis, shape)), 0) for argument, shape in enumerate(self.calls[number].shapes) if shape}
        for part, of in zip(self._results[number], self._results_of(self.calls[number], whole, {}) or (), strict=False):
            part.whole = of.shape
        around[before:] = [t for t in around[before:] if any(t is result for result in self._results[number])]
        self._use_up(number)

    def _visit_call(self, number: int) -> None:
        call = self.calls[number]
        tensors = self._bound(number)
        lists = {argument: self._listed(number, argument) for argument in call.lists}
        for argument, tensor in tensors.items():
            self.axes[number, argument] = (tensor.axes,)
        for argument, several in lists.items():
            self.axes[number, argument] = tuple(t.axes for t in several)
        used = [t for argument in sorted({*tensors, *lists}) for t in (lists[argument] if argument in lists else (tensors[argument],))]
        for alike in self._alike[number]:
            self._same_place(alike, tensors)
        results = self._results_of(call, tensors, lists)
        if views().get(own_name(call.name)) == "recurrent" and 0 in tensors:
            results = self._recurrent(tensors[0], [t for t in used if t is not tensors[0]])
        if self._inside[number]:
            results = self._run_inside(number, used, results)
        if not results and 0 in tensors and views().get(own_name(call.name)) in ("indexed", "selected"):
            self._selected = [*self._selected[1 - _CHOICE :], (tensors[0], self._clock)]
        if not results and views().get(own_name(call.name)) != "nothing":
            self._unseen = [t for t in self._unseen if all(t is not u for u in used)][-4 * _CHOICE :] + used
        self._keep(number, used, results or [])
        self._use_up(number)

    def _run_inside(self, number: int, used: list[_Tensor], results: list[_Tensor] | None) -> list[_Tensor] | None:
        """Run the calls inside an operator. What they make is its result, and the table says what its axes must be. Where a checkpoint kept
        the result of a multiplication and does not compute it again, `detach` in it only looks at what it was given."""
        self._scopes.append(_Scope(list(used), {id(t) for t in used}))
        made, computes = list[_Tensor](), kind_of(self.calls[number].name) in _KEPT_RESULTS
        for inner in self._inside[number]:
            self.visit(inner)
            if not (computes and own_name(self.calls[inner].name) == "detach"):
                made = self._results.get(inner) or made
        self._scopes.pop()
        if results is None:
            return made
        out: list[_Tensor] = []
        for result in results:
            same = next((t for t in made if t.shape == result.shape and t not in out), None)
            if same is not None:
                for a, b in zip(result.axes, same.axes, strict=True):
                    self.symbols.unify(a, b)
                same.axes, same.strides = result.axes, same.strides or result.strides
            out.append(same or result)
        return out

    def _keep(self, number: int, used: list[_Tensor], results: list[_Tensor]) -> None:
        self._used[number], self._results[number] = used, results
        self.makers[number] = tuple(t.maker for t in used)
        for tensor in results:
            tensor.maker = number if tensor.maker < 0 else tensor.maker
        of_data = any(t.data or t.gradient for t in used)
        for tensor in results:
            tensor.data |= of_data
            tensor.undoing = self._around[number] >= 0
            if self._scopes:
                self._scopes[-1].tensors.append(tensor)
            pool = self._pool[tensor.shape]
            if tensor in pool[-_CHOICE:]:
                pool.remove(tensor)
            pool.append(tensor)

    def _use_up(self, number: int) -> None:
        """What an operator uses that made a node of the backward pass: a tensor to which no other gradient is added afterwards has no other
        use behind it."""
        node = self._node_of.get(number)
        if node is None:
            return
        for tensor in self._results[number]:
            tensor.differentiable = True
        for tensor in self._used[number]:
            if tensor.differentiable and tensor.shape not in self._added[node]:
                tensor.alive = False

    def _same_place(self, other: int, tensors: Mapping[int, _Tensor]) -> None:
        for argument, tensor in tensors.items():
            known = self.axes.get((other, argument))
            if known is not None and len(known) == 1 and len(known[0]) == len(tensor.axes):
                for a, b in zip(known[0], tensor.axes, strict=True):
                    self.symbols.unify(a, b)

    # ------------------------------------------------------------ inputs

    def _bound(self, number: int) -> dict[int, _Tensor]:
        """The tensor of every argument that is one."""
        call = self.calls[number]
        shapes = {argument: shape for argument, shape in enumerate(call.shapes) if shape}
        if not shapes:
            return {}
        pairs = forced(call.name, call.shapes)
        wholes = self._wholes(number)
        weights = {*weights_of(call.name), *self._parts_of_weights(number, wholes)}
        tied = {argument for pair in pairs for argument, _ in pair}
        several = max(map(len, shapes.values())) > 1
        candidates = {
            argument: self._as_before(number, argument)
            or self._candidates(number, shape, argument in weights, wholes.get(argument, ()), call.strides_of(argument))
            for argument, shape in shapes.items()
            if not (several and len(shape) == 1 and argument in tied)  # what it must be equal to says more than its length
        }
        out = self._chosen(number, candidates, pairs)
        for argument in shapes:
            if argument not in out:
                out[argument] = self._new(number, argument, argument in weights or (argument in tied and argument not in candidates))
        for argument, tensor in out.items():
            tensor.used = True
            tensor.strides = call.strides_of(argument) or tensor.strides
        for argument, whole in wholes.items():
            out[argument].whole = whole
        for (i, a), (j, b) in pairs:
            self.symbols.unify(out[i].axes[a], out[j].axes[b])
        if self._scopes:
            self._scopes[-1].passed -= {id(t) for t in out.values()}
        return out

    def _wholes(self, number: int) -> dict[int, Shape]:
        """By argument of a call on this rank's parts of tensors, the shape of the tensor that it is a part of."""
        call, whole = self.calls[number], self.calls[number].parent
        if whole not in self._whole or number in self._whole or own_name(self.calls[whole].name) != own_name(call.name):
            return {}
        pairs = enumerate(zip(self.calls[whole].shapes, call.shapes, strict=False))
        return {argument: of for argument, (of, shape) in pairs if of and shape}

    def _parts_of_weights(self, number: int, wholes: Mapping[int, Shape]) -> set[int]:
        """Which of the arguments are parts of a weight of the outermost operator around, which has not made one like it."""
        outer = self.calls[number].parent
        while wholes and self.calls[outer].parent in self._whole:
            outer = self.calls[outer].parent
        shapes, weights = self.calls[outer].shapes, weights_of(self.calls[outer].name)
        others = {shape for argument, shape in enumerate(shapes) if argument not in weights}
        parts = {argument for argument, whole in wholes.items() if whole in shapes and whole not in others}
        made = {argument: self._pool[self.calls[number].shapes[argument]][-_CHOICE:] for argument in parts}
        return {argument for argument in parts if not any(t.maker > outer and t.part_of(wholes[argument]) for t in made[argument])}

    def _as_before(self, number: int, argument: int) -> list[_Tensor]:
        """The tensor that an input of a call that runs again may be: the latest with the axes that it had in the forward pass, or, where a
        checkpoint kept what was made then, one like it. None for any other call."""
        known = self.axes.get((self._of_pass.get(number, -1), argument), ())
        if len(known) != 1:
            return []
        shape = self.calls[number].shapes[argument]
        there = (*self._pool[shape], *(t for scope in self._scopes for t in scope.tensors if t.shape == shape))
        same = [t for t in there if all(map(self.symbols.same, t.axes, known[0]))]
        return [max(same, key=lambda t: t.made)] if same else [_Tensor(shape, known[0], self._clock, data=True)]

    def _candidates(self, number: int, shape: Shape, weight: bool, whole: Shape = (), strides: Shape = ()) -> list[_Tensor]:
        """The tensors of a shape that an input may be, the most likely last. whole: of what tensor it is a part. strides: those of the
        input, which rule out tensors that lie in memory in another way."""
        there = [t for t in self._of_shape(shape, weight, whole) if t.lies(strides)]
        if number in self._undone:
            there = [t for t in there if not t.undoing] or there
        return there

    def _of_shape(self, shape: Shape, weight: bool, whole: Shape) -> list[_Tensor]:
        waits = not weight and self._select(shape)
        for scope in reversed(self._scopes):
            same = [t for t in scope.tensors if t.shape == shape and t.part_of(whole) and not (weight and (t.data or t.gradient))]
            if same:
                return sorted(same, key=lambda t: id(t) in scope.passed)
        pool = [t for t in self._pool[shape][-8 * _CHOICE :] if t.alive and t.part_of(whole)]
        if weight:
            return [t for t in pool if t.differentiable and not (t.given or t.data)]
        if len(shape) == 1:
            return [t for t in pool if self._clock - t.made <= _JUST_NOW or (waits and not t.used)]
        return pool

    def _select(self, shape: Shape) -> bool:
        """Take a tensor that has just been asked for as what an operator selected by values, if it may be: with other places along the
        leading axes. How many they are no row says; where a tensor of numbers has just been made that is as long, it chose them. Returns
        whether it is a list that may rather be one that waits to be used, and is not taken."""
        for source, clock in reversed(self._selected):
            if self._clock - clock > _SOON:
                break
            leading = next((n for n in range(1, len(source.shape) + 1) if shape and shape[1:] == source.shape[n:]), 0)
            if leading and len(shape) == 1 and not all(t.used for t in self._pool[shape][-_CHOICE:]):
                return True
            if leading:
                by = [t for t in self._pool[shape[:1]] if clock - t.made <= _JUST_NOW] if len(shape) > 1 else []
                lead = by[-1].axes[0] if by else self.symbols.share(self.symbols.product(*source.axes[:leading]), shape[0])
                like = self._like(source, shape, (lead, *source.axes[leading:]))
                for tensors in (self._pool[shape], *(scope.tensors for scope in self._scopes[-1:])):
                    tensors.append(like)
                self._selected.remove((source, clock))
                break
        return False

    def _apart(self, tensors: Iterable[_Tensor]) -> list[list[_Tensor]]:
        """The tensors with the same axes, for each; those with the latest one last."""
        by_axes: dict[tuple[object, ...], list[_Tensor]] = {}
        for tensor in tensors:
            key = tuple(map(self.symbols.key, tensor.axes))
            group = by_axes[key] = by_axes.pop(key, [])
            group.append(tensor)
        return list(by_axes.values())[-_CHOICE:]

    def _chosen(
        self, number: int, candidates: Mapping[int, list[_Tensor]], pairs: Sequence[tuple[AxisPlace, AxisPlace]]
    ) -> dict[int, _Tensor]:
        """Of the candidates for each input those of which none is taken twice and that need the fewest new equalities, the latest ones."""
        if self._product is not None and number > self._product.behind and len(candidates) == 1:  # sums of gradients, beside two products
            argument, of = next(iter(candidates.items()))
            gradient = [t for t in of if t.gradient]
            return {argument: (gradient or of)[-1]} if of else {}
        groups = {argument: self._apart(of) for argument, of in candidates.items() if of}
        apart = {argument: [group[-1] for group in several] for argument, several in groups.items()}
        open_places = [argument for argument, of in apart.items() if len(of) > 1][:4]
        out = {argument: of[-1] for argument, of in apart.items()}
        if open_places:
            members = {id(group[-1]): group for several in groups.values() for group in several}
            kept = bool(self._scopes) and self._scopes[-1].kept
            unused = {last: sum(not t.used for t in group) or (len(group) if kept else 1) for last, group in members.items()}
            best: tuple[tuple[int, int, int], dict[int, _Tensor]] | None = None
            for choice in product(*(apart[argument] for argument in open_places)):
                tried = {**out, **dict(zip(open_places, choice, strict=True))}
                both = ((tried[i].axes[a], tried[j].axes[b]) for (i, a), (j, b) in pairs if i in tried and j in tried)
                new = len({frozenset(map(self.symbols.key, equal)) for equal in both if not self.symbols.same(*equal)})
                twice = sum(max(times - unused[last], 0) for last, times in Counter(map(id, choice)).items())
                age = sum(len(apart[p]) - 1 - apart[p].index(t) for p, t in zip(open_places, choice, strict=True))
                if best is None or (twice, new, age) < best[0]:
                    best = (twice, new, age), tried
            out = best[1] if best is not None else out
            for last, times in Counter(map(id, out.values())).items():  # of several with the same axes, each its own
                mine = [argument for argument, tensor in out.items() if id(tensor) == last]
                out.update(zip(mine, members.get(last, [])[-times:], strict=False))
            return out
        by_shape = defaultdict[tuple[int, ...], list[int]](list)
        for argument in out:
            by_shape[tuple(id(t) for t in candidates[argument])].append(argument)
        for places in by_shape.values():  # several of one shape: the latest, in the order in which they were made
            latest = candidates[places[0]][-len(places) :]
            if len(places) == len(latest) > 1:
                out.update(zip(places, latest, strict=True))
        return out

    def _new(self, number: int, argument: int, weight: bool) -> _Tensor:
        """A tensor that no operator made: a weight, or data."""
        call = self.calls[number]
        shape = call.shapes[argument]
        multiplies = len(shape) > 1 and own_name(call.name) in ("t", "mm", "addmm", "bmm", "matmul")
        weight = weight or (shape in self._of_weights and self._may_train(number)) or (multiplies and bool(self.forward))
        seen = self._recognised(shape) if len(shape) > 1 and not weight else None
        if seen is not None:
            self._pool[shape].append(seen)
            return seen
        axes = tuple((self.symbols.plain if weight else self.symbols.fresh)(size) for size in shape)
        tensor = _Tensor(shape, axes, self._clock, differentiable=weight, given=True, data=not weight, maker=given_number(len(self.given)))
        self.given.append(Given(axes, number, argument, weight))
        self._pool[shape].append(tensor)
        if weight:
            self._weights[shape].append(tensor)
        return tensor

    def _may_train(self, number: int) -> bool:
        """Whether a call may use a weight that is trained where the table does not say so: not beside inputs of which it does, and not in a
        copy that no node of the backward pass undoes."""
        call = self.calls[number]
        copies = kind_of(call.name) is OperatorKind.COPY
        return not weights_of(call.name) and not (copies and self._node_of.keys().isdisjoint((number, *self._within(number))))

    def _recognised(self, shape: Shape) -> _Tensor | None:
        """A tensor that an operator of which nothing is known made of another one, recognised by its shape: that one in another order, or
        with other sizes along some axes, or, where the recording has no values of arguments, seen with other sizes. It is one of those
        that were passed to the operator around, or of what the latest unknown operators used."""
        passed = self._scopes[-1].tensors if self._scopes else []
        for source in (*reversed(passed), *reversed(self._unseen)):
            if sorted(shape) == sorted(source.shape) and len(set(shape)) == len(shape):
                return self._like(source, shape, [source.axes[source.shape.index(size)] for size in shape])
        for source in reversed(self._unseen):
            if not self._valued and (seen := seen_as(Sized(source.shape, source.axes), shape, self.symbols)) is not None:
                return self._like(source, shape, seen.axes)
            if len(shape) == len(source.shape) > 2 and shape[0] == source.shape[0]:
                along = zip(shape, source.shape, source.axes, strict=True)
                return self._like(source, shape, [axis if size == was else self.symbols.plain(size) for size, was, axis in along])
        return None

    def _like(self, source: _Tensor, shape: Shape, axes: Sequence[Axis]) -> _Tensor:
        return _Tensor(shape, tuple(axes), self._clock, source.differentiable, data=source.data, maker=source.maker)

    def _listed(self, number: int, argument: int) -> list[_Tensor]:
        """The tensors of an argument that is a list: of each shape the latest ones that no call has taken yet, or else the latest of all,
        in the order in which they were made, the last of them more than once if there are fewer. Lists of weights, and of what belongs to
        these, are in their order, and what is received from another rank is new.
        """
        call = self.calls[number]
        of_weights = own_name(call.name).startswith(("_foreach", "_fused"))
        received = CollectiveKind.in_name(call.name) is CollectiveKind.RECEIVE
        left: dict[Shape, list[_Tensor]] = {}
        out: list[_Tensor] = []
        for shape in call.inputs[argument]:
            if shape not in left:
                wanted = call.inputs[argument].count(shape)
                known = self._weights[shape] if of_weights else [] if received else self._candidates(number, shape, False)
                unused = [t for t in known if not t.used]
                latest = known[:wanted] if of_weights else (unused if len(unused) >= wanted else known)[-wanted:]
                if not latest:
                    axes = tuple(self.symbols.fresh(size) for size in shape)
                    latest = [_Tensor(shape, axes, self._clock, given=True, data=received)]
                    self._pool[shape] += [] if of_weights else latest
                left[shape] = latest + latest[-1:] * (wanted - len(latest))
            out.append(left[shape].pop(0))
            out[-1].used = True
        return out

    # ------------------------------------------------------------ results

    def _results_of(
        self, call: OperatorCall, tensors: Mapping[int, _Tensor], lists: Mapping[int, list[_Tensor]]
    ) -> list[_Tensor] | None:
        """What the table says that a call makes; None where it says nothing."""
        base = own_name(call.name)
        rule, how = axis_rule(base, call.shapes), views().get(base)
        results: list[Sized] | None = None
        if rule is not None:
            results = _by_letters(rule, tensors)
        elif base in elementwise_names():
            results = self._laid_over(tensors)
        elif how == "nothing":
            results = []
        elif how is not None and (0 in tensors or 0 in lists or how in ("sized", "counted")):
            sized = {argument: Sized(t.shape, t.axes, t.strides) for argument, t in tensors.items()}
            of_lists = {argument: [Sized(t.shape, t.axes) for t in several] for argument, several in lists.items()}
            try:
                results = HOW[how](CallArguments(call.name, call.values, sized, of_lists, self.symbols))
            except (KeyError, IndexError):  # a call without an argument that the function needs
                results = None
            if results and how == "sized":  # a node makes the gradient of an input from zeros
                kept = [t for scope in self._scopes if scope.kept for t in scope.tensors]
                results = [next((Sized(t.shape, t.axes) for t in kept if t.shape == result.shape), result) for result in results]
        return None if results is None else [_Tensor(result.shape, result.axes, self._clock, strides=result.strides) for result in results]

    def _laid_over(self, tensors: Mapping[int, _Tensor]) -> list[Sized] | None:
        """The result of an operation element by element: along each axis the longest tensor, and of those of length one what may grow."""
        if not tensors:
            return None
        shape: list[int] = []
        axes: list[Axis] = []
        for back in range(1, max(len(t.shape) for t in tensors.values()) + 1):
            along = [(t.shape[-back], t.axes[-back]) for t in tensors.values() if len(t.shape) >= back]
            size = max(size for size, _ in along)
            best = next((axis for length, axis in along if length == size and self.symbols.normal(axis).symbols), None)
            shape.append(size)
            axes.append(Axis(size) if best is None else best)
        return [Sized(tuple(shape[::-1]), tuple(axes[::-1]))]

    def _recurrent(self, data: _Tensor, others: list[_Tensor]) -> list[_Tensor] | None:
        """A recurrent layer on [steps, batch, in], or [batch, steps, in]: its matrices are [gates · width, in] and [gates · width, width],
        its states [.., batch, width]."""
        matrices = [t for t in others if len(t.shape) == 2 and t.shape[0] not in data.shape[:2]]
        if not matrices or len(data.shape) != 3:
            return None
        width = matrices[min(1, len(matrices) - 1)].axes[1]
        size = self.symbols.size(width)
        for tensor in others:
            if tensor in matrices or len(tensor.shape) == 1:
                gates = Axis(tensor.shape[0] // size)
                self.symbols.unify(tensor.axes[0], self.symbols.product(gates, width))
                if len(tensor.shape) == 2:
                    self.symbols.unify(tensor.axes[1], data.axes[2] if tensor is matrices[0] else width)
            elif tensor.shape[-1] == size:
                self.symbols.unify(tensor.axes[-1], width)
                batch = next((axis for axis in data.axes[:2] if self.symbols.size(axis) == tensor.shape[-2]), width)
                self.symbols.unify(tensor.axes[-2], batch)
        return [_Tensor((*data.shape[:2], size), (*data.axes[:2], width), self._clock)]


def _by_letters(rule: Rule, tensors: Mapping[int, _Tensor]) -> list[Sized] | None:
    made = rule.made({argument: tuple(zip(t.shape, t.axes, strict=True)) for argument, t in tensors.items()}, Axis(1))
    known = [Sized(tuple(size for size, _ in axes), tuple(axis for _, axis in axes)) for axes in made if axes is not None]
    return known or None
