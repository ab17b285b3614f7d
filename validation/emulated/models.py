"""Train a small model for a few steps: `python models.py NAME`. What a user would write, without anything of Lumos."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, TOKENS, WORDS, WIDTH = 2, 32, 500, 64


def mlp():
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(128), nn.Linear(128, 10))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, images):
        return self.head(self.body(images).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.network = nn.LSTM(WIDTH, 128, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(128, WORDS)

    def forward(self, tokens):
        return self.head(self.network(self.words(tokens))[0])


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.network = nn.GRU(WIDTH, 96, bidirectional=True)
        self.head = nn.Linear(192, WORDS)

    def forward(self, tokens):
        return self.head(self.network(self.words(tokens).transpose(0, 1))[0].transpose(0, 1))


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 16, 4, 2, 1), nn.GroupNorm(4, 16), nn.SiLU(), nn.MaxPool2d(2))
        self.up = nn.Sequential(nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.Tanh(), nn.Upsample(scale_factor=2), nn.Conv2d(8, 10, 1))

    def forward(self, images):
        return self.up(self.down(images)).amax((2, 3))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        query, key, value = (each.unflatten(-1, (4, -1)).transpose(1, 2) for each in self.mixed(self.first(x)).chunk(3, -1))
        x = x + self.out(functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.wide(self.second(x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def images_and_classes():
    return torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))


def rows_and_classes():
    return torch.randn(32, 64), torch.randint(0, 10, (32,))


def words():
    tokens = torch.randint(0, WORDS, (BATCH, TOKENS))
    return tokens, tokens


OWN = {
    "mlp": (mlp, rows_and_classes),
    "cnn": (Convolutions, images_and_classes),
    "lstm": (Recurrent, words),
    "transformer": (Transformer, words),
    "gru": (Gated, words),
    "autoencoder": (Autoencoder, images_and_classes),
}


def hugging_face(name):
    import transformers as t

    if name == "gpt2":
        return t.GPT2LMHeadModel(t.GPT2Config(n_layer=2, n_embd=WIDTH, n_head=4, vocab_size=WORDS, n_positions=WIDTH))
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    return t.BertForMaskedLM(t.BertConfig(**sizes, vocab_size=WORDS))


def loss_of(name, model):
    given, wanted = (each.to(DEVICE) for each in (OWN[name][1] if name in OWN else words)())
    if name not in OWN:
        return model(input_ids=given, labels=wanted.clone()).loss
    return functional.cross_entropy(model(given).flatten(0, -2), wanted.flatten())


def main(name):
    model = (OWN[name][0]() if name in OWN else hugging_face(name)).to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        loss = loss_of(name, model)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(step, loss.item())


if __name__ == "__main__":
    main(sys.argv[1])
