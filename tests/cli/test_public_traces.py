"""Every verb on public recordings of other hardware gives an answer whose numbers add up, or one message."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = os.environ.get("LUMOS_TRACES")

if ROOT is None:
    pytest.skip("LUMOS_TRACES is not set: the public traces are not here", allow_module_level=True)

TRACES = [*sorted(Path(ROOT).rglob("*.json.gz")), Path(ROOT) / "dlrm-8xv100"]


@pytest.mark.parametrize("path", TRACES, ids=lambda path: str(path.relative_to(ROOT)))
def test_replay_and_breakdown_add_up(lumos, path):
    done = lumos("replay", path, "--probes", "--json")
    if done.status == 1:
        assert done.out == "" and done.err.startswith("lumos: ") and str(path) in done.err
        return
    answer = done.json
    assert done.status == 0 and answer["steps"]
    for step in answer["steps"]:
        for run in ("measured", "replayed"):
            parts = step["breakdown"][run].values()
            assert sum(parts) == step[f"{run}_ns"] and min(parts) >= 0
        assert step["kept_wait"] >= 0 and 0 <= step["unexplained_idle"] <= 1 and 0 <= step["prefix"] <= 1
        assert step["scored"] == (step["unscored_reason"] == "")
    for of in ("measured", "replayed"):
        found = lumos("breakdown", path, "--by", "stream", "--of", of, "--json").json
        for step in found["steps"]:
            assert step["idle"] is None or sum(step["idle"].values()) == step["breakdown"]["other_ns"]


@pytest.mark.parametrize("path", TRACES, ids=lambda path: str(path.relative_to(ROOT)))
@pytest.mark.parametrize("verb", ["inspect", "replay", "breakdown --by operator", "breakdown --by rank", "critical-path", "compare"])
def test_text_fits_80_columns(lumos, path, verb):
    done = lumos(*verb.split(), path, *([path] if verb == "compare" else []))
    assert done.status in (0, 1)
    assert max((len(line) for line in done.out.splitlines()), default=0) <= 80
