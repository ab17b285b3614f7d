"""A loop that is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import lumos.collect


def train(recording: lumos.collect.Recording, steps: int) -> None:
    import torch

    weight = torch.ones(16, 16, requires_grad=True)
    for _ in range(steps):
        (weight @ weight).sum().backward()
        recording.step()
