"""The callbacks of training frameworks: with the frameworks where they are installed, else with substitutes for them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import lumos.collect
from lumos.errors import LumosError

torch = pytest.importorskip("torch", reason="torch is not installed, and the collector records with its profiler")


@pytest.fixture
def frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both frameworks, reduced to the base class of their callbacks."""
    for name, base in (("lightning.pytorch", "Callback"), ("transformers", "TrainerCallback")):
        module = ModuleType(name)
        setattr(module, base, type(base, (), {}))
        monkeypatch.setitem(sys.modules, name, module)


def work() -> None:
    weight = torch.ones(8, 8, requires_grad=True)
    (weight @ weight).sum().backward()


def test_lightning_steps_with_the_optimizer_and_not_with_every_batch(frameworks: None, tmp_path: Path) -> None:
    callback = lumos.collect.lightning(tmp_path, steps=1, warmup=1)
    trainer = SimpleNamespace(global_step=0)
    callback.on_train_start(trainer, None)
    for batch in range(8):
        work()
        trainer.global_step = (batch + 1) // 2  # two batches are accumulated
        callback.on_train_batch_end(trainer, None, None, None, batch)
    callback.on_train_end(trainer, None)
    assert callback.recording._done == 4
    assert (tmp_path / "rank0.json.gz").is_file()


def test_lightning_closes_the_recording_when_the_training_fails(frameworks: None, tmp_path: Path) -> None:
    callback = lumos.collect.lightning(tmp_path, steps=5, warmup=1)
    trainer = SimpleNamespace(global_step=0)
    callback.on_train_start(trainer, None)
    for step in (1, 2):
        work()
        trainer.global_step = step
        callback.on_train_batch_end(trainer, None, None, None, step)
    callback.on_exception(trainer, None, RuntimeError())
    callback.on_train_end(trainer, None)  # not closed twice
    assert (tmp_path / "rank0.json.gz").is_file()


def test_hugging_face_steps_with_the_optimizer(frameworks: None, tmp_path: Path) -> None:
    callback = lumos.collect.hugging_face(tmp_path, steps=1, warmup=1)
    callback.on_train_begin(None, None, None)
    for _ in range(3):
        work()
        callback.on_step_end(None, None, None)
    callback.on_train_end(None, None, None)
    assert callback.recording.path == tmp_path / "rank0.json.gz"


def test_an_absent_framework_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning.pytorch", "pytorch_lightning", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(LumosError, match="pip install lightning"):
        lumos.collect.lightning(tmp_path)
    with pytest.raises(LumosError, match="pip install transformers"):
        lumos.collect.hugging_face(tmp_path)
