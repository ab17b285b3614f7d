"""A small GPT of plain PyTorch, trained by AdamW: emulated as it stands, or with `--tracked` under torch's own MemTracker.

    python validation/emulated/tracked.py --tracked

MemTracker adds up tensors without data as they are asked for, without an allocator and without what libraries take; it prints its peak by
kind, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys

import torch
from torch import nn

WIDTH, LAYERS, HEADS, WORDS, TOKENS, BATCH = 1024, 12, 16, 32000, 1024, 4
STEPS = 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.joined, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.joined(self.first(x)).view(BATCH, TOKENS, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(BATCH, TOKENS, WIDTH))
        return x + self.mlp(self.second(x))


def main() -> None:
    tracked = "--tracked" in sys.argv
    torch.set_default_dtype(torch.bfloat16)
    with contextlib.ExitStack() as stack:
        tracker = None
        if tracked:
            from torch._subclasses.fake_tensor import FakeTensorMode
            from torch.distributed._tools.mem_tracker import MemTracker

            stack.enter_context(FakeTensorMode())
            tracker = MemTracker()
        device = torch.device("cpu" if tracked else "cuda")
        torch.set_default_device(device)
        model = nn.Sequential(nn.Embedding(WORDS, WIDTH), *(Block() for _ in range(LAYERS)), nn.Linear(WIDTH, WORDS, bias=False))
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        if tracker is not None:
            tracker.track_external(model, optimizer)
            stack.enter_context(tracker)
        for _ in range(STEPS):
            tokens = torch.randint(0, WORDS, (BATCH, TOKENS))
            nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
            if tracker is not None:
                tracker.reset_mod_stats()
        if tracker is not None:
            (found,) = tracker.get_tracker_snapshot("peak").values()
            print(json.dumps({str(getattr(kind, "value", kind)): size for kind, size in found.items()}))


if __name__ == "__main__":
    main()
