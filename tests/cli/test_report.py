"""`lumos report` and `lumos serve`: what they write and say, and their errors."""

from dataclasses import replace

import pytest

from lumos import LumosError, read, report
from lumos.cli.serve import listen


def test_it_writes_the_file_and_says_the_answer(lumos, trace, tmp_path):
    out = tmp_path / "report.html"
    done = lumos("report", trace(), "-o", out)
    assert done.status == 0
    assert "1.00 ms a step (period; latency 601.0 µs) on rank 0" in " ".join(done.out.split())
    assert "</html>" in out.read_text()


def test_json_alone_on_standard_output(lumos, trace, tmp_path):
    out = tmp_path / "report.html"
    answer = lumos("report", trace(), "-o", out, "--step", "1", "--json").json
    assert (answer["file"], answer["step"]) == (str(out), "ProfilerStep#1")
    assert (answer["step_time_ns"], answer["latency_ns"], answer["basis"]) == (1_000_000, 601_000, "period")
    assert answer["size_bytes"] == out.stat().st_size


def test_a_what_if_is_part_of_it_and_no_absolute_path_of_this_machine(lumos, trace, tmp_path):
    out = tmp_path / "report.html"
    assert lumos("report", trace(), "-o", out, "--scale", "gemm*=0.5").status == 0
    text = out.read_text()
    assert str(tmp_path) not in text and f"{tmp_path.name}/report.html" in text
    assert '"changes":["scale gemm* by 0.5"]' in text


def test_of_a_trace_in_the_root_the_slashes_stay(trace, tmp_path):
    job = read(trace())
    report(replace(job, traces=(replace(job.traces[0], path="/rank0.json"),)), tmp_path / "report.html")
    assert f"{tmp_path.name}/report.html" in (tmp_path / "report.html").read_text()


def test_serving_what_is_not_there_is_an_error(lumos, tmp_path):
    done = lumos("serve", tmp_path / "absent.json")
    assert done.status == 1 and "absent.json: no such file" in done.err


def test_a_port_that_is_taken_is_told():
    with listen(0) as first:
        first.listen()
        with pytest.raises(LumosError, match=r"port \d+ cannot be had .*--port"):
            listen(first.getsockname()[1])
