"""Pairs of commands of `validation/scripts/train.py` that a seed draws: a family with its sizes and switches, and one or two changes."""

from __future__ import annotations

import random
from typing import NamedTuple


class Pair(NamedTuple):
    """A change of a script. ranks: of both, 1 without a launcher."""

    name: str
    before: str
    after: str
    ranks: int = 1


#: What each family's sizes are drawn from, as one process on a CPU can run them.
FAMILIES: dict[str, dict[str, tuple[int, ...]]] = {
    "gpt": {"layers": (2, 3, 4), "width": (128, 192, 256), "length": (64, 96, 128), "batch": (2, 4, 6), "vocab": (512, 1024)},
    "translator": {"layers": (1, 2), "width": (96, 128, 192), "length": (32, 48, 64), "batch": (4, 6, 8), "vocab": (256, 512)},
    "lstm": {"layers": (1, 2), "width": (64, 128, 192), "length": (32, 48, 64), "batch": (4, 8, 12), "vocab": (256, 512)},
    "temporal": {"layers": (2, 3, 4), "width": (64, 96, 128), "length": (96, 128, 192), "batch": (4, 6, 8), "vocab": (128, 256)},
    "mixer": {"layers": (2, 3, 4), "width": (128, 192, 256), "length": (64, 96, 128), "batch": (4, 6, 8), "vocab": (128, 256)},
    "mlp": {"layers": (3, 4, 6), "width": (384, 512, 640), "batch": (64, 128, 256), "vocab": (64, 128)},
    "dlrm": {"layers": (3, 4, 6), "width": (32, 64), "batch": (256, 384, 512), "vocab": (64, 128)},
    "cnn": {"layers": (3, 4), "width": (16, 32), "batch": (2, 4, 6), "vocab": (64, 128)},
    "ladder": {"layers": (1, 2, 3), "width": (16, 32), "batch": (2, 4, 6), "vocab": (64, 128)},
}
#: By what sizes are multiplied for a device.
_ON_DEVICE = {"width": 8, "length": 4, "batch": 4}
#: Factors of a size that is changed; layers are added to instead.
_FACTORS = {"batch": (0.5, 1.5, 2.0), "width": (0.5, 1.5, 2.0), "length": (0.5, 1.5, 2.0)}
#: Switches that any family has, and those of some.
_SWITCHES = ("--clip", "--accumulate 2", "--optimizer sgd", "--adam loop", "--adam fused", "--bf16", "--item")
_OWN = {"gpt": ("--recompute", "--materialised"), "translator": ("--dropout 0.1",), "mlp": ("--dropout 0.1",)}


def drawn_pairs(seed: int, number: int = 18, *, small: bool) -> tuple[Pair, ...]:
    """The pairs of a seed, the families in turn. small: of a size that a CPU trains."""
    draw = random.Random(seed)
    return tuple(_pair(draw, [*FAMILIES][i % len(FAMILIES)], small) for i in range(number))


def _pair(draw: random.Random, family: str, small: bool) -> Pair:
    sizes = {name: draw.choice(choices) * (1 if small else _ON_DEVICE.get(name, 1)) for name, choices in FAMILIES[family].items()}
    switches = draw.sample((*_SWITCHES, *_OWN.get(family, ())), 3)
    standing = switches[: draw.choice((0, 1))]
    changed, kept, said = dict(sizes), list(standing), []
    for change in draw.sample(("size", "switch", "unswitch"), draw.choice((1, 1, 2))):
        if change == "size" or (change == "unswitch" and not standing):
            name = draw.choice([each for each in ("batch", "layers", "width", "length") if each in sizes])
            changed[name] = sizes[name] + draw.choice((1, 2)) if name == "layers" else int(sizes[name] * draw.choice(_FACTORS[name]))
            said.append(f"{name} {sizes[name]} to {changed[name]}")
        elif change == "switch":
            kept.append(switches[2])
            said.append(switches[2])
        else:
            kept = [each for each in kept if each not in standing]
            said.append(f"without {standing[0]}")
    heads = " --heads 4" if small else ""
    return Pair(
        f"{family}: {', '.join(said)}", *(_command(family, each, flags) + heads for each, flags in ((sizes, standing), (changed, kept)))
    )


def _command(family: str, sizes: dict[str, int], switches: list[str]) -> str:
    return " ".join([f"--model {family}", *(f"--{name} {size}" for name, size in sizes.items()), *switches])
