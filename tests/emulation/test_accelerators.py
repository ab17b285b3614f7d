"""What a script is told about the accelerator that it is emulated on."""

from __future__ import annotations

import pytest

from lumos.emulation.accelerators import compute_capability, emulated_device
from lumos.errors import UsageError


def test_amds_accelerators_are_named_as_their_driver_names_them():
    found = emulated_device("mi300x")
    assert (found.name, found.capability, found.is_amd) == ("AMD Instinct MI300X", (9, 4), True)
    assert found.memory == pytest.approx(206_141_652_992, rel=1e-4), "as a recording of one says"
    assert (found.architecture, emulated_device("h100").architecture) == ("gfx942", "sm_90")
    assert found.workspace == 128 << 20 and not emulated_device("h100").is_amd
    assert compute_capability("mi300x") is None and compute_capability("h100") == (9, 0)
    with pytest.raises(UsageError, match="--emulate gaudi2: only NVIDIA's and AMD's"):
        emulated_device("gaudi2")
