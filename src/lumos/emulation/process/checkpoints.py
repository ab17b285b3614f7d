"""Checkpoints: what a script saves it may load, in this process alone; and trained models are made of their configuration where asked so.

Of a tensor without data its shape, its type and where it was are saved, beside the rest, among what the script writes apart.
A configuration is read from the folder or the cache that the script names; nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import functools
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.nn import Parameter

from lumos.collect.loading import when_loaded
from lumos.emulation.process.outside import OUTSIDE, is_own
from lumos.emulation.process.patches import TORCH, Silent

if TYPE_CHECKING:
    from lumos.emulation.process.journal import Journal

#: The mode in which tensors without data are made again, and `map_location` of each call of `torch.load` that runs.
_loads: list[tuple[Any, Any]] = []


def _reduced(tensor: Any, _: int) -> Any:
    """A tensor without data, as it is pickled: what makes it again, on the device that it was on or where it is loaded to."""
    given = str(tensor.device), tensor.requires_grad, isinstance(tensor, Parameter)
    return _made, (tuple(tensor.shape), tensor.stride(), tensor.dtype, *given)


def _made(shape: Any, stride: Any, dtype: Any, device: str, requires_grad: bool, is_parameter: bool) -> Any:
    mode, asked = _loads[-1]
    target = asked.get(device, device) if isinstance(asked, dict) else asked or device
    with mode:
        made = torch.empty_strided(shape, stride, dtype=dtype, device="cpu" if callable(target) else target)
        return Parameter(made, requires_grad) if is_parameter else made.requires_grad_(requires_grad)


class _Saved(contextlib.AbstractContextManager[Any]):
    """A file of tensors that the script has saved, as safetensors opens it. words: its names of types."""

    def __init__(self, file: Any, device: Any, words: dict[Any, str]) -> None:
        with Path(file).open("rb") as opened:  # by whose name torch would ask safetensors again
            tensors, metadata = torch.load(opened, device)
        for tensor in tensors.values():  # a part that is asked for is the tensor, which tells what is asked of a part
            tensor.get_shape, tensor.get_dtype = functools.partial(list, tensor.shape), functools.partial(words.get, tensor.dtype)
        self.get_tensor: Any = tensors.__getitem__
        self.get_slice, self.metadata = self.get_tensor, lambda: metadata
        self.keys: Any = functools.partial(list, tensors)
        self.offset_keys = self.keys

    def __exit__(self, *_: object) -> None:
        pass


def _without_python(saved: Any) -> None:
    """Let libraries that write files without Python find them apart too. saved: torch's function."""

    def tensors(module: Any) -> None:
        read, words = module.safe_open, dict[Any, str]()

        def safe_open(file: Any, framework: Any = "pt", device: Any = "cpu", **named: Any) -> Any:
            return _Saved(file, device, words) if is_own(file) else read(file, framework, device, **named)

        def writer(loaded: Any) -> None:
            words.update((dtype, word) for word, dtype in loaded._TYPES.items())
            TORCH.put(loaded, "save_file", lambda tensors, filename, metadata=None: saved((tensors, metadata), filename))

        TORCH.put(module, "safe_open", safe_open)
        when_loaded("safetensors.torch", writer)

    def texts(module: Any) -> None:
        kind, read = module.Tokenizer, module.Tokenizer.from_file
        OUTSIDE.around(kind, "save")(lambda save, text, path, *more: save(text, OUTSIDE.apart(path, {}, is_new=True), *more))
        OUTSIDE.put(kind, "from_file", staticmethod(lambda path: read(str(OUTSIDE.found(path)))))

    when_loaded("safetensors", tensors)
    when_loaded("tokenizers", texts)


def saving(journal: Journal, mode: Any) -> None:
    """Checkpoints are not saved, but apart, so that what a script has saved it may load."""
    _loads.append((mode, None))
    FakeTensor.__reduce_ex__ = _reduced
    torch.serialization.add_safe_globals([_made])

    def nothing(*_: Any, **__: Any) -> Silent:
        journal.assume("not-saved", "checkpoints are not saved")
        return Silent()  # which one that is saved meanwhile is asked whether it is done

    @OUTSIDE.around(torch, "save")
    def save(write: Any, content: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(file, io.BytesIO):
            nothing()
        with unset_fake_temporarily():
            write(content, OUTSIDE.apart(file, {}, is_new=True), *args, **kwargs)

    @OUTSIDE.around(torch, "load")
    def load(read: Any, file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not is_own(file):
            return read(file, map_location, *args, **kwargs)
        _loads.append((mode, map_location))
        try:
            with unset_fake_temporarily():
                return read(file, "cpu", *args, **kwargs)
        finally:
            _loads.pop()

    _without_python(torch.save)

    def cut(loaded: Any) -> None:
        """All ranks would write to one checkpoint, and read of each other."""
        OUTSIDE.around(loaded, "save", "async_save", "save_state_dict")(nothing)

    for module in ("torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict_saver"):
        when_loaded(module, cut)


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
    on_device = named & {"auto", "cuda", "balanced"} or any(str(device).startswith("cuda") or isinstance(device, int) for device in named)
    return model.to("cuda") if on_device else model
