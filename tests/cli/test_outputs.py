"""Every verb that writes leaves its inputs alone, and what was there before where the disk is full."""

import resource
import sys

import pytest

#: The verbs that write one file; TRACE and OUT stand for the trace and the output.
FILES = {
    "replay": ("replay", "TRACE", "--perfetto", "OUT"),
    "critical-path": ("critical-path", "TRACE", "--perfetto", "OUT"),
    "whatif": ("whatif", "TRACE", "--scale", "gemm*=2", "--perfetto", "OUT"),
    "report": ("report", "TRACE", "-o", "OUT"),
    "calibrate": ("calibrate", "TRACE", "-o", "OUT"),
}
#: The verbs that write a folder.
FOLDERS = {
    "export": ("chakra", "export", "TRACE", "-o", "OUT"),
    "synthesize": ("chakra", "synthesize", "TRACE", "-o", "OUT"),
    "proxy": ("proxy", "generate", "TRACE", "-o", "OUT"),
    "whatif-chakra": ("whatif", "TRACE", "--scale", "gemm*=2", "--chakra", "OUT"),
}
#: Verbs without a trace that write one file.
PREDICTED = {
    "predict": ("predict", "--model", "llama3.2-1b", "--cluster", "h100", "--gpus", "1", "--global-batch", "1", "--seq", "128"),
    "search": ("search", "--model", "llama3.2-1b", "--cluster", "h100", "--gpus", "2", "--global-batch", "2", "--seq", "128"),
}
FULL_BYTES = 400


def listed(folder):
    return sorted(path.name for path in folder.iterdir())


def words(command, trace, out):
    return [{"TRACE": trace, "OUT": out}.get(word, word) for word in command]


def check_refused(done):
    assert (done.status, done.out) == (1, "") and "cannot be written" in done.err and "Traceback" not in done.err, done.err


@pytest.fixture
def on_a_full_disk(lumos, monkeypatch):
    """`lumos` where no file may grow beyond FULL_BYTES, as on a disk with hardly any space left. Python would leave cut-off bytecode
    behind. The limit ends with the call: what the test runner itself writes to may be a longer file."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def run(*words):
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES, limits[1]))
        try:
            return lumos(*words)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    return run


@pytest.mark.parametrize("verb", FILES)
@pytest.mark.parametrize("spelling", ["same", "dotted", "link", "hard link"])
def test_no_file_is_written_over_its_input(lumos, trace, verb, spelling, tmp_path):
    path = trace()
    before = path.read_bytes()
    out = {"same": path, "dotted": tmp_path / ".." / tmp_path.name / path.name}.get(spelling, tmp_path / "other.json")
    if spelling == "link":
        out.symlink_to(path)
    elif spelling == "hard link":
        out.hardlink_to(path)
    done = lumos(*words(FILES[verb], path, out))
    assert (done.status, done.out) == (2, "")
    assert "is the input" in done.err
    assert path.read_bytes() == before


@pytest.mark.parametrize("verb", FOLDERS)
@pytest.mark.parametrize("given", ["file", "folder"])
def test_no_folder_of_inputs_is_written_to(lumos, trace, verb, given, tmp_path):
    path = trace()
    before = path.read_bytes()
    done = lumos(*words(FOLDERS[verb], path if given == "file" else tmp_path, tmp_path))
    assert (done.status, done.out) == (2, "")
    assert "holds the input" in done.err
    assert (path.read_bytes(), listed(tmp_path)) == (before, [path.name])


@pytest.mark.parametrize("how", [(), ("--emulate", "cpu")])
def test_nothing_is_collected_where_a_file_has_the_name_of_the_folder(lumos, tmp_path, how):
    """The command would leave a second file, were it started."""
    (tmp_path / "out").touch()
    done = lumos("collect", *how, "-o", tmp_path / "out", "--", "touch", tmp_path / "ran")
    assert done.status == 1 and "out is a file" in done.err and listed(tmp_path) == ["out"]


@pytest.mark.parametrize("verb", [verb for verb in FILES if verb != "calibrate"])  # its file is too small
def test_a_full_disk_leaves_the_old_file(on_a_full_disk, trace, verb, tmp_path):
    path = trace()
    out = tmp_path / "out" / "old.json"
    out.parent.mkdir()
    out.write_text("old")
    done = on_a_full_disk(*words(FILES[verb], path, out))
    check_refused(done)
    assert (out.read_text(), listed(out.parent)) == ("old", ["old.json"])


@pytest.mark.parametrize("verb", FOLDERS)
def test_a_full_disk_leaves_no_part_of_a_folder(on_a_full_disk, trace, verb, tmp_path):
    path = trace()
    done = on_a_full_disk(*words(FOLDERS[verb], path, tmp_path / "out"))
    check_refused(done)
    assert listed(tmp_path) == [path.name]


@pytest.mark.parametrize("option", ["--perfetto", "--kineto", "--chakra", "--parquet"])
@pytest.mark.parametrize("verb", PREDICTED)
def test_a_full_disk_leaves_what_was_predicted_before(on_a_full_disk, verb, option, tmp_path):
    if verb == "predict" and option == "--parquet":
        pytest.skip("predict has no such option")
    out = tmp_path / "old.json"
    if option in ("--perfetto", "--parquet"):
        out.write_text("old")
    done = on_a_full_disk(*PREDICTED[verb], option, out)
    check_refused(done)
    assert listed(tmp_path) == (["old.json"] if out.exists() else [])
    assert not out.exists() or out.read_text() == "old"
