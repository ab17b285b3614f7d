import re


def test_json(lumos, trace):
    done = lumos("inspect", trace(), "--json")
    assert (done.status, done.err) == (0, "")
    answer = done.json
    (file,) = answer["files"]
    assert (answer["ranks"], file["rank"], file["world_size"], file["events"]) == (1, 0, 1, 362)
    assert file["rows"] == {"annotation": 2, "operator": 120, "runtime": 120, "kernel": 120}
    assert (file["features"]["shapes"], file["features"]["call_stacks"], file["unlinked"]) == (True, False, 0.0)
    assert "diagnostics" in answer and answer["trust"]["grade"] != "unsound"


def test_it_says_what_makes_other_verbs_refuse(lumos, trace):
    path = trace()
    path.write_text(re.sub(r'"correlation": ?\d+', '"correlation": 7', path.read_text()))
    assert lumos("inspect", path, "--json").json["trust"]["reasons"][0]["message"] in lumos("whatif", path, "--scale", "*=2").err
    assert "trust: unsound" in lumos("inspect", path).out


def test_the_last_line_names_the_next_command(lumos, trace, tmp_path):
    done = lumos("inspect", trace())
    before, _, command = done.out.partition("\n\nnext: ")
    assert before and command.replace("\\\n  ", "") == f"lumos diagnose {tmp_path / 'rank0.json'}\n"


def test_text_says_what_is_missing_and_fits_80_columns(lumos, trace, tmp_path, monkeypatch):
    trace()
    monkeypatch.chdir(tmp_path)
    done = lumos("inspect", "rank0.json")
    assert done.out.startswith("rank 0 of 1: 362 rows")
    assert "enable_cuda_sync_events" in done.out and "record_shapes" not in done.out
    assert max(map(len, done.out.splitlines())) <= 80
