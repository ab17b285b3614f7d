"""What differs between versions of torch: where functions stand in its tables, what kernels call, and which versions are refused."""

import pytest
from tests.emulation.emulated_scripts import written

from lumos.emulation.accelerators import emulated_device
from lumos.emulation.run import Launched, records
from lumos.errors import LumosError


@pytest.mark.parametrize(("version", "problem"), [
    ("2.4.1+cu121", r"torch 2\.4\.1\+cu121 is too old to be emulated with"),
    ("3.0.0", r"torch 3\.0\.0 is laid out otherwise .*no attribute 'version'"),
])  # fmt: skip
def test_a_torch_that_cannot_be_served_is_named_with_those_that_can_and_the_script_does_not_run(tmp_path, version, problem):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(f"__version__ = {version!r}")
    command = written(tmp_path, "import pathlib, torch\npathlib.Path(__file__).with_name('ran').touch()\n")
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(LumosError, match=rf"^rank 0: {problem}.*: install torch 2\.6 to 2\.13, "):
        records(Launched(command, emulated_device("h100"), 1, 1, 1, work, 60.0))
    assert not (tmp_path / "ran").exists()
