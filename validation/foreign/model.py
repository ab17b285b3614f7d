"""What the functions of `models` and `drawn_models` return."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Model:
    """A module, and two functions: of the batch of one microbatch, and of the loss of the module, or what it is wrapped in, on a batch.

    around: what its package needs while a step runs.
    """

    module: nn.Module
    batch: Callable[[], Batch]
    loss: Callable[[Any, Batch], Tensor]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext


def tokens(rows: int, length: int, vocabulary: int = 1000) -> Tensor:
    """Random tokens, int64[rows, length]."""
    return torch.randint(0, vocabulary, (rows, length))


def language_model(module: nn.Module, micro_batch: int, seq: int, **more: Any) -> Model:
    """A model of `transformers` that computes its own loss on the tokens that it reads. more: other arguments of its forward pass."""
    return Model(module, lambda: (tokens(micro_batch, seq),), lambda m, b: m(input_ids=b[0], labels=b[0], **more).loss)
