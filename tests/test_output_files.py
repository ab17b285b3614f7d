"""Outputs appear whole or not at all, and never in the place of an input."""

import os

import pytest

from lumos.errors import LumosError, UsageError
from lumos.output_files import check_only_own, check_places, new_file, new_folder


def listed(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "a.txt"
    with new_file(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert listed(tmp_path) == ["a.txt"]


def test_a_link_is_followed_and_permissions_stay(tmp_path):
    path, link = tmp_path / "a.txt", tmp_path / "link"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    with new_file(link) as file:
        file.write(b"new")
    assert (path.read_bytes(), path.stat().st_mode & 0o777, link.is_symlink()) == (b"new", 0o640, True)


def test_what_is_no_regular_file_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with new_file(pipe) as file:
        file.write(b"new")
    assert os.read(reader, 10) == b"new"
    assert listed(tmp_path) == ["pipe"]
    os.close(reader)


def test_a_folder_appears_with_all_of_its_files(tmp_path):
    path = tmp_path / "some" / "set"
    with new_folder(path) as draft:
        (draft / "0").write_text("zero")
        (draft / "1").write_text("one")
        assert not path.exists()
    assert listed(path) == ["0", "1"]
    assert listed(tmp_path / "some") == ["set"]


def test_other_files_of_a_folder_stay(tmp_path):
    (tmp_path / "mine").write_text("kept")
    with new_folder(tmp_path) as draft:
        (draft / "0").write_text("new")
    assert listed(tmp_path) == ["0", "mine"]


def test_a_folder_with_files_of_another_set_is_refused(tmp_path):
    (tmp_path / "job.7.et").touch()
    (tmp_path / "notes.txt").touch()
    check_only_own(tmp_path, "*.et", ["job.7.et"])
    with pytest.raises(UsageError, match=r"job\.7\.et"):
        check_only_own(tmp_path, "*.et", ["job.0.et"])


def test_a_file_without_a_folder_is_refused_before_the_work(tmp_path):
    check_places(tmp_path / "a.html", None, "b.html")
    with pytest.raises(LumosError, match=r"nowhere/a\.html: cannot be written .*a folder that exists"):
        check_places(tmp_path / "nowhere" / "a.html")
    with pytest.raises(LumosError, match=r"cannot be written \(Is a directory\); .*name a file"):
        check_places(tmp_path)


def test_a_folder_that_a_file_stands_for_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    check_places(folders=(None, tmp_path, tmp_path / "new" / "set", "new"))
    for folder in (tmp_path / "file", tmp_path / "file" / "set"):
        with pytest.raises(LumosError, match=r"cannot be written \(.*file is a file\); .*name a folder"):
            check_places(folders=(folder,))
