"""The closed sets of the field, each once."""

from __future__ import annotations

#: Precision families and the types that carry them: (multiplications, activations in memory).
PRECISIONS = {"fp32": ("fp32", 4), "tf32": ("tf32", 4), "fp16": ("fp16", 2), "bf16": ("bf16", 2), "fp8": ("fp8", 2)}
