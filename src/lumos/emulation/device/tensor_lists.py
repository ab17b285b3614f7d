"""Operators over lists of tensors: those of optimizers (`_foreach_…`, `_fused_…`), which take many tensors in each launch.

A launch takes 320 chunks of 65,536 elements at most, from as many tensors as fit into its argument (aten/src/ATen/native/cuda/
MultiTensorApply.cuh). Lists whose types differ, or whose tensors are not dense, take one launch a tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.blocks.work import Traffic
from lumos.cost.memory_bound_model import POINTWISE, REDUCTION
from lumos.emulation.device.launch import Launch, dense, nbytes, shown_elements, tensor_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.emulation.record import Operator, Tensor

#: Elements of a chunk, chunks of a launch, and tensors of a launch by the number of lists (1 to 5).
CHUNK, CHUNKS, TENSORS = 65_536, 320, (110, 64, 48, 36, 30)
#: Lists that the fused optimizers read without writing: the gradients.
_ONLY_READ = {"_fused_adam": (1,), "_fused_adamw": (1,), "_fused_sgd": (1,), "_fused_adagrad": (1,)}
#: Operators of lists that read whole tensors and give back one value each.
_REDUCED = ("_foreach_norm", "_foreach_max")


def of_lists(name: str, operator: Operator) -> list[Launch] | None:
    """What an operator over lists of this base name launches; None where it is none."""
    if not name.startswith(("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad", "_amp_foreach_")):
        return None
    lists = [found for argument in operator.inputs if (found := tensor_list(argument))]
    # whole tensors, rather than one number each, such as the steps of an optimizer
    depth = [tensors for tensors in lists if len(tensors) == len(lists[0]) and any(shown_elements(tensor) > 1 for tensor in tensors)]
    if not depth:
        return []
    results = [found for argument in operator.outputs if (found := tensor_list(argument))]
    separate = bool(results) and results[0][0].storage != lists[0][0].storage
    moved = _traffic(name, depth)
    all_dense = all(dense(tensor) for tensors in (*depth, *(results if separate else [])) for tensor in tensors)
    alike = all_dense and len({tensor.dtype for tensors in depth for tensor in tensors}) == 1
    alone = [[(i, 1.0)] for i, tensor in enumerate(depth[0]) if shown_elements(tensor)]
    parts = chunked(depth[0], len(depth) + separate) if alike else alone
    kernel_class = REDUCTION if name in _REDUCED else POINTWISE
    label = f"multi_tensor_apply_kernel [{name}]"
    return [Launch(label, Traffic(sum(round(share * moved[i]) for i, share in part), 1, kernel_class)) for part in parts]


def chunked(tensors: Sequence[Tensor], depth: int) -> list[list[tuple[int, float]]]:
    """How the tensors of one list spread over launches, with `depth` lists: for each launch, tensors and the share of each."""
    most = TENSORS[min(depth, len(TENSORS)) - 1]
    out: list[list[tuple[int, float]]] = [[]]
    chunks = 0
    for i, tensor in enumerate(tensors):
        total = -(-shown_elements(tensor) // CHUNK)
        left = total
        while left:
            if chunks == CHUNKS or len(out[-1]) == most:
                out.append([])
                chunks = 0
            taken = min(left, CHUNKS - chunks)
            out[-1].append((i, taken / total))
            chunks += taken
            left -= taken
    return [part for part in out if part]


def _traffic(name: str, lists: Sequence[Sequence[Tensor]]) -> list[int]:
    """Bytes that each position of the lists reads and writes: a list is read; written are a new list, the first one, or all that a fused
    optimizer changes."""
    read = [sum(nbytes(tensors[i]) for tensors in lists) for i in range(len(lists[0]))]
    if name in _REDUCED:
        return read
    if name.startswith("_fused"):
        untouched = _ONLY_READ.get(name, ())
        written = [tensors for k, tensors in enumerate(lists) if k not in untouched]
    else:
        written = [lists[0]]
    if name == "_foreach_copy":
        read = [nbytes(tensors) for tensors in lists[-1]]
    elif name in ("_foreach_zero", "_foreach_fill"):
        read = [0] * len(read)
    return [r + sum(nbytes(tensors[i]) for tensors in written) for i, r in enumerate(read)]
