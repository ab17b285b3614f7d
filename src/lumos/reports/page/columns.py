"""Encode arrays as compressed text inside a JSON document; static/columns.js decodes them in the browser."""

from __future__ import annotations

import base64
import gzip
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The types of numbers that a browser's typed arrays can hold.
TYPES = ("uint8", "uint16", "uint32", "int32", "float32", "float64")


def column(values: NDArray[Any]) -> dict[str, Any]:
    """The array in a form that JSON can hold: its bytes, little-endian, as base64 of gzip. The type must be one of TYPES."""
    assert values.dtype.name in TYPES, values.dtype
    raw = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
    return {"dtype": values.dtype.name, "length": len(values), "gzip": base64.b64encode(gzip.compress(raw, 6, mtime=0)).decode()}


def times(values: NDArray[np.int64]) -> dict[str, Any]:
    """Encode times or lengths of at least 0 ns: as uint32 where they fit (up to 4.29 s), else as float64."""
    fits = not len(values) or int(values.max()) < 2**32
    return column(values.astype(np.uint32 if fits else np.float64))


def index(values: NDArray[Any]) -> dict[str, Any]:
    """Encode indices of at least 0 in as few bytes as possible."""
    most = int(values.max()) if len(values) else 0
    return column(values.astype(np.uint8 if most < 2**8 else np.uint16 if most < 2**16 else np.uint32))
