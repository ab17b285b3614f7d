"""Operators with the shapes of their inputs: what they multiply, and how much. All follows from the letters of the table.

An operator of another library multiplies if it launches a kernel that does; its factors are then the first two of its inputs whose shapes
fit together. An operator of recurrent layers runs all steps of a sequence through one layer, or through all of them. Its inputs are the
sequence, the hidden state and weights: matrices by which the inputs and the hidden state are multiplied, [gates · width, width].
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.operators.table import (
    OperatorKind,
    argument_places,
    axis_rule,
    convolution_windows,
    elementwise_names,
    kind_of,
    of_torch,
    own_name,
    weights_of,
)
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lumos.operators.table import Shape


class ShapedOperator(NamedTuple):
    """An operator row's name, input shapes (() where an input is no tensor) and dtypes. multiplies: it is no operator of PyTorch's, and
    launches a multiplication."""

    name: str
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    multiplies: bool = False


class Product(NamedTuple):
    """A multiplication [m, k] · [k, n], `batch` equal ones in a kernel."""

    m: int
    n: int
    k: int
    batch: int


class Multiplication(NamedTuple):
    """What a call multiplies. first, second: where its factors are among its inputs. transposed: whether the second is [n, k]. whole: the
    sizes without regard to groups. groups: into how many its rows, or with `of_depth` the steps of its depth, are divided; 0 where they
    are not."""

    first: int
    second: int
    transposed: bool
    whole: Product
    groups: int = 0
    of_depth: bool = False


class AttentionSizes(NamedTuple):
    """The sizes of an attention. width, value_width: of each head of queries and keys, and of values."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int
    value_width: int


def elements(shape: Shape) -> int:
    """Elements of a tensor of that shape."""
    return prod(shape)


# ---------------------------------------------------------------- multiplications


def factors(o: ShapedOperator) -> Multiplication | None:
    """What an operator multiplies; None where it is no multiplication, or its shapes are not of one."""
    if of_torch(o.name):
        return _by_letters(o.name, o.shapes) if kind_of(o.name) is OperatorKind.MULTIPLICATION else None
    return _by_shape(o.shapes) if o.multiplies else None


@lru_cache(1 << 13)
def _by_letters(name: str, shapes: tuple[Shape, ...]) -> Multiplication | None:
    """The first two inputs that share a letter which the result lacks, and what the other letters are."""
    sizes, rule = _sizes(name, shapes), axis_rule(name, shapes)
    made = rule.results[:1] if rule is not None else ()
    result = {letter for axes in sizes.values() for letter in axes if made and made[0].has(letter)}
    for first, second in combinations(sizes, 2):
        a, b = sizes[first], sizes[second]
        depth = [letter for letter in a if letter in b and letter not in result]
        if not depth:
            continue
        if any(a[letter] != b[letter] for letter in depth):
            return None
        rows, columns = (prod(x[letter] for letter in x if letter in result and letter not in y) for x, y in ((a, b), (b, a)))
        batch = prod(max(a[letter], b[letter]) for letter in a if letter in b and letter in result)
        whole = Product(rows, columns, prod(a[letter] for letter in depth), batch)
        chosen = [size for letter, size in (a | b).items() if letter not in result and letter not in depth]
        apart = [axes[letter] for axes in sizes.values() for letter in axes if letter in result and letter not in a and letter not in b]
        groups = prod(chosen or apart) if chosen or apart else 0
        return Multiplication(first, second, list(b)[-1] in depth, whole, groups, of_depth=groups > 0 and not chosen)
    return None


def _sizes(name: str, shapes: tuple[Shape, ...]) -> dict[int, dict[str, int]]:
    """The size of each letter in each input that fits its letters."""
    rule = axis_rule(name, shapes)
    pairs = enumerate(zip(rule.inputs, shapes, strict=False)) if rule is not None else ()
    fitting = ((i, pattern, shape) for i, (pattern, shape) in pairs if pattern is not None and shape and pattern.fits(len(shape)))
    return {i: dict(zip(pattern.letters(len(shape)), shape, strict=True)) for i, pattern, shape in fitting}


def result_shapes(name: str, shapes: tuple[Shape, ...]) -> tuple[Shape, ...] | None:
    """The shapes of what a call gives, by the letters of the table or since it has the axes of its inputs; None where they do not follow.

    Raises ValueError where the inputs of an operator element by element cannot be laid over each other."""
    rule = axis_rule(name, shapes)
    if rule is None:
        return (np.broadcast_shapes(*shapes),) if own_name(name) in elementwise_names() else None
    made = rule.made({i: [(size, size) for size in shape] for i, shape in enumerate(shapes)}, 1)
    known = tuple(tuple(size for size, _ in axes) for axes in made if axes is not None)
    return known if len(known) == len(made) else None


