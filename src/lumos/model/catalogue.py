"""Models by name, in any spelling of published tables, or from a Hugging Face `config.json`.

`data/models.toml` holds the models that ship with Lumos. Names are compared without case, spaces and punctuation, so that
"Llama3.1 8B", "llama-3.1-8b" and "LLAMA3.1_8B" are the same.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lumos.errors import LumosError
from lumos.model.transformer import Model

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from lumos.model.hugging_face import ReadModel

#: The longest name of a file, in characters, that systems look up.
_LONGEST_NAME = 255
_DATA = Path(__file__).parent / "data" / "models.toml"


def model_names() -> tuple[str, ...]:
    """Names of the models that ship with Lumos, in the order of the file."""
    return tuple(_tables())


def load_model(name: str | os.PathLike[str]) -> Model:
    """The model of a name (in any spelling), or of a path to a Hugging Face `config.json` or the folder that holds one.

    Raises LumosError for an unknown name (with the valid names and the nearest of them), or for a bad file.
    """
    return read_model(name).model


def read_model(name: str | os.PathLike[str]) -> ReadModel:
    """As `load_model`, with what was assumed about the model and what was not read of its file."""
    from lumos.model.hugging_face import ReadModel, read_config

    if not isinstance(name, str) or name.endswith(".json") or "/" in name or (len(name) <= _LONGEST_NAME and Path(name).is_dir()):
        return read_config(Path(name))
    model = find_model(name)
    if model is not None:
        return ReadModel(model)
    near = difflib.get_close_matches(plain_name(name), _spellings(), 1, 0.5)
    hint = f"; nearest: {_spellings()[near[0]]}" if near else ""
    valid = f"{', '.join(model_names())}, or the path of a Hugging Face config.json"
    raise LumosError(f"model {name[:100]!r} is not known{hint}; valid: {valid}")


def find_model(name: str) -> Model | None:
    """The model that ships with Lumos under that name, in any spelling, or None."""
    spellings = _spellings()
    known = spellings.get(_with_points(name)) or spellings.get(plain_name(name))
    return None if known is None else _model(known)


def plain_name(name: str) -> str:
    """The name's letters and digits in lower case."""
    return re.sub(r"[^a-z0-9]", "", name.lower().replace("meta-llama/", ""))


def _with_points(name: str) -> str:
    """As `plain_name`, but with decimal points, because 1.3b is not 13b."""
    return ".".join(map(plain_name, re.split(r"(?<=\d)\.(?=\d)", name)))


@cache
def _tables() -> Mapping[str, dict[str, Any]]:
    return tomllib.loads(_DATA.read_text(encoding="utf-8"))


@cache
def _spellings() -> Mapping[str, str]:
    names = {spelling: name for name, table in _tables().items() for spelling in (name, *table.get("aliases", ()))}
    known = {_with_points(spelling): name for spelling, name in names.items()}
    for spelling, name in names.items():  # a name without its decimal points must not replace the exact name of another model
        known.setdefault(plain_name(spelling), name)
    return known


@cache
def _model(name: str) -> Model:
    table = {key: value for key, value in _tables()[name].items() if key not in ("aliases", "source")}
    heads = table["heads"]
    table.setdefault("kv_heads", heads)
    if "latent" in table:
        table.setdefault("head_dim", table["latent"]["nope"] + table["latent"]["rope"])
    table.setdefault("head_dim", table["hidden"] // heads)
    table.setdefault("ffn", 0)
    try:
        return msgspec.convert({"name": name, **table}, Model)
    except msgspec.ValidationError as error:
        raise LumosError(f"{_DATA}: [{name}]: {error}") from error
