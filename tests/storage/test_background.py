"""Work in the background, and segments that are encoded there."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from patience import PATIENCE_SECONDS

from derive.errors import StorageError
from derive.position import Position
from derive.protocol.specs import CollectionSpec
from derive.storage.segments.rows import WrittenRows
from derive.storage.segments.writer import Background, SegmentWriter, WriteSizes

SPEC = CollectionSpec("b/rows", ("/id",), (0,), True, True, (), Position("flow.yaml", 1, 1))


def test_background_work_runs_in_order() -> None:
    background, gate, done = Background(), threading.Event(), []

    def first() -> None:
        gate.wait(PATIENCE_SECONDS)
        done.append("first")

    background.begin(first)
    threading.Timer(0.01, gate.set).start()
    background.begin(lambda: done.append("second"))
    background.wait()

    assert done == ["first", "second"]


def test_background_failure_is_raised_by_later_calls() -> None:
    background, done = Background(), []

    def fail() -> None:
        raise OSError(28, "No space left on device")

    background.begin(fail)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            background.begin(lambda: done.append("more"))
        with pytest.raises(OSError, match="No space left"):
            background.wait()

    assert done == []


def test_foreground_failure_is_raised_by_later_calls() -> None:
    background, done = Background(), []

    def stop() -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            background.do(stop)
        with pytest.raises(KeyboardInterrupt):
            background.begin(lambda: done.append("more"))
    background.join()

    assert done == []


def test_work_runs_immediately_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    background, done = Background(), []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    background.begin(lambda: done.append("first"))
    assert done == ["first"]
    background.begin(lambda: done.append("second"))
    background.wait()

    assert done == ["first", "second"]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process becomes larger."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def rows(begin: int, count: int) -> WrittenRows:
    """Rows whose documents hardly compress."""
    numbers = range(begin, begin + count)
    texts = [f'{{"id":{number},"text":"{os.urandom(200).hex()}"}}' for number in numbers]
    keys = [b"%08d" % number for number in numbers]
    return WrittenRows.of(list(numbers), [0] * count, keys, texts, ["[]"] * count)


def test_a_file_that_cannot_be_written_in_the_background_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, SPEC, "large", WriteSizes(row_group=100))

    with largest_file(20_000), pytest.raises(StorageError, match="File too large"):
        for begin in range(0, 1_000, 100):
            writer.write(rows(begin, 100))
        writer.close()
    writer.abort()

    assert list(tmp_path.rglob("*.parquet")) == []


def open_files(folder: Path) -> list[str]:
    """Files below a folder that this process has open."""
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    return [target for link in links if link.is_symlink() and (target := os.readlink(link)).startswith(str(folder))]


def test_write_failures_are_raised_until_abort(tmp_path: Path) -> None:
    """A file that lacks some rows is never finished, whoever asks for it after he was told."""
    writer = SegmentWriter(tmp_path, SPEC, "large", WriteSizes(row_group=100))
    with largest_file(20_000), pytest.raises(StorageError, match="File too large"):
        for begin in range(0, 1_000, 100):
            writer.write(rows(begin, 100))

    for _ in range(2):
        with pytest.raises(StorageError, match="File too large"):
            writer.close()
    writer.abort()

    assert (list(tmp_path.rglob("*.parquet")), open_files(tmp_path)) == ([], [])


def test_files_that_cannot_be_finished_are_closed_and_removed(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, SPEC, "several", WriteSizes(row_group=1_000))
    writer.write(rows(1_000, 10))
    writer.write(rows(100, 500))  # an earlier time begins another file

    with largest_file(20_000), pytest.raises(StorageError, match="File too large"):
        writer.write(rows(0, 10))
    assert len(open_files(tmp_path)) == 1
    with pytest.raises(StorageError, match="File too large"):  # there is room now, but who knows what is in the file
        writer.close()
    writer.abort()

    assert (list(tmp_path.rglob("*.parquet")), open_files(tmp_path)) == ([], [])


def test_failed_start_of_a_file_leaves_no_file(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, SPEC, "none")

    with largest_file(0), pytest.raises(StorageError, match="File too large"):
        writer.write(rows(0, 10))
    assert (list(tmp_path.rglob("*.parquet")), open_files(tmp_path)) == ([], [])
    writer.abort()


def test_row_groups_keep_their_order(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, SPEC, "ordered", WriteSizes(row_group=100))
    for begin in range(0, 1_050, 70):
        writer.write(rows(begin, 70))

    (segment,) = writer.close()

    file = pq.ParquetFile(tmp_path / segment.path)
    sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    assert sizes == [100] * 10 + [50]
    assert file.read(["clock"])["clock"].to_pylist() == list(range(1_050))
