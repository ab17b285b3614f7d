"""Functions of torch that take functions, are compiled, or work out shapes of whole distributed tensors, taught about the emulation.

`flex_attention` stands for attention by the kernel that torch would choose without a mask. What a script compiles runs operator by
operator, inside ranges from which the kernels of the compiled code follow. What torch works out about a whole tensor, of which each rank
holds a part, is no work of the device.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch._C._profiler import _RecordFunctionFast

from lumos.collect.loading import when_loaded
from lumos.emulation.record import REGION_PREFIX

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


def compile_ranges(journal: Journal) -> None:
    """Put a range around every call of a function or module that the script compiles, while the journal records."""
    count = 0

    def ranged(function: Callable[..., Any]) -> Callable[..., Any]:
        nonlocal count
        name = f"{REGION_PREFIX}{count}/0"
        count += 1
        journal.assume("fused-by-rule", "what torch.compile fuses is known by rule: its compiler does not run here")

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if not journal.recording:
                return function(*args, **kwargs)
            with _RecordFunctionFast(name):
                return function(*args, **kwargs)

        return run

    def compiled(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda later: compiled(later, **options)
        if isinstance(model, torch.nn.Module):
            compiled_module(model)
            return model
        return ranged(model)

    def compiled_module(module: Any, *_: Any, **__: Any) -> None:
        module.forward = ranged(module.forward)

    torch.compile = compiled
    torch.nn.Module.compile = compiled_module
