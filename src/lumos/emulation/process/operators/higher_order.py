"""Functions of torch that take functions, or work out shapes of whole distributed tensors, taught about the emulation.

`flex_attention` stands for attention by the kernel that torch would choose without a mask. What torch works out about a whole tensor, of
which each rank holds a part, is no work of the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lumos.collect.loading import when_loaded

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.emulation.process.journal import Journal

def teach_functions(journal: Journal, mode: Any) -> None:
    """Teach them the emulation. mode: the one that the script runs in."""
    when_loaded("torch.nn.attention.flex_attention", lambda module: _flexible(module, journal))
    when_loaded("torch._prims.rng_prims", lambda module: _distributed(module, type(mode)))
    when_loaded("torch.distributed.tensor._sharding_prop", lambda module: _sharded(module, mode.hidden))


def _distributed(module: Any, kind: type) -> None:
    if hasattr(module, "run_dtensor_rng_op"):  # earlier versions of torch call the operator itself
        module.run_dtensor_rng_op.py_impl(kind)(_random)


def _random(mode: Any, _: Any, __: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    """The operator on this rank's part of a distributed tensor, between two offsets of the generator, which draws no numbers here."""
    with mode:
        return operator(*args, **kwargs)


def _flexible(module: Any, journal: Journal) -> None:
    def flex_attention(
        query: Any, key: Any, value: Any, score_mod: Any = None, block_mask: Any = None, scale: float | None = None,
        enable_gqa: bool = False, return_lse: bool = False, kernel_options: Any = None, *, return_aux: Any = None,
    ) -> Any:  # fmt: skip
        del kernel_options
        if score_mod is not None or block_mask is not None:
            journal.assume(
                "flex-attention", "flex_attention takes the time of attention without a mask: what its functions hide is not known"
            )
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scale, enable_gqa=enable_gqa)
        sums = query.new_empty(query.shape[:-1], dtype=torch.float32) if return_lse or return_aux is not None else None
        if return_aux is not None:
            wanted = {name: sums for name in ("lse", "max_scores") if getattr(return_aux, name)}
            return out, module.AuxOutput(**wanted)
        return (out, sums) if return_lse else out

    module.flex_attention = flex_attention


def _sharded(module: Any, hidden: Callable[[Callable[[], Any]], Any]) -> None:
    shape_of_whole = module.ShardingPropagator._propagate_tensor_meta_non_cached
    module.ShardingPropagator._propagate_tensor_meta_non_cached = lambda *args, **kwargs: hidden(lambda: shape_of_whole(*args, **kwargs))