def _by_shape(shapes: tuple[Shape, ...]) -> Multiplication | None:
    """The first two tensors that can be multiplied: [m, k] and [k, n], or else [m, k] and the weight [n, k]."""
    wide = [i for i, shape in enumerate(shapes) if len(shape) > 1]
    for first, second in combinations(wide, 2):
        a, b = shapes[first], shapes[second]
        plain = len(a) == len(b) and a[:-2] == b[:-2] and a[-1] == b[-2]
        multiplication = _by_letters("matmul", (a, b)) if plain else _by_letters("linear", (a, b)) if len(b) == 2 else None
        if multiplication is not None:
            return multiplication._replace(first=first, second=second)
    return None


def product(o: ShapedOperator) -> Product | None:
    """The sizes of a multiplication of matrices; None where the operator is none, lacks shapes, or multiplies by groups."""
    multiplication = factors(o)
    if (
        multiplication is None
        or multiplication.groups
        or min(len(o.shapes[multiplication.first]), len(o.shapes[multiplication.second])) < 2
    ):
        return None
    return multiplication.whole


def grouped_product(o: ShapedOperator) -> Product | None:
    """The sizes of a multiplication of tokens by the matrix of the expert that each goes to, or, for the gradients of these matrices, of
    the tokens of each expert by their gradients, where every expert has equally many; None for other operators."""
    multiplication = factors(o)
    if multiplication is None or not multiplication.groups:
        return None
    m, n, k, _ = multiplication.whole
    per_group = max(routed(o) // multiplication.groups, 1)
    return Product(m, n, per_group, multiplication.groups) if multiplication.of_depth else Product(per_group, n, k, multiplication.groups)


def routed(o: ShapedOperator) -> int:
    """The tokens that experts multiply together, each counted once for every expert that it goes to; 0 for other operators."""
    multiplication = factors(o)
    if multiplication is None or not multiplication.groups:
        return 0
    return multiplication.whole.k if multiplication.of_depth else multiplication.whole.m


# ---------------------------------------------------------------- attention


def is_attention(name: str) -> bool:
    """Whether an operator computes a whole attention."""
    return of_torch(name) and kind_of(name) is OperatorKind.ATTENTION


def attention_of(name: str, shapes: tuple[Shape, ...]) -> AttentionSizes | None:
    """The sizes of an attention; None for another operator, and without its shapes."""
    if not is_attention(name):
        return None
    tensors = list(_sizes(name, shapes).values())
    query, key, value = (next((t for t in tensors if set(letters) <= t.keys()), None) for letters in ("bhqd", "bhkd", "bhkv"))
    if query is None or key is None:
        return None
    width = query["d"]
    return AttentionSizes(query["b"], query["h"], key["h"], query["q"], key["k"], width, width if value is None else value["v"])


def positions_first(name: str) -> bool:
    """Whether an attention operator takes [batch, position, head, width], and not [batch, head, position, width]."""
    rule = axis_rule(name, ()) if is_attention(name) else None
    return rule is not None and any(pattern is not None and pattern.before == "bqhd" for pattern in rule.inputs)


# ---------------------------------------------------------------- how much is computed


def operations(name: str, shapes: Sequence[Shape], values: Sequence[str]) -> float | None:
    """Operations of one call: two for each multiplication and its addition; None where the operator or its shapes are not known.

    A product of [m, k] by [k, n] counts 2·m·n·k; of tokens by the matrices of several experts, each token meets one. Attention counts
    two products forward, of queries by keys and of these scores by values, and five backward, half of either where it is causal (Dao,
    FlashAttention-2, 2023, section 4.1). A convolution counts 2 for every element of its output and every weight that reaches it, and as
    many again for each gradient that its backward pass computes.
    """
    if not of_torch(name):
        return None
    given, kind = tuple(shapes), kind_of(name)
    if kind is OperatorKind.MULTIPLICATION:
        multiplication = _by_letters(name, given)
        return None if multiplication is None else 2.0 * prod(multiplication.whole)
    if kind is OperatorKind.ATTENTION:
        return _of_attention(name, given, values)
    return _of_convolution(name, given, values) if kind is OperatorKind.CONVOLUTION else None


def _of_attention(name: str, shapes: tuple[Shape, ...], values: Sequence[str]) -> float | None:
    sizes = attention_of(name, shapes)
    if sizes is None:
        return None
    # Backward the scores are computed again; then the gradients of queries, keys, and of scores and values.
    widths = 3 * sizes.width + 2 * sizes.value_width if "backward" in name else sizes.width + sizes.value_width
    return 2.0 * sizes.batch * sizes.heads * sizes.queries * sizes.keys * widths * (0.5 if has_causal_mask(name, values) else 1.0)


def has_causal_mask(name: str, values: Sequence[str]) -> bool | None:
    """Whether no query of a call of an attention sees a later key: as an argument says, which some operators have as the number of a kind
    of mask, 0 for none; None where the argument is missing or says neither. values: of its arguments, as the profiler writes them."""
    places = argument_places(name)
    place = places.get("is_causal", places.get("custom_mask_type", len(values)))
    return {"True": True, "1": True, "2": True, "False": False, "0": False}.get(values[place]) if place < len(values) else None


def _of_convolution(name: str, shapes: tuple[Shape, ...], values: Sequence[str]) -> float | None:
    argument = (weights_of(name) or (len(shapes),))[0]
    if argument >= len(shapes) or min(len(shapes[0]), len(shapes[argument])) < 3:
        return None
    first, weight, settings = shapes[0], shapes[argument], argument_places(name)
    mask = settings.get("output_mask", -1)
    if mask < 0:
        windows = convolution_windows(name, values, first[2:], weight[2:])
        return None if windows is None else 2.0 * first[0] * prod(window.positions for window in windows) * prod(weight)
    if mask >= len(values) or _is_true(values, settings.get("transposed", -1)):
        return None
    wanted = [word.strip() == "True" for word in values[mask].strip("[]").split(",")][:2]
    return 2.0 * first[0] * prod(first[2:]) * prod(weight) * sum(wanted)


def _is_true(values: Sequence[str], argument: int) -> bool:
    return 0 <= argument < len(values) and values[argument] == "True"


def convolution_work(o: ShapedOperator) -> int:
    """Multiplications of a convolution, forward or backward, but for its stride; 0 where the operator is none."""
    argument = weights_of(o.name)[0] if kind_of(o.name) is OperatorKind.CONVOLUTION and weights_of(o.name) else len(o.shapes)
    if argument >= len(o.shapes) or min(len(o.shapes[0]), len(o.shapes[argument])) < 3:
        return 0
    return prod(o.shapes[0]) * prod(o.shapes[argument][2:]) * o.shapes[argument][argument - 1]


def is_recurrent(name: str) -> bool:
    """Whether an operator runs a whole recurrent layer, or the cell of one."""
    return kind_of(name) is OperatorKind.RECURRENT


class Recurrence(NamedTuple):
    """What an operator of recurrent layers works on. rows: sequences of the batch. inputs, state: shapes of the weights by which the
    inputs and the hidden state are multiplied, [gates · width, width]."""

    steps: int
    rows: int
    inputs: Shape
    state: Shape

    @property
    def tokens(self) -> int:
        """Rows of the inputs of all steps."""
        return self.steps * self.rows

    @property
    def weights(self) -> int:
        """Elements of the two weights."""
        return prod(self.inputs) + prod(self.state)


def recurrence(o: ShapedOperator) -> Recurrence | None:
    """The sizes of an operator of recurrent layers; None where it is none or does not show them."""
    if kind_of(o.name) is not OperatorKind.RECURRENT or not o.shapes or len(o.shapes[0]) != 3:
        return None
    leading = o.shapes[0][:2]
    rows = next((s[-2] for s in o.shapes[1:] if len(s) > 1 and s[-2] in leading), 0)
    matrices = [s for s in o.shapes[1:] if len(s) == 2 and s[0] not in leading]
    if not rows or not matrices:
        return None
    return Recurrence(leading[0] * leading[1] // rows, rows, matrices[0], matrices[min(1, len(matrices) - 1)])


def recurrent_multiplications(o: ShapedOperator) -> int:
    """Multiplications of one layer over all steps; twice as many backward, for the gradients of inputs and weights. 0 where unknown."""
    layer = recurrence(o)
    return 0 if layer is None else layer.tokens * layer.weights * (2 if "backward" in o.name else 1)


# ---------------------------------------------------------------- weights


def weight_inputs(o: ShapedOperator) -> tuple[Shape, ...]:
    """The shapes of an operator's inputs that are weights of the model: those that the table says, of a recurrent layer what is neither
    its sequence nor its state, and what a multiplication adds to its result together with the matrix that it multiplies by."""
    if is_recurrent(o.name) and o.shapes:
        return tuple(s for s in o.shapes[1:] if 0 < len(s) < 3 and s[0] not in o.shapes[0][:2])
    multiplication = factors(o) if not weights_of(o.name) else None
    if multiplication is not None and multiplication.first > 0 and len(o.shapes[multiplication.second]) == 2:
        return tuple(s for s in (*o.shapes[: multiplication.first], o.shapes[multiplication.second]) if s)
    return tuple(o.shapes[i] for i in weights_of(o.name) if i < len(o.shapes) and o.shapes[i])


def shapes_of_weights(counted: Iterable[tuple[ShapedOperator, int]]) -> frozenset[Shape]:
    """The shapes of the weights that operators use, and of their transposes."""
    weights = {shape for o, _ in counted for shape in weight_inputs(o)}
    return frozenset(weights | {s[::-1] for s in weights if len(s) == 2})


def has_rate(o: ShapedOperator) -> bool:
    """Whether the rate of a number format decides what an operator takes: it multiplies, convolves or attends."""
    return (
        product(o) is not None or is_attention(o.name) or is_recurrent(o.name) or convolution_work(o) > 0 or grouped_product(o) is not None
    )


def type_of(o: ShapedOperator) -> DType | None:
    """The type of an operator's first tensor."""
    types = (DType.parse(name) for shape, name in zip(o.shapes, o.dtypes, strict=True) if shape and name)
    return next((dtype for dtype in types if dtype is not None), None)
