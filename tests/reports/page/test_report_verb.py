from __future__ import annotations

import json
import sys

import pytest


@pytest.fixture
def lumos(monkeypatch, capfd):
    """Run `lumos ARGUMENTS…`: (status, out, err)."""

    def run(*arguments):
        from lumos.cli import main

        monkeypatch.setattr(sys, "argv", ["lumos", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code or 0, *capfd.readouterr()

    return run


def test_it_writes_the_file_and_says_the_answer(lumos, trace, tmp_path):
    out = tmp_path / "report.html"
    status, said, _ = lumos("report", trace(), "-o", out)
    assert status == 0
    assert said.startswith("1.00 ms a step (period; latency 601.0 µs) on rank 0; the replay is")
    assert "</html>" in out.read_text()


def test_json_alone_on_standard_output(lumos, trace, tmp_path):
    out = tmp_path / "report.html"
    status, said, _ = lumos("report", trace(), "-o", out, "--step", "1", "--json")
    assert status == 0
    found = json.loads(said)
    assert (found["file"], found["step"]) == (str(out), "ProfilerStep#1")
    assert (found["step_time_ns"], found["latency_ns"], found["basis"]) == (1_000_000, 601_000, "period")
    assert found["size_bytes"] == out.stat().st_size


def test_a_what_if_is_part_of_it(lumos, trace, tmp_path):
    out = tmp_path / "report.html"
    assert lumos("report", trace(), "-o", out, "--scale", "gemm*=0.5")[0] == 0
    assert '"changes":["scale gemm* by 0.5"]' in out.read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--step", "9"), 2, "not a step"),
        (("--scale", "gemm"), 2, "GLOB=FACTOR"),
        (("--scale", "nothing-like-it=2"), 1, "no task matches"),
    ],
)
def test_a_wrong_argument_is_told(lumos, trace, tmp_path, arguments, status, said):
    got, _, err = lumos("report", trace(), "-o", tmp_path / "report.html", *arguments)
    assert got == status
    assert said in err
    assert not (tmp_path / "report.html").exists()


def test_serving_what_is_not_there_is_an_error(lumos, tmp_path):
    status, _, err = lumos("serve", tmp_path / "absent.json")
    assert status == 1
    assert "absent.json: no such file" in err


def test_a_port_that_is_taken_is_told():
    from lumos.cli.serve import listen
    from lumos.errors import LumosError

    first = listen(0)
    first.listen()
    try:
        with pytest.raises(LumosError, match=r"port \d+ cannot be had .*--port"):
            listen(first.getsockname()[1])
    finally:
        first.close()
