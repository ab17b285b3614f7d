"""An ordinary small training script, which knows nothing of Lumos: a transformer learns to continue lines of numbers.

    python examples/train_small.py [--fixed] [--layers N] [--width N] [--batch N] [--sgd] [--recompute]

It trains on a GPU where there is one and on the CPU otherwise.
docs/first-hour.md records it, finds what to fix, and asks what a change would bring.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

VOCABULARY, LENGTH, STEPS = 512, 64, 20


class Lines(Dataset[torch.Tensor]):
    """Lines of numbers that count upwards from a random start. Each is made when it is asked for: number by number, or at once."""

    def __init__(self, number: int, at_once: bool) -> None:
        self.number, self.at_once = number, at_once

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> torch.Tensor:
        start = int(torch.randint(VOCABULARY, ()))
        if self.at_once:
            return torch.arange(start, start + LENGTH + 1) % VOCABULARY
        return torch.stack([torch.tensor((start + position) % VOCABULARY) for position in range(LENGTH + 1)])


class Model(nn.Module):
    """A transformer that predicts the next number."""

    def __init__(self, layers: int, width: int, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        hidden = self.embedding(tokens)
        for layer in self.layers:
            options = {"src_mask": mask, "is_causal": True}
            hidden = checkpoint(layer, hidden, use_reentrant=False, **options) if self.recompute else layer(hidden, **options)
        return self.head(hidden)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--fixed", action="store_true", help="make the lines in one operator each")
    for name, default in (("layers", 2), ("width", 128), ("batch", 16)):
        arguments.add_argument(f"--{name}", type=int, default=default)
    for name in ("sgd", "recompute"):
        arguments.add_argument(f"--{name}", action="store_true")
    asked = arguments.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Model(asked.layers, asked.width, asked.recompute).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2) if asked.sgd else torch.optim.AdamW(model.parameters(), lr=1e-3)
    for tokens in DataLoader(Lines(asked.batch * STEPS, asked.fixed), batch_size=asked.batch):
        tokens = tokens.to(device)
        scores = model(tokens[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("trained")


if __name__ == "__main__":
    main()
