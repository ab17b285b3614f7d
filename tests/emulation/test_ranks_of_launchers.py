"""How many ranks an emulated job has where nobody says it."""

import sys

import pytest

from lumos.emulation import facade
from lumos.errors import LumosError


@pytest.mark.parametrize(
    ("words", "said", "ranks"),
    [
        ("PY -m torch.distributed.run --nproc-per-node=4 train.py", 2, 2),
        ("PY -u -m torch.distributed.run --nproc-per-node=4 train.py", None, 4),
        ("PY -W ignore /usr/bin/torchrun --nproc-per-node=4 --nnodes 2 train.py", None, 8),
        ("env X=1 torchrun --nproc-per-node 4 train.py", None, 4),
        ("PY train.py torchrun --nproc-per-node=4", None, 1),
        ("PY -m train torchrun --nproc-per-node=4", None, 1),
    ],
)
def test_the_launcher_says_it_or_there_is_one(monkeypatch, tmp_path, words, said, ranks):
    def records(launched, _):
        raise LumosError(f"asked for {launched.ranks}")

    monkeypatch.setattr(facade, "records", records)
    with pytest.raises(LumosError, match=f"^asked for {ranks}$"):
        facade.emulate(words.replace("PY", sys.executable).split(), tmp_path, "h100", ranks=said)
