"""Runs at the start of every Python process under `lumos collect`, and lets Lumos in once the script has imported torch.

When Python starts, it imports the first module `sitecustomize` on its path; `lumos collect` puts this folder first on PYTHONPATH. A
recording is hooked into torch's optimizers: a failure there is reported once and stops nothing. An emulation (`--emulate`) takes torch
over, and the world outside is cut off before anything else runs: a failure there stops the script, which would otherwise run for real. A
`sitecustomize` of the environment is run afterwards.
"""
# This runs in every Python process of the command, so it imports as little as possible.
# ruff: noqa: PTH100, PTH118, PTH120

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from typing import Any


def _record(optimizers: Any) -> None:
    try:
        from lumos.collect.hook import install

        install(optimizers)
    except Exception as error:  # noqa: BLE001 - nothing here may stop the training
        _not_recording(error)


def _not_recording(error: Exception) -> None:
    print(f"lumos collect: not recording: {type(error).__name__}: {error}", file=sys.stderr)


def _emulate(_torch: Any) -> None:
    from lumos.emulation.process.versions import served

    with served():
        from lumos.emulation.process.start import begin

        begin()


def _make_lumos_importable(folder: str) -> None:
    """Make this package importable where the training's environment does not have it, without the other packages around it."""
    if importlib.util.find_spec("lumos") is None:
        spec = importlib.util.spec_from_file_location("lumos", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])
        if spec is None or spec.loader is None:
            return
        module = importlib.util.module_from_spec(spec)
        sys.modules["lumos"] = module
        spec.loader.exec_module(module)


def _alone(file: str) -> Any:
    """A module of Lumos without the packages around it, which a process that never imports torch has no use for."""
    spec = importlib.util.spec_from_file_location("_lumos_alone", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _next_sitecustomize() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    path = [folder for folder in sys.path if os.path.abspath(folder or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if os.environ.get("LUMOS_COLLECT"):
    try:
        _make_lumos_importable(_ROOT)
        _alone(os.path.join(_ROOT, "collect", "loading.py")).when_loaded("torch.optim.optimizer", _record)
    except Exception as error:  # noqa: BLE001 - nothing here may stop the training
        _not_recording(error)
if os.environ.get("LUMOS_EMULATE"):
    _make_lumos_importable(_ROOT)
    from lumos.collect.loading import when_loaded
    from lumos.emulation.process.outside import OUTSIDE

    OUTSIDE.cut()
    when_loaded("torch", _emulate)
_next_sitecustomize()
