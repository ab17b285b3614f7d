"""Every verb on public recordings of other hardware gives a text that a terminal has room for, or one message."""

import os
from pathlib import Path

import pytest

ROOT = os.environ.get("LUMOS_TRACES")

if ROOT is None:
    pytest.skip("LUMOS_TRACES is not set: the public traces are not here", allow_module_level=True)

TRACES = [*sorted(Path(ROOT).rglob("*.json.gz")), Path(ROOT) / "dlrm-8xv100"]


@pytest.mark.slow
@pytest.mark.parametrize("path", TRACES, ids=lambda path: str(path.relative_to(ROOT)))
@pytest.mark.parametrize("verb", ["inspect", "replay", "breakdown --by operator", "breakdown --by rank", "critical-path", "compare"])
def test_text_fits_80_columns(lumos, path, verb):
    done = lumos(*verb.split(), path, *([path] if verb == "compare" else []))
    assert done.status in (0, 1)
    assert max((len(line) for line in done.out.splitlines()), default=0) <= 80
