"""The callbacks of training frameworks: with the frameworks where they are installed, else with substitutes for them."""

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


def steps_of(path: Path) -> list[str]:
    from lumos.trace import read

    (trace,) = read(path).traces
    return sorted({trace.strings[i] for i in trace.names_of(trace.named(lambda name: name.startswith("ProfilerStep#")))})


@pytest.mark.filterwarnings("ignore")  # of the framework about itself
def test_lightnings_own_trainer_records_with_one_more_argument(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.Linear(8, 8)

        def training_step(self, batch, index):
            return self.weights(batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    callback = lumos.collect.lightning(tmp_path, steps=2, warmup=1)
    trainer = lightning.Trainer(max_steps=6, accelerator="cpu", devices=1, accumulate_grad_batches=2, callbacks=[callback], **quiet)
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(64, 8), batch_size=2))
    assert steps_of(tmp_path) == ["ProfilerStep#1", "ProfilerStep#2"] and callback.recording._done == 6


@pytest.mark.filterwarnings("ignore")  # of the framework about itself
def test_hugging_faces_own_trainer_records_with_one_more_argument(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed, which transformers trains with")
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 16, "n_positions": 8, "bos_token_id": 1, "eos_token_id": 1}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    row = {"input_ids": torch.arange(8), "labels": torch.arange(8)}
    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path / "model"), max_steps=4, **quiet)
    callback = lumos.collect.hugging_face(tmp_path / "out", steps=2, warmup=1)
    transformers.Trainer(model=model, args=arguments, train_dataset=[row] * 64, callbacks=[callback]).train()
    assert steps_of(tmp_path / "out") == ["ProfilerStep#1", "ProfilerStep#2"]


def test_one_line_before_any_loop_records_by_the_steps_of_its_optimizer(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(8, 8))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
    before = set(hooks)
    try:
        lumos.collect.on_optimizer_steps(tmp_path, steps=2, warmup=1, wait=1)
        for _ in range(6):
            (weight @ weight).sum().backward()
            optimizer.step()
    finally:
        for added in set(hooks) - before:
            del hooks[added]
    assert steps_of(tmp_path) == ["ProfilerStep#2", "ProfilerStep#3"]
