"""Checkpoints: what a script saves it may load, in this process alone; and trained models are made of their configuration where asked so.

Of a tensor without data its shape, its type and where it was are kept, beside the rest of what is saved.
A configuration is read from the folder or the cache that the script names; nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import functools
import io
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.nn import Parameter
from torch.utils._pytree import tree_leaves, tree_map_only

from lumos.collect.loading import when_loaded
from lumos.emulation.process.outside import OUTSIDE, leave_unwritten, unwritten
from lumos.emulation.process.patches import TORCH

if TYPE_CHECKING:
    from lumos.emulation.process.journal import Journal


def _kept(tensor: Any) -> Any:
    """What makes a tensor without data again, on the device that it was on or where `map_location` of `torch.load` says."""
    return functools.partial(
        _made, tuple(tensor.shape), tensor.stride(), tensor.dtype, str(tensor.device), tensor.requires_grad, isinstance(tensor, Parameter)
    )


def _made(shape: Any, stride: Any, dtype: Any, device: str, requires_grad: bool, is_parameter: bool, map_location: Any) -> Any:
    place = map_location.get(device, device) if isinstance(map_location, dict) else map_location or device
    made = torch.empty_strided(shape, stride, dtype=dtype, device="cpu" if callable(place) else place)
    return Parameter(made, requires_grad) if is_parameter else made.requires_grad_(requires_grad)


#: What torch and others save without Python's files, by module.
_SAVERS = dict.fromkeys(
    ("torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict_saver"), ("save", "async_save", "save_state_dict")
) | {
    "safetensors.torch": ("save_file", "save_model"), "transformers.trainer": ("Trainer._save_checkpoint",),
    "transformers.modeling_utils": ("PreTrainedModel.save_pretrained",),
}  # fmt: skip


def saving(journal: Journal) -> None:
    """Checkpoints are not saved, but in this process, so that what a script has saved it may load."""

    def nothing(*_: Any, **__: Any) -> None:
        journal.assume("not-saved", "checkpoints are not saved")

    @OUTSIDE.around(torch, "save")
    def save(write: Any, content: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, io.BytesIO) and not any(isinstance(each, FakeTensor) for each in tree_leaves(content)):
            with unset_fake_temporarily():
                return write(content, file, *args, **kwargs)
        kept = tree_map_only(FakeTensor, _kept, content)
        if isinstance(file, io.BytesIO):
            file.kept = kept  # type: ignore[attr-defined]
        leave_unwritten(file, kept)
        return nothing()

    @OUTSIDE.around(torch, "load")
    def load(read: Any, file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if (kept := getattr(file, "kept", None) or unwritten(file)) is not None:
            return tree_map_only(functools.partial, lambda each: each(map_location), kept)
        with unset_fake_temporarily() if isinstance(file, io.BytesIO) else contextlib.nullcontext():
            return read(file, map_location, *args, **kwargs)

    def cut(loaded: Any, names: tuple[str, ...]) -> None:
        for owner, _, name in (each.rpartition(".") for each in names):
            OUTSIDE.put(getattr(loaded, owner) if owner else loaded, name, nothing)

    for module, names in _SAVERS.items():
        when_loaded(module, functools.partial(cut, names=names))


#: Arguments of transformers' `from_pretrained` that say how a model is made; others are about files, or for the configuration.
_OF_MODELS = ("dtype", "torch_dtype", "attn_implementation", "experts_implementation")


def random_weights(journal: Journal) -> None:
    """Let `from_pretrained` of transformers and `pretrained=True` of timm read no weights."""

    def noted(of: str) -> None:
        journal.assume("random-weights", f"the weights of {of} are not read: its configuration alone says what it holds")

    def transformers(module: Any) -> None:
        def from_pretrained(cls: Any, /, name: Any, *given: Any, config: Any = None, device_map: Any = None, **named: Any) -> Any:
            noted(str(name))
            made = {key: named.pop(key) for key in _OF_MODELS if key in named}
            if not hasattr(config, "to_dict"):
                config, _ = cls.config_class.from_pretrained(config or name, return_unused_kwargs=True, **named)
            made = {key: config.dtype if value == "auto" else value for key, value in made.items()}
            model = cls._from_config(config, *given, **made)
            return _placed(model.eval(), device_map)

        TORCH.put(module.PreTrainedModel, "from_pretrained", classmethod(from_pretrained))

    def timm(module: Any) -> None:
        TORCH.put(module, "load_pretrained", lambda *_, **__: noted("timm's model"))

    when_loaded("transformers.modeling_utils", transformers)
    when_loaded("timm.models._builder", timm)


def _placed(model: Any, device_map: Any) -> Any:
    """A model on the device that a map names: there is one for each process."""
    named = set(device_map.values()) if isinstance(device_map, dict) else {device_map}
    on_device = named & {"auto", "cuda", "balanced"} or any(str(each).startswith("cuda") or isinstance(each, int) for each in named)
    return model.to("cuda") if on_device else model
