"""Profiler options are found by trying them, independently of torch's version."""

from types import SimpleNamespace
from typing import Any

from lumos.collect.window import experimental_config


def torch_that_knows(*options: str) -> Any:
    class Config:
        def __init__(self, **given: bool) -> None:
            if unknown := set(given) - set(options):
                raise TypeError(f"incompatible constructor arguments: {unknown}")
            self.given = given

    return SimpleNamespace(_C=SimpleNamespace(_profiler=SimpleNamespace(_ExperimentalConfig=Config)))


def test_each_option_is_asked_for_where_this_torch_has_it_and_none_is_needed() -> None:
    for option in ("enable_cuda_sync_events", "trace_only"):
        assert experimental_config(torch_that_knows(option)).given == {option: True}
    assert experimental_config(torch_that_knows()).given == {}
    assert experimental_config(SimpleNamespace(_C=SimpleNamespace())) is None
