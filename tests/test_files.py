"""Files are written whole or not at all."""

from __future__ import annotations

import pytest

from zoo.files import write_whole


def test_bytes_and_text_replace_what_was_there(tmp_path):
    write_whole(tmp_path / "a", b"\0\xff")
    assert (tmp_path / "a").read_bytes() == b"\0\xff"
    write_whole(tmp_path / "a", "ä\n")
    assert (tmp_path / "a").read_text(encoding="utf-8") == "ä\n"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_failure_keeps_the_old_file_and_leaves_nothing_else(tmp_path, file_size_limit):
    write_whole(tmp_path / "a", "old")
    with file_size_limit(1000), pytest.raises(OSError, match="File too large"):
        write_whole(tmp_path / "a", b"x" * 5000)
    assert (tmp_path / "a").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_names_that_cannot_be_written(tmp_path):
    (tmp_path / "folder").mkdir()
    for name, error in (("folder", OSError), ("absent/a", OSError), ("x" * 300, OSError), ("a\0b", ValueError)):
        with pytest.raises(error):
            write_whole(tmp_path / name, "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
