"""Runs at the start of every Python process under `lumos collect`, and hooks the recording into torch.optim.

When Python starts, it imports the first module `sitecustomize` on its path; `lumos collect` puts this folder first on
PYTHONPATH. A `sitecustomize` of the environment is run afterwards. A failure here is reported once and stops nothing.
"""
# This runs in every Python process of the command, so it imports as little as possible.
# ruff: noqa: PTH100, PTH118, PTH120

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from typing import Any


def _make_lumos_importable(folder: str) -> None:
    """Make this package importable where the training's environment does not have it, without the other packages around it."""
    if importlib.util.find_spec("lumos") is None:
        spec = importlib.util.spec_from_file_location("lumos", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])
        if spec is None or spec.loader is None:
            return
        module = importlib.util.module_from_spec(spec)
        sys.modules["lumos"] = module
        spec.loader.exec_module(module)


class _WhenOptimizersLoad:
    """An import finder that finds `torch.optim.optimizer` in the usual way, and installs the hook once the module has run."""

    def find_spec(self, name: str, path: Any = None, _target: Any = None) -> Any:
        if name != "torch.optim.optimizer":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            try:
                from lumos.collect.hook import install

                install(module)
            except Exception as error:  # noqa: BLE001 - nothing here may stop the training
                print(f"lumos collect: not recording: {type(error).__name__}: {error}", file=sys.stderr)

        loader.exec_module = exec_module
        return spec


def _next_sitecustomize() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    path = [folder for folder in sys.path if os.path.abspath(folder or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("LUMOS_COLLECT"):
    try:
        _make_lumos_importable(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
        sys.meta_path.insert(0, _WhenOptimizersLoad())
    except Exception as error:  # noqa: BLE001 - nothing here may stop the training
        print(f"lumos collect: not recording: {type(error).__name__}: {error}", file=sys.stderr)
_next_sitecustomize()
