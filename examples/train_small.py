"""An ordinary small training script, which knows nothing of Lumos: a transformer learns to continue lines of numbers.

    python examples/train_small.py [--fixed]

It trains on a GPU where there is one and on the CPU otherwise.
docs/first-hour.md records it, finds what to fix, and asks what a change would bring.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

VOCABULARY, LENGTH, WIDTH, BATCH, STEPS = 512, 64, 128, 16, 20


class Lines(Dataset[torch.Tensor]):
    """Lines of numbers that count upwards from a random start. Each is made when it is asked for: number by number, or at once."""

    def __init__(self, at_once: bool) -> None:
        self.at_once = at_once

    def __len__(self) -> int:
        return BATCH * STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        start = int(torch.randint(VOCABULARY, ()))
        if self.at_once:
            return torch.arange(start, start + LENGTH + 1) % VOCABULARY
        return torch.stack([torch.tensor((start + position) % VOCABULARY) for position in range(LENGTH + 1)])


class Model(nn.Module):
    """A transformer of two layers that predicts the next number."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--fixed", action="store_true", help="make the lines in one operator each")
    lines = Lines(at_once=arguments.parse_args().fixed)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for tokens in DataLoader(lines, batch_size=BATCH):
        tokens = tokens.to(device)
        scores = model(tokens[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("trained")


if __name__ == "__main__":
    main()
