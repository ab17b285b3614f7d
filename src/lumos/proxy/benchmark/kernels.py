"""Compiled kernels: those that torch.compile made for the job, launched from their sources beside this file."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
from typing import TYPE_CHECKING, Any

import torch

from lumos.proxy.benchmark.device import cuda
from lumos.proxy.benchmark.recording import Node, Ref
from lumos.proxy.benchmark.schemas import NotRunnable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: How a source is called in this folder.
SOURCE_NAME = "kernel-{}"

#: Functions of torch's inductor that give a grid, up to torch 2.6. Later sources know theirs themselves.
GRIDS = ("grid", "split_scan_grid")

#: What loading and compiling a source can raise, beside what triton itself does.
NOT_LOADED = (
    *(ImportError, SyntaxError, NameError, AttributeError, LookupError),
    *(TypeError, ValueError, AssertionError, RuntimeError, OSError),
)


class Kernels:
    """The sources of compiled kernels. hashes: SHA-256 of each, by the name of its file. folder: where they lie."""

    def __init__(self, hashes: dict[str, str], folder: Path, device: torch.device) -> None:
        self.hashes, self.folder, self.device = hashes, folder, device
        self.loaded: dict[tuple[str, str], Any] = {}

    def bind(self, node: Node, scale: float) -> tuple[Callable[..., Any], list[Any]]:
        """What launches a kernel as recorded, and its arguments, with `Ref` for tensors. Raises NotRunnable."""
        assert node.compiled is not None
        file = node.compiled["file"]
        if file not in self.hashes:
            raise NotRunnable("a compiled kernel whose source was not taken along")
        if self.device.type != "cuda":
            raise NotRunnable("a compiled kernel, which needs a GPU")
        if scale != 1:
            raise NotRunnable("a compiled kernel, made for other sizes than these scaled ones")
        if not node.inputs or any(value is None for value in node.inputs):
            raise NotRunnable("a compiled kernel whose arguments were not recorded")
        if importlib.util.find_spec("triton") is None:
            raise NotRunnable("a compiled kernel, and triton is not installed")
        if (file, node.name) not in self.loaded:
            self.loaded[file, node.name] = self.load(file, node.name)
        launch = launcher(self.loaded[file, node.name], node.compiled["grid"])
        return launch, [plain(value) for value in node.inputs]

    def load(self, file: str, name: str) -> Any:
        """The kernel of that name in a source, to be compiled for the GPU of this process."""
        path = self.folder / SOURCE_NAME.format(file)
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != self.hashes[file]:
            raise NotRunnable("a compiled kernel whose source is not the one that was taken along")
        errors = not_loaded()
        try:
            spec = importlib.util.spec_from_file_location(path.stem.replace("-", "_"), path)
            if spec is None or spec.loader is None:
                raise ImportError(path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            kernel = getattr(module, name)
            here = device_properties(self.device)
            kernel.device_props = here
            kernel.triton_meta.update(device=here.index, device_type=here.type)
        except errors as error:
            raise NotRunnable(f"a compiled kernel whose source did not load: {type(error).__name__}: {error}") from error
        return kernel


def launcher(kernel: Any, grid: list[Any] | None) -> Callable[..., Any]:
    """A function that launches a kernel of torch's inductor on the current stream. Raises NotRunnable."""
    options = {}
    if "grid" in inspect.signature(kernel.run).parameters:
        if grid is None or grid[0] not in GRIDS:
            raise NotRunnable("a compiled kernel whose grid was not recorded, of a torch that is newer than this one")
        options["grid"] = grid_function(grid[0])(*grid[1])
    elif grid is not None:
        raise NotRunnable("a compiled kernel of a torch that is older than this one")
    errors = not_loaded()

    def launch(*arguments: Any) -> None:
        try:
            kernel.run(*arguments, stream=cuda.current_stream().cuda_stream, **options)
        except errors as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    return launch


def grid_function(name: str) -> Callable[..., Any]:
    from torch._inductor.runtime import triton_heuristics

    found: Callable[..., Any] = getattr(triton_heuristics, name)
    return found


def device_properties(device: torch.device) -> Any:
    """What inductor compiles for: a source names the GPU on which it was recorded instead."""
    from torch._inductor.runtime.hints import DeviceProperties

    create: Callable[[torch.device], Any] = DeviceProperties.create
    return create(torch.device(device.type, device.index or 0))


def not_loaded() -> tuple[type[Exception], ...]:
    """What loading, compiling and launching a source can raise, with what triton's compiler raises."""
    try:
        errors = importlib.import_module("triton.errors")
    except ImportError:
        return NOT_LOADED
    return (*NOT_LOADED, errors.TritonError)


def plain(value: Any) -> Any:
    """A recorded argument of a kernel: `Ref` for a tensor, or a number."""
    if isinstance(value, dict):
        return Ref(value["tensor"]) if "tensor" in value else float(value["float"])
    return value
