"""Changes of the shipped Llama on eight GPUs, against the same script emulated with them."""

from pathlib import Path

import pytest

import lumos

EXAMPLE = Path(__file__).parents[2] / "examples" / "llama-8gpu"


@pytest.fixture(scope="module")
def recorded():
    return lumos.read(EXAMPLE)


@pytest.mark.parametrize(
    ("setting", "step_ms", "peak_gb"),
    [
        ({"layers": 16}, 72.39, 5.95),  # what is outside the layers exchanges what it did
        ({"ffn": 16384}, 22.54, None),  # each layer exchanges its own weights, wherever that is called; the peak is elsewhere
        ({"micro_batch": 2}, 24.61, 4.27),
    ],
)
def test_shards_exchange_and_hold_what_the_changed_script_does(recorded, setting, step_ms, peak_gb):
    outcome = lumos.whatif(recorded, **setting).outcome
    assert 1e3 * outcome.step_time_s == pytest.approx(step_ms, rel=0.01)
    if peak_gb is not None:
        assert outcome.memory.peak_bytes / 1e9 == pytest.approx(peak_gb, rel=0.01)
