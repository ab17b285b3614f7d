import pytest
from tools import lowest


def test_every_requirement_has_a_lowest_version():
    found = lowest.lowest(["serve", "arrow"])
    assert {"numpy==1.26", "fastapi==0.110", "pyarrow==15"} <= set(found) and all("==" in requirement for requirement in found)


def test_a_requirement_without_a_lowest_version_is_named(monkeypatch, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["numpy"]\n')
    monkeypatch.setattr(lowest, "ROOT", tmp_path)
    with pytest.raises(ValueError, match="'numpy' names no lowest version"):
        lowest.lowest()
