"""Compiled kernels: those that torch.compile made for the job, launched from their sources beside this file (torch 2.7 and later)."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

cuda: Any = torch.cuda


class Kernels:
    """The sources of compiled kernels. hashes: SHA-256 of each, by the name of its file."""

    def __init__(self, hashes: dict[str, str], device: torch.device, folder: Path | None = None) -> None:
        self.hashes, self.device, self.folder = hashes, device, folder or Path(__file__).parent
        self.loaded: dict[tuple[str, str], Any] = {}

    def bind(self, file: str, name: str) -> Callable[..., Any]:
        """What launches a kernel on the current stream. Raises LookupError with what is missing, or what its source raises."""
        if self.device.type != "cuda":
            raise LookupError("a compiled kernel needs a GPU")
        if (file, name) not in self.loaded:
            self.loaded[file, name] = self.load(file, name)
        kernel = self.loaded[file, name]
        not_compiled = importlib.import_module("triton.errors").TritonError

        def launch(*arguments: Any) -> None:
            try:
                kernel.run(*arguments, stream=cuda.current_stream().cuda_stream)
            except not_compiled as error:
                raise RuntimeError(f"{type(error).__name__}: {error}") from error

        return launch

    def load(self, file: str, name: str) -> Any:
        """The kernel of that name in a source, to be compiled for the GPU of this process: the source names that of the recording."""
        path = self.folder / f"kernel-{file}"
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != self.hashes.get(file):
            raise LookupError("the source of a compiled kernel is not one that was taken along")
        spec = importlib.util.spec_from_file_location(path.stem.replace("-", "_"), path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        kernel = getattr(module, name)
        kernel.device_props = here = device_properties(self.device)
        kernel.triton_meta.update(device=here.index, device_type=here.type)
        return kernel


def device_properties(device: torch.device) -> Any:
    from torch._inductor.runtime.hints import DeviceProperties

    create: Callable[[torch.device], Any] = DeviceProperties.create
    return create(device)
