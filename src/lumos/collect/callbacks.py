"""Recording through a callback of a training framework.

A framework is imported only when its callback is made.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lumos.collect.window import profile
from lumos.errors import LumosError

if TYPE_CHECKING:
    import os


def lightning(folder: str | os.PathLike[str], steps: int = 3, warmup: int = 2, **options: Any) -> Any:
    """A PyTorch Lightning callback: `Trainer(callbacks=[lumos.collect.lightning("out/")])`.

    folder, steps, warmup, options: as of `profile`. A step is an optimizer step: accumulated batches count as one. Raises LumosError where
    Lightning is not installed.
    """
    base = _first_class("Callback", ("lightning.pytorch", "pytorch_lightning"), "pip install lightning")

    class LumosCallback(base):  # type: ignore[misc, valid-type]
        """Opens the recording with the training, and ends a step with every optimizer step."""

        def __init__(self) -> None:
            super().__init__()
            self.recording = profile(folder, steps, warmup, **options)
            self._steps = 0

        def on_train_start(self, trainer: Any, *_: Any) -> None:
            self._steps = trainer.global_step
            self.recording.__enter__()

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step > self._steps:
                self._steps = trainer.global_step
                self.recording.step()

        def on_train_end(self, *_: Any) -> None:
            self.recording.__exit__(None, None, None)

        on_exception = on_train_end  # a recording that is closed already stays as it is

    return LumosCallback()


def hugging_face(folder: str | os.PathLike[str], steps: int = 3, warmup: int = 2, **options: Any) -> Any:
    """A Hugging Face Trainer callback: `Trainer(…, callbacks=[lumos.collect.hugging_face("out/")])`.

    folder, steps, warmup, options: as of `profile`. A step is an optimizer step. Raises LumosError where transformers is not installed.
    """
    base = _first_class("TrainerCallback", ("transformers",), "pip install transformers")

    class LumosCallback(base):  # type: ignore[misc, valid-type]
        """Opens the recording with the training, and ends a step with every optimizer step."""

        def __init__(self) -> None:
            self.recording = profile(folder, steps, warmup, **options)

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.recording.__enter__()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.recording.step()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.recording.__exit__(None, None, None)

    return LumosCallback()


def _first_class(name: str, modules: tuple[str, ...], install: str) -> Any:
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except ModuleNotFoundError:
            continue
    raise LumosError(f"this callback needs {' or '.join(modules)}, which is not installed: {install}")
