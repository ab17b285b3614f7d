"""What a user is advised to do about a file does help."""

import bz2
import gzip
import io
import json
import lzma
import re
import tarfile

import pytest

from lumos.errors import TraceError
from lumos.trace import read

ROW = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 5}
TEXT = json.dumps({"schemaVersion": 1, "traceEvents": [ROW] * 20})


def _tar(text):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        found = tarfile.TarInfo("rank0.json")
        found.size = len(text)
        archive.addfile(found, io.BytesIO(text))
    return packed.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *((TEXT.encode(name), "convert it (iconv -f UTF-16") for name in ("utf-16", "utf-16-le", "utf-16-be")),
        (TEXT.encode("utf-32"), "iconv -f UTF-32"),
        (lzma.compress(TEXT.encode(), lzma.FORMAT_ALONE), "xz -d --format=lzma"),
        (b"7z\xbc\xaf\x27\x1c" + TEXT.encode(), "7z x FILE"),
        (b"\x1f\x9d\x90" + TEXT.encode(), "uncompress FILE"),
        (lzma.compress(b"{}"), "unpack it (xz -d FILE)"),
        (bz2.compress(b"{}"), "bzip2 -d FILE"),
        (b"PK\x03\x04\x14\0", "unzip FILE"),
        (b"\x04\x22\x4d\x18\x64", "lz4 -d FILE"),
        (_tar(TEXT.encode()), "tar -xf FILE"),
        (gzip.compress(_tar(TEXT.encode())), "tar -xf FILE"),
    ],
)
def test_what_must_be_converted_first_is_named_with_the_command(tmp_path, content, said):
    path = tmp_path / "rank0.json"
    path.write_bytes(content)
    for given in (path, tmp_path):
        with pytest.raises(TraceError, match=re.escape(said)):
            read(given)


def test_an_empty_path_is_not_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "rank0.json").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TraceError, match="an empty path"):
        read("")


@pytest.mark.parametrize(
    ("content", "mended"),
    [
        (TEXT.replace("aten::mm", 'a "bare" quote').encode(), None),
        (TEXT.replace('"dur": 5', '"dur": 5,,,:').encode(), None),
        (TEXT[: len(TEXT) // 2].encode(), True),
        (TEXT[:12].encode(), False),  # before the first event
        (gzip.compress(TEXT.encode(), mtime=0)[:60], None),
    ],
)
def test_repair_is_advised_where_it_helps_and_only_there(tmp_path, content, mended):
    path = tmp_path / "rank0.json"
    path.write_bytes(content)
    with pytest.raises(TraceError) as refused:
        read(path)
    advised = "pass --repair" in str(refused.value)
    try:
        read(path, repair=True)
    except TraceError:
        assert not advised and mended in (None, False)
    else:
        assert advised and mended in (None, True)


@pytest.mark.parametrize("content", [b" \n" * 5000, b"\n" * 10000, b" " * 10000, b"# a comment\n \n" * 700])
def test_a_file_of_blanks_is_refused_at_once(tmp_path, content):
    """A pattern that divides blanks into lines in every possible way would not end within the life of the machine."""
    path = tmp_path / "rank0.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"rank0\.json"):
        read(path)
