"""Blobs are written once, are whole when they are finished, and are listed and deleted by their paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from derive.storage.blobs import Blobs, blobs_of, is_there

CHECKSUM = "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"
"""Of `content`."""


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return blobs_of(tmp_path)


def put(blobs: Blobs, path: str, content: bytes = b"content") -> tuple[int, str]:
    with blobs.create(path) as sink:
        sink.write(content)
    return blobs.finish(path)


def test_blobs_are_read_in_any_range(blobs: Blobs) -> None:
    assert put(blobs, "a/b/c.parquet") == (7, CHECKSUM)
    assert blobs.checksum("a/b/c.parquet") == CHECKSUM

    with blobs.open("a/b/c.parquet") as blob:
        assert blob.size() == 7
        assert blob.read() == b"content"
        assert blob.read_at(4, 3) == b"tent"


def test_a_path_is_written_once(blobs: Blobs) -> None:
    put(blobs, "a/b")

    with pytest.raises(FileExistsError):
        blobs.create("a/b")
    with blobs.open("a/b") as blob:
        assert blob.read() == b"content"


def test_blobs_below_a_folder_are_listed_by_their_names(blobs: Blobs) -> None:
    for path in ("one/x-1", "one/k=1/x-2", "one/k=1/y-3", "two/x-4"):
        put(blobs, path)

    assert sorted(blobs.list("one", "**/x-*")) == ["one/k=1/x-2", "one/x-1"]
    assert blobs.list("one", "y-*") == []
    assert blobs.list("none", "**/*") == []


def test_deletion_removes_blobs_and_accepts_missing_ones(blobs: Blobs) -> None:
    put(blobs, "a/b")
    assert is_there(blobs, "a/b")

    assert blobs.delete(["a/b", "a/c"]) == 2

    assert not is_there(blobs, "a/b")
    with pytest.raises(FileNotFoundError):
        blobs.open("a/b")


def test_path_below_a_blob_is_absent(blobs: Blobs) -> None:
    put(blobs, "a")

    assert not is_there(blobs, "a/b")
