"""The shapes of a script's operators with other sizes, as the axes of its recorded ones say them, against those of the changed script.

python -m validation.axes [--odd] [--seed N …] [--write]       needs torch and transformers; some two minutes a seed

Other people's scripts (`validation.foreign`) run on fake tensors before and after a change of sizes. What `operators.inference` makes of
the calls before it, with the sizes of the change, is compared call by call with those after it. A call counts by its work: the
multiplications of a product, the elements of anything else, and is right if every axis of every input is. Calls that only describe a
tensor do not count, and pairs whose scripts call other operators after the change are left out. Where a size can mean several axes, the
first one that is as long as the script says is meant. `--odd` takes the families of models that are not named as transformers are.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

from tools.document import markdown_table
from tools.figures import write_result
from validation.foreign.drawn import SEED
from validation.foreign.nodes import Node
from validation.foreign.pairs import Pair, drawn_pairs

from lumos.operators.calls import OperatorCall
from lumos.operators.inference import infer
from lumos.operators.shaped import operations
from lumos.operators.table import OperatorKind, kind_of, of_torch
from lumos.segment.named_axes import Named, Names
from lumos.segment.sizes import Sizes, symbol_values

#: Changes that are sizes, by the names that the scripts give them.
KEYS = {"micro_batch", "seq", "hidden", "heads", "kv_heads", "ffn"}
#: How many times as long as an element moved takes one multiplication.
MULTIPLICATION = 0.01


class Score(NamedTuple):
    """One pair: the share of the work after the change whose shapes are right, sizes that have no name in the recording, and those of
    which the recording shows several."""

    pair: Pair
    right: float
    unnamed: tuple[str, ...]
    asked: tuple[str, ...] = ()


def calls_of(job: Any) -> tuple[list[OperatorCall], list[bool]]:
    """The calls of a step of a job's first rank, and which of them reach the device."""
    from validation.foreign.operators import operators
    from validation.foreign.parallel import process_group
    from validation.foreign.training import fake_step

    with process_group(job, 0):
        found = operators(partial(fake_step, job, 0))
    calls: list[OperatorCall] = []
    reached: list[bool] = []

    def add(nodes: Sequence[Node], parent: int) -> None:
        for node in nodes:
            inputs, lists = [], set()
            for place, dims in enumerate(node.dims):
                if dims and isinstance(dims[0], list):
                    lists.add(place)
                inputs.append(tuple(map(tuple, dims)) if place in lists else (tuple(dims),) if dims else ())
            sequence, thread = node.facts.get("Sequence number", -1), node.facts.get("Fwd thread id", 0)
            apart = tuple(tuple(x) if isinstance(x, list) and all(type(n) is int for n in x) else () for x in node.strides)
            calls.append(
                OperatorCall(node.name, tuple(inputs), frozenset(lists), tuple(node.concrete), parent, sequence, not thread, apart)
            )
            reached.append(node.reached)
            add(node.children, len(calls) - 1)

    add(next(node for node in found if node.name == "recorded").children, -1)
    return calls, reached


def _work(call: OperatorCall) -> float:
    kind = kind_of(call.name)
    if kind is OperatorKind.VIEW or not of_torch(call.name):
        return 0.0
    elements = float(sum(prod(shape) for several in call.inputs for shape in several))
    if kind is OperatorKind.MULTIPLICATION:
        return elements + MULTIPLICATION * (operations(call.name, call.shapes, ()) or 0.0) / 2
    return elements * (20 if kind in (OperatorKind.ATTENTION, OperatorKind.CONVOLUTION) else 1)


