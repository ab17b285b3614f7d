"""The problem and the space of a search, from the options of the command line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from lumos.choices import check_count
from lumos.cost.cluster import load_cluster
from lumos.errors import UsageError
from lumos.model.catalogue import read_model
from lumos.plan.configuration import Settings, settings_from
from lumos.plan.framework import DEFAULTS, SWITCHES, with_switches
from lumos.plan.profiles import Told, named
from lumos.searching.space import PLAN_COLUMNS, Problem, Space
from lumos.vocabulary import Precision, one_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The sizes that can be swept.
SWEPT = ("gpus", "global_batch", "seq")
#: The choices of a plan that are whole numbers.
_SIZES = tuple(key for key in PLAN_COLUMNS if key not in ("sequence_parallel", "recompute", "schedule"))


def problem_of(
    model: str | None, cluster: str | None, gpus: int | None, global_batch: int | None, seq: int | None, precision: str, framework: str
) -> Problem:
    """The problem of these names and sizes. Raises UsageError where one is missing or unknown; it names the nearest valid one."""
    needed = {"model": model, "cluster": cluster, "gpus": gpus, "global-batch": global_batch, "seq": seq}
    missing = [f"--{key}" for key, value in needed.items() if value is None]
    if missing:
        raise UsageError(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} needed; or give traces of a job")
    assert model is not None and cluster is not None and gpus is not None and global_batch is not None and seq is not None
    loaded = load_cluster(cluster)
    loaded.check_size(check_count(gpus, "gpus"))
    known = one_of(Precision, precision, "precision")
    chosen, read = named(framework, Told(precision=known)), read_model(model)
    return Problem(read.model, chosen.framework, loaded, gpus, global_batch, seq, known, (*read.notes, *chosen.notes), window=read.window)


def switched(problem: Problem, switches: Mapping[str, str]) -> Problem:
    """The problem with switches of its framework's profile set from text, in every plan. Raises UsageError for an unknown switch, a value
    that it cannot have, and for defaults of a plan, which a search chooses itself."""
    for key in switches:
        if key in DEFAULTS:
            said = f"--switch {key} is a default of the profile, which a search replaces"
            raise UsageError(f"{said}; give the values to search as --{key.replace('_', '-')}")
    return replace(problem, framework=with_switches(problem.framework, switches), stated=(*problem.stated, *switches))


def sweep_of(sweep: str | Mapping[str, Sequence[int]]) -> tuple[str, tuple[int, ...]]:
    """The key and the values of {KEY: values}, KEY=A..B (doubling) or KEY=A,B,C. Raises UsageError where it is malformed."""
    if isinstance(sweep, str):
        name, sign, text = sweep.partition("=")
        if not sign:
            raise UsageError(f"--sweep {sweep!r} is not KEY=FROM..TO or KEY=V,V")
        key, values = name.strip().replace("-", "_"), _sizes(name.strip(), text)
    elif len(sweep) == 1:
        ((key, listed),) = sweep.items()
        values = tuple(_size(key, value) for value in listed)
    else:
        raise UsageError(f"search: sweep takes one size with its values, not {len(sweep)}")
    if key not in SWEPT:
        raise UsageError(f"--sweep {sweep!r}: {key!r} cannot be swept; valid: {', '.join(SWEPT)}")
    if isinstance(values, range):
        return key, tuple(values.start * 2**i for i in range((values[-1] // values.start).bit_length()))
    return key, values


def space_of(options: Mapping[str, object]) -> Space:
    """The space of values: one, several, a range, or text as the command line has it (separated by commas, FROM..TO). A choice without
    an option may take any value."""
    values: dict[str, tuple[object, ...] | range] = {key: _sizes(key, options[key]) for key in _SIZES if key in options}
    values |= {key: tuple(word.strip() for word in _words(options[key])) for key in ("recompute", "schedule") if key in options}
    sequence = options.get("sequence_parallel")
    if isinstance(sequence, bool):
        values["sequence_parallel"] = (sequence,)
    return Space(**values)  # type: ignore[arg-type]


def _words(value: object) -> Sequence[str]:
    if isinstance(value, str):
        return value.split(",")
    return [str(item) for item in value] if isinstance(value, Iterable) else [str(value)]


def _sizes(key: str, value: object) -> tuple[int, ...] | range:
    text = f"{value[0]}..{value[-1]}" if isinstance(value, range) and value and value.step == 1 else value
    low, dots, high = text.partition("..") if isinstance(text, str) else ("", "", "")
    if not dots:
        return tuple(_size(key, word) for word in _words(value))
    values = range(_size(key, low), _size(key, high) + 1)
    if not values:
        raise UsageError(f"--{key.replace('_', '-')} {text}: {low} is more than {high}")
    return values


def _size(key: str, word: int | str) -> int:
    try:
        value = int(word)
    except ValueError:
        raise UsageError(f"--{key.replace('_', '-')}: {word!r} is not a whole number; give values as 1,2,4 or 1..8") from None
    least, most = (0, 3) if key == "zero" else (1, None)
    if value < least or (most is not None and value > most):
        raise UsageError(f"--{key.replace('_', '-')}: {value} is not {'0, 1, 2 or 3' if most else 'at least 1'}")
    return value


def settings_of(text: str) -> Settings:
    """Parse KEY=VALUE,KEY=VALUE into settings. A key that is no setting but a switch of the framework's profile sets that switch. Raises
    UsageError for an unknown key or a wrong value."""
    values: dict[str, object] = {}
    switches: dict[str, str] = {}
    for word in text.split(","):
        key, sign, value = word.strip().partition("=")
        key = key.replace("-", "_")
        if not sign or key == "switches":
            raise UsageError(f"plan {text!r}: {word!r} is not KEY=VALUE")
        if key in SWITCHES and key not in Settings.__struct_fields__:
            switches[key] = value
        else:
            values[key] = value
    return settings_from({**values, "switches": switches}, f"plan {text!r}", as_text=True)
