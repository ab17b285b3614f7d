"""Arrays inside a JSON document: compressed, as text, read back in the browser by static/columns.js."""

from __future__ import annotations

import base64
import gzip
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: What a browser's typed arrays hold.
TYPES = ("uint8", "uint16", "uint32", "int32", "float32", "float64")


def column(values: NDArray[Any]) -> dict[str, Any]:
    """The array as JSON can hold it: little-endian bytes, gzip, base64. Its type is one of TYPES."""
    assert values.dtype.name in TYPES, values.dtype
    raw = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
    return {"dtype": values.dtype.name, "length": len(values), "gzip": base64.b64encode(gzip.compress(raw, 6, mtime=0)).decode()}


def times(values: NDArray[np.int64]) -> dict[str, Any]:
    """Times or lengths of 0 ns or more, as whole numbers where 32 bits hold them (4.29 s)."""
    fits = not len(values) or int(values.max()) < 2**32
    return column(values.astype(np.uint32 if fits else np.float64))


def index(values: NDArray[Any]) -> dict[str, Any]:
    """Indices of 0 or more, in the fewest bytes."""
    most = int(values.max()) if len(values) else 0
    return column(values.astype(np.uint8 if most < 2**8 else np.uint16 if most < 2**16 else np.uint32))
