import importlib
import tempfile

import pytest


@pytest.fixture
def failing(monkeypatch, tmp_path):
    """Let reading fail with an error, and let temporary files lie in a folder of the test."""

    def fail(error):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

        def read(*paths, **options):
            raise error

        monkeypatch.setattr(importlib.import_module("lumos.trace"), "read", read)

    return fail


def test_what_nobody_foresaw_is_a_fault_of_lumos_with_a_saved_report(lumos, failing, tmp_path):
    failing(KeyError("numSms"))
    done = lumos("inspect", "some.json", "--json")
    assert (done.status, done.out) == (70, "")
    assert done.err.startswith("lumos: a fault of Lumos") and "please report" in done.err and "Traceback" not in done.err
    (saved,) = tmp_path.glob("lumos-fault-*.txt")
    assert str(saved) in done.err
    report = saved.read_text()
    assert "command: lumos inspect some.json --json" in report
    assert "Traceback (most recent call last)" in report and "KeyError: 'numSms'" in report
    assert saved.stat().st_mode & 0o077 == 0  # it names the user's files


def test_a_fault_is_told_also_where_no_report_can_be_saved(lumos, failing, monkeypatch, tmp_path):
    failing(ZeroDivisionError("division by zero"))

    def full(*how, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkstemp", full)
    done = lumos("inspect", "some.json")
    assert done.status == 70 and "could not be saved" in done.err


def test_memory_that_runs_out_is_one_message(lumos, failing):
    failing(MemoryError())
    done = lumos("inspect", "some.json")
    assert done.status == 1 and "memory" in done.err and done.err.count("\n") == 1
