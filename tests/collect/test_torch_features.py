"""Profiler options are found by trying them, independently of torch's version."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lumos.collect.torch_features import experimental_config


def torch_that_knows(*options: str) -> Any:
    class Config:
        def __init__(self, **given: bool) -> None:
            if unknown := set(given) - set(options):
                raise TypeError(f"incompatible constructor arguments: {unknown}")
            self.given = given

    return SimpleNamespace(_C=SimpleNamespace(_profiler=SimpleNamespace(_ExperimentalConfig=Config)))


def test_asks_for_cuda_sync_events_where_this_torch_has_them() -> None:
    assert experimental_config(torch_that_knows("enable_cuda_sync_events")).given == {"enable_cuda_sync_events": True}


def test_each_option_is_probed_alone() -> None:
    assert experimental_config(torch_that_knows("trace_only")).given == {"trace_only": True}


def test_a_torch_without_any_of_them_still_records() -> None:
    assert experimental_config(torch_that_knows()).given == {}
    assert experimental_config(SimpleNamespace(_C=SimpleNamespace())) is None
