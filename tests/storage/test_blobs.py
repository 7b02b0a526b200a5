"""Blobs are written once, are whole when they are finished, and are listed and deleted by their paths."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from derive.storage.blobs import Blobs, LocalBlobs, is_there

CHECKSUM = "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"
"""Of `content`."""


@pytest.fixture(params=["folder", "memory", "server"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    if request.param == "folder":
        return LocalBlobs(tmp_path)
    pytest.importorskip("obstore")
    from derive.storage.object_blobs import ObjectBlobs, connect

    if request.param == "memory":
        from obstore.store import MemoryStore

        return ObjectBlobs(MemoryStore(), "memory:")
    request.getfixturevalue("object_server")
    return connect("s3://flow/in/here")


def write(blobs: Blobs, path: str, content: bytes = b"content") -> tuple[int, str]:
    blob = blobs.create(path)
    with blob.sink as sink:
        sink.write(content)
    return blob.finish()


def test_blobs_are_read_in_any_range(blobs: Blobs) -> None:
    assert write(blobs, "a/b/c.parquet") == (7, CHECKSUM)

    with blobs.open("a/b/c.parquet") as blob:
        assert blob.size() == 7
        assert blob.read() == b"content"
        assert blob.read_at(4, 3) == b"tent"


def test_a_path_is_written_once(blobs: Blobs) -> None:
    write(blobs, "a/b")

    with pytest.raises(FileExistsError):
        write(blobs, "a/b", b"other")  # for an object, only the end of the writing shows it
    with blobs.open("a/b") as blob:
        assert blob.read() == b"content"


def test_blobs_below_a_folder_are_listed_by_their_names(blobs: Blobs) -> None:
    for path in ("one/x-1", "one/k=1/x-2", "one/k=1/y-3", "two/x-4"):
        write(blobs, path)

    assert sorted(blobs.list("one", "**/x-*")) == ["one/k=1/x-2", "one/x-1"]
    assert blobs.list("one", "y-*") == []
    assert blobs.list("none", "**/*") == []


def test_deletion_removes_blobs_and_accepts_missing_ones(blobs: Blobs) -> None:
    write(blobs, "a/b")
    assert is_there(blobs, "a/b")

    assert blobs.delete(["a/b", "a/c"]) == 2

    assert not is_there(blobs, "a/b")
    with pytest.raises(FileNotFoundError):
        blobs.open("a/b")


def test_path_below_a_blob_is_absent(blobs: Blobs) -> None:
    write(blobs, "a")

    assert not is_there(blobs, "a/b")


def test_names_with_special_characters_are_kept(blobs: Blobs) -> None:
    path = "a b/k=%2F%25/ü;(x)~+@.parquet"
    write(blobs, path)

    assert blobs.list("a b", "**/*.parquet") == [path]
    assert blobs.get(path) == b"content"


def test_put_stores_whole_blobs_once(blobs: Blobs) -> None:
    blobs.put("a/b", b"content")
    blobs.put("a/b", b"content")  # as after an answer that was lost

    for other in (b"contents", b"conten", b"", b"another"):
        with pytest.raises(FileExistsError):
            blobs.put("a/b", other)
    assert blobs.get("a/b") == b"content"


def test_put_of_racing_writers_keeps_the_bytes_of_one(blobs: Blobs) -> None:
    def store(content: bytes) -> bool:
        try:
            blobs.put("a/b", content)
        except FileExistsError:
            return False
        return True

    contents = [bytes([number]) * 10_000 for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        winners = [
            content for content, is_stored in zip(contents, threads.map(store, contents), strict=True) if is_stored
        ]
    assert winners == [blobs.get("a/b")]


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [
        (0, None, b"content"),
        (3, None, b"tent"),
        (3, 2, b"te"),
        (3, 9, b"tent"),
        (7, None, b""),
        (9, 1, b""),
        (0, 0, b""),
    ],
)
def test_get_returns_a_range(blobs: Blobs, offset: int, length: int | None, expected: bytes) -> None:
    blobs.put("a/b", b"content")
    assert blobs.get("a/b", offset, length) == expected


def test_get_of_a_missing_blob_fails(blobs: Blobs) -> None:
    with pytest.raises(FileNotFoundError):
        blobs.get("a/b")


def test_put_leaves_only_its_blob(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    blobs.put("a/b", b"content")
    with pytest.raises(FileExistsError):
        blobs.put("a/b", b"other")
    assert blobs.list("a", "**/*") == ["a/b"]
