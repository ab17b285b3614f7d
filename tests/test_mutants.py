"""The list of faults that `make mutants` puts into the code."""

import subprocess
import sys
from pathlib import Path

import pytest
from tools.mutants import environment, make_copy, mutants, mutated, source


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: f"{mutant.path}: {mutant.what}")
def test_every_fault_can_be_put_into_the_code(mutant):
    text = source(mutant).read_text(encoding="utf-8")
    assert mutated(mutant, text) != text
    assert all((Path(__file__).parent / test).exists() for test in mutant.tests)


def test_a_copy_is_what_its_tests_import(tmp_path):
    make_copy(tmp_path)
    asked = [sys.executable, "-c", "import lumos, lumos._engine; print(lumos.__file__); print(lumos._engine.__file__)"]
    result = subprocess.run(asked, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=True).stdout
    assert all(Path(line).is_relative_to(tmp_path) for line in result.splitlines())
