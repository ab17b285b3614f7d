"""Models made of their configuration alone where a script asks for trained ones: what their weights are changes nothing that is emulated.

A configuration is read from the folder or the cache that the script names; nothing is downloaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumos.collect.loading import when_loaded
from lumos.emulation.process.patches import TORCH

if TYPE_CHECKING:
    from lumos.emulation.process.journal import Journal

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
