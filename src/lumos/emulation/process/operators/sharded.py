"""Distributed tensors: what torch works out about a whole tensor, of which each rank holds a part, is no work of the device.

Before an operator first runs on the parts, torch runs it once on tensors without data of the whole shape, to learn the shape of the
whole result. It does so in the mode that is active, which here is the emulation's own: without more ado, a rank would count the
memory and the kernels of all ranks together.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from lumos.emulation.process.loading import when_loaded

if TYPE_CHECKING:
    from collections.abc import Callable


def install(hidden: Callable[[Callable[[], Any]], Any]) -> None:
    """Leave that out of the record. hidden: runs a function outside of the record and returns its result."""

    def replace(module: Any) -> None:
        propagator = module.ShardingPropagator
        shape_of_whole = propagator._propagate_tensor_meta_non_cached

        @functools.wraps(shape_of_whole)
        def outside(*args: Any, **kwargs: Any) -> Any:
            return hidden(lambda: shape_of_whole(*args, **kwargs))

        propagator._propagate_tensor_meta_non_cached = outside

    when_loaded("torch.distributed.tensor._sharding_prop", replace)
