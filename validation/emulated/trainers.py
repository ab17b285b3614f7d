"""Train through a framework: `python trainers.py trainer|lightning|accelerate`. What a user would write, without anything of Lumos."""

from __future__ import annotations

import sys
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Texts(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, place):
        tokens = torch.arange(place, place + 32)
        return {"input_ids": tokens, "labels": tokens.clone()}


def trainer():
    import transformers as t

    model = t.GPT2LMHeadModel(t.GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=500, n_positions=64))
    with tempfile.TemporaryDirectory() as folder:
        settings = t.TrainingArguments(
            folder, per_device_train_batch_size=4, max_steps=4, logging_steps=2, report_to=[], save_strategy="no"
        )
        t.Trainer(model=model, args=settings, train_dataset=Texts()).train()


def lightning():
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))

        def training_step(self, batch, _):
            given, wanted = batch
            loss = nn.functional.cross_entropy(self.model(given), wanted)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    data = TensorDataset(torch.randn(64, 32), torch.randint(0, 4, (64,)))
    options = {"accelerator": "auto", "devices": 1, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    lightning.Trainer(max_epochs=1, **options).fit(Model(), DataLoader(data, batch_size=8))


def accelerated():
    import accelerate

    launcher = accelerate.Accelerator(gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    data = DataLoader(TensorDataset(torch.randn(64, 32), torch.randint(0, 4, (64,))), batch_size=8, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, data = launcher.prepare(model, optimizer, data)
    for given, wanted in data:
        with launcher.accumulate(model):
            loss = nn.functional.cross_entropy(model(given), wanted)
            launcher.backward(loss)
            launcher.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    {"trainer": trainer, "lightning": lightning, "accelerate": accelerated}[sys.argv[1]]()
