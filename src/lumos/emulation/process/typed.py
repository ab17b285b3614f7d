"""The old names of tensors by their type and device (`torch.cuda.FloatTensor`), which a build of torch for CPUs has no use for."""

from __future__ import annotations

from typing import Any

import torch

_DTYPES = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16, "Byte": torch.uint8,
    "Char": torch.int8, "Short": torch.int16, "Int": torch.int32, "Long": torch.int64, "Bool": torch.bool,
}  # fmt: skip


class _Typed(type):
    """The class of such names: calling one makes a tensor, and a tensor is an instance of the one of its type and device."""

    dtype: Any

    def __call__(cls, *given: Any, **_: Any) -> Any:
        """A tensor of these sizes, without values, or of the values in a sequence."""
        if len(given) == 1 and not isinstance(given[0], (int, torch.Size)):
            return torch.as_tensor(given[0], dtype=cls.dtype, device="cuda")
        return torch.empty(*(given or (0,)), dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype


def install() -> None:
    """Let the names make tensors of the emulated device, and be chosen as the default type."""
    for name, dtype in _DTYPES.items():
        known = f"torch.cuda.{name}Tensor"  # by which Tensor.type knows the class
        setattr(torch.cuda, f"{name}Tensor", _Typed(known, (), {"dtype": dtype}))
    choose = torch.set_default_tensor_type

    def set_default_tensor_type(kind: Any) -> None:
        name = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
        word = name.rpartition(".")[2].removesuffix("Tensor")
        if not name.startswith("torch.cuda.") or word not in _DTYPES:
            choose(kind)
            torch.set_default_device("cpu")
            return
        torch.set_default_dtype(_DTYPES[word])
        torch.set_default_device("cuda")

    torch.set_default_tensor_type = set_default_tensor_type