def changed_sizes(pair: Pair, old: Sizes) -> tuple[Sizes, tuple[str, ...]]:
    """The sizes of the rank's part after a change, and those that the recording does not name."""
    words = dict(word.split("=") for word in pair.change.split(","))
    unnamed = tuple(key for key in words if not getattr(old, key))
    wanted = {key: int(value) for key, value in words.items() if key not in unnamed}
    of_model = pair.job.sizes
    shared = {key: getattr(old, key) / of_model[key] for key in wanted if of_model.get(key, 0) > getattr(old, key)}
    part = {key: round(value * shared.get(key, 1.0)) for key, value in wanted.items()}
    new = old._replace(**part)
    if "heads" in part and old.kv_heads == old.heads:
        new = new._replace(kv_heads=new.heads)
    if new.heads and {"hidden", "heads"} & set(part):
        new = new._replace(head_dim=old.head_dim * new.hidden * old.heads // max(old.hidden * new.heads, 1))
    return new, unnamed


def score(pair: Pair) -> Score | None:
    """The score of a pair; None where the changed script calls other operators."""
    (before, reached), (after, _) = calls_of(pair.job), calls_of(pair.target)
    if [call.name for call in before] != [call.name for call in after]:
        return None
    axes = infer(before)
    inferred = Names(axes, before)
    names: Named = dict(inferred.named)
    several = {key: found for key, found in inferred.meanings.items() if key in pair.change and len(found) > 1}
    for key, found in several.items():
        names[key] = next((meant for meant in found if axes.symbols.size(meant[0]) == pair.job.sizes.get(key)), names.get(key, ()))
    old = Sizes(**{name: axes.symbols.size(found[0]) for name, found in names.items()})
    new, unnamed = changed_sizes(pair, old)
    value = symbol_values(axes.symbols, names, old, new)
    total = right = 0.0
    for number, wanted in enumerate(after):
        work = _work(wanted) if reached[number] else 0.0
        shapes = [(place, shape) for place, shape in enumerate(wanted.shapes) if shape]
        known = all((number, place) in axes.of for place, _ in shapes)
        alike = known and all(
            tuple(axes.symbols.evaluate(axis, value) for axis in axes.of[number, place][0]) == shape for place, shape in shapes
        )
        total, right = total + work, right + work * alike
    return Score(pair, right / max(total, 1.0), unnamed, tuple(several))


def scores(seeds: Sequence[int], *, odd: bool) -> Iterator[Score]:
    """The scores of all changes of sizes in draws."""
    for seed in seeds:
        for pair in drawn_pairs(seed, odd=odd):
            if {word.split("=")[0] for word in pair.change.split(",")} <= KEYS:
                try:
                    found = score(pair)
                except Exception as error:  # noqa: BLE001  whatever other people's code raises, the other pairs are scored
                    print(f"{pair.name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
                    continue
                if found is not None:
                    print(f"{pair.name}: scored", file=sys.stderr, flush=True)
                    yield found


def section(found: Sequence[Score], seeds: Sequence[int], *, odd: bool) -> str:
    """The text of its result file."""
    rows = [("all", list(found)), *((key, [s for s in found if s.pair.change.startswith(key)]) for key in sorted(KEYS))]
    command = f"python -m validation.axes{' --odd' * odd} --seed {' '.join(map(str, seeds))} --write"
    lines = [
        f"Written by `{command}`. Scripts drawn by seed run on fake",
        "tensors before and after a change of a size; the shapes that the axes of the calls before it give are compared with those after",
        "it, by work. No row of these draws was read before the first score, which this is.",
        "",
        markdown_table(
            ("size that changes", "pairs", "all work right (≥ 99.5 %)", "share right: mean", "worst"),
            [
                (
                    name,
                    str(len(of)),
                    f"{sum(s.right >= 0.995 for s in of)}",
                    f"{sum(s.right for s in of) / len(of):.1%}",
                    f"{min(s.right for s in of):.1%}",
                )
                for name, of in rows
                if of
            ],
        ),
        "",
        f"Sizes that the recording does not name: {', '.join(sorted({key for s in found for key in s.unnamed})) or 'none'}. Pairs of which"
        f" the recording shows several axes for the size: {sum(bool(s.asked) for s in found)} of {len(found)}. Rows whose number a script"
        " works out, as experts of a fixed capacity do, stay here as they were recorded; an answer takes them both ways.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, nargs="+", default=[SEED])
    parser.add_argument("--odd", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    text = section(list(scores(args.seed, odd=args.odd)), args.seed, odd=args.odd)
    print(text)
    if args.write:
        write_result(f"validation/results/axes{'-odd' * args.odd}.md", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
