"""Two models of images, written anew as the recordings of `vgg13-h100` and `resnet-ddp-a100` show them, and trained for ever.

    python vision.py vgg13
    torchrun --nproc-per-node 2 vision.py resnet50
"""

from __future__ import annotations

import itertools
import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def vgg13() -> nn.Module:
    """Ten convolutions, two after every halving, and three linear layers."""
    widths, layers = (3, 64, 128, 256, 512, 512), []
    for before, after in itertools.pairwise(widths):
        for inputs in (before, after):
            layers += [nn.Conv2d(inputs, after, 3, padding=1), nn.ReLU(inplace=True)]
        layers.append(nn.MaxPool2d(2, 2))
    linear = [layer for size in (25088, 4096) for layer in (nn.Linear(size, 4096), nn.ReLU(True), nn.Dropout())]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *linear, nn.Linear(4096, 1000))


class Bottleneck(nn.Module):
    """Three convolutions, of which the middle one is narrower, beside what they are added to."""

    def __init__(self, inputs: int, inner: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(inputs, inner, 1, bias=False), nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.third = nn.Conv2d(inner, 4 * inner, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in (inner, inner, 4 * inner))
        around = nn.Sequential(nn.Conv2d(inputs, 4 * inner, 1, stride, bias=False), nn.BatchNorm2d(4 * inner))
        self.around = around if stride > 1 or inputs != 4 * inner else nn.Identity()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.norms[0](self.first(x)))
        out = self.norms[2](self.third(self.relu(self.norms[1](self.second(out)))))
        out += self.around(x)
        return self.relu(out)


def resnet50() -> nn.Module:
    """Sixteen of them behind one convolution, in four widths."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, 64 << stage, 2 if stage and not block else 1))
            inputs = 256 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(2048, 1000))


def main() -> None:
    """Train for ever."""
    if sys.argv[1] == "vgg13":
        model = vgg13().cuda()
        batch, optimizer, targets = 512, torch.optim.Adam(model.parameters()), torch.zeros(512, dtype=torch.int64, device="cuda")
    else:
        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        model = DistributedDataParallel(resnet50().cuda())
        batch, optimizer = 128, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        targets = torch.zeros(128, 1000, device="cuda").softmax(1)  # shares of classes, as the recorded loss shows
    images, loss_of = torch.rand(batch, 3, 224, 224, device="cuda"), nn.CrossEntropyLoss()
    while True:
        optimizer.zero_grad()
        loss_of(model(images), targets).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
