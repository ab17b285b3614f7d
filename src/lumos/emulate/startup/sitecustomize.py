"""Runs at the start of every Python process of an emulated script, and takes torch over when it has been imported.

A `sitecustomize` of the environment is run afterwards.
"""
# This runs in every Python process of the command, so it imports as little as possible.
# ruff: noqa: PTH100, PTH120

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from typing import Any


class _WhenTorchLoads:
    """An import finder that finds `torch` in the usual way, and begins the emulation once the package has run."""

    def find_spec(self, name: str, path: Any = None, _target: Any = None) -> Any:
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            sys.meta_path.remove(self)  # not before: who only asks whether torch is there, finds it and does not load it
            run(module)
            from lumos.emulate.process.start import begin

            begin()

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


if os.environ.get("LUMOS_EMULATE"):
    sys.meta_path.insert(0, _WhenTorchLoads())
_next_sitecustomize()
