"""Pages of logs and databases: applied elsewhere, they give the bytes of SQLite's own checkpoint."""

from __future__ import annotations

import io
import struct
import tempfile
from pathlib import Path
from typing import Any

import apsw
import pytest
from conftest import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typing_extensions import override

from derive.errors import StorageError
from derive.shard.state_pages import apply_parts, pages_of_database, pages_of_log

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.integers(1, 60), st.integers(0, 9000)),
        st.tuples(st.just("update"), st.integers(1, 7), st.integers(0, 3000)),
        st.tuples(st.just("delete"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("undo"), st.integers(1, 80), st.integers(0, 5000)),
        st.tuples(st.just("table"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("vacuum"), st.just(0), st.just(0)),
    ),
    max_size=5,
)


def connect(path: Path, page_bytes: int = 4096) -> apsw.Connection:
    db = apsw.Connection(str(path))
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    db.execute(
        f"PRAGMA page_size={page_bytes}; PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL;"
        "PRAGMA wal_autocheckpoint=0; PRAGMA synchronous=OFF; PRAGMA cache_size=10"
    ).fetchall()
    db.execute("CREATE TABLE IF NOT EXISTS t (k, v)")
    return db


def change(db: apsw.Connection, step: tuple[str, int, int]) -> None:
    """Change the database; a small cache lets SQLite write pages to the log before a commit or a rollback."""
    kind, number, size = step
    if kind == "vacuum":
        db.execute("VACUUM")
        return
    db.execute("BEGIN IMMEDIATE")
    if kind == "undo":
        db.execute("SAVEPOINT s")
    if kind in ("insert", "undo"):
        db.executemany("INSERT INTO t VALUES (?, ?)", [(key, bytes([key]) * size) for key in range(number)])
    if kind == "undo":
        db.execute("ROLLBACK TO s")
        db.execute("INSERT INTO t VALUES ('undone', 1)")
    if kind == "update":
        db.execute("UPDATE t SET v = zeroblob(?) WHERE rowid % ? = 0", (size, number))
    if kind == "delete":
        db.execute("DELETE FROM t WHERE rowid % ? = 0", (number,))
    if kind == "table":
        db.execute(f"DROP TABLE IF EXISTS u{number}; CREATE TABLE u{number} AS SELECT * FROM t")
    db.execute("COMMIT")


@settings(max_examples=examples(120), deadline=None)
@given(
    transactions=st.lists(STEPS, min_size=1, max_size=4),
    page_bytes=st.sampled_from([512, 4096, 65536]),
    part=st.sampled_from([1, 20_000, 1 << 25]),
)
@example(transactions=[[("insert", 60, 9000)], [("delete", 1, 0), ("vacuum", 0, 0)]], page_bytes=4096, part=20_000)
def test_applied_pages_equal_a_checkpoint(transactions: list[Any], page_bytes: int, part: int) -> None:
    """Law: parts of logs, or of a database after them, give the bytes that SQLite's checkpoint gives."""
    with tempfile.TemporaryDirectory() as folder:
        path, copy, snapshot = (Path(folder) / name for name in ("state.db", "copy.db", "snapshot.db"))
        for steps in transactions:
            db = connect(path, page_bytes)
            for step in steps:
                change(db, step)
            db.close(True)
            pages = pages_of_log(Path(f"{path}-wal"))
            if pages is not None:
                apply_parts(copy, pages.parts(part))
            db = connect(path, page_bytes)
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            db.close(True)
            assert copy.read_bytes() == path.read_bytes()
        apply_parts(snapshot, pages_of_database(path).parts(part))
        assert snapshot.read_bytes() == path.read_bytes()


@given(cut=st.integers(0, 60_000), flip=st.integers(0, 60_000))
@settings(max_examples=examples(60), deadline=None)
def test_damaged_logs_end_where_sqlite_ends_them(cut: int, flip: int) -> None:
    """Law: a log that was cut, or in which a byte differs, is read up to the commit up to which SQLite reads it."""
    with tempfile.TemporaryDirectory() as folder:
        path, copy = Path(folder) / "state.db", Path(folder) / "copy.db"
        db = connect(path)
        for step in [("insert", 5, 3000), ("update", 2, 900), ("insert", 3, 9)]:
            change(db, step)
        db.close(True)
        log = Path(f"{path}-wal")
        content = bytearray(log.read_bytes())
        content[32 + flip % (len(content) - 32)] ^= 1
        log.write_bytes(content[: len(content) - cut % len(content)] if cut % 3 else content)
        copy.write_bytes(path.read_bytes())
        pages = pages_of_log(log)
        if pages is not None:
            apply_parts(copy, pages.parts())

        db = apsw.Connection(str(path))
        db.execute("SELECT * FROM sqlite_schema").fetchall()  # SQLite opens a log when it first reads
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        db.close(True)
        assert copy.read_bytes() == path.read_bytes()


def test_remains_of_an_earlier_use_of_a_log_are_ignored(tmp_path: Path) -> None:
    """SQLite begins a log again after a checkpoint, with other salts, and leaves the frames behind."""
    path, copy = tmp_path / "state.db", tmp_path / "copy.db"
    db = connect(path)
    change(db, ("insert", 40, 3000))
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)
    copy.write_bytes(path.read_bytes())
    change(db, ("insert", 1, 1))
    pages = pages_of_log(Path(f"{path}-wal"))
    assert pages is not None
    assert len(pages.numbers) < 5
    apply_parts(copy, pages.parts())
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)
    db.close(True)

    assert copy.read_bytes() == path.read_bytes()


class ShortFile(io.FileIO):
    """A file of which each write stores a part, as on a disk that is nearly full."""

    @override
    def write(self, data: Any) -> int:
        return super().write(memoryview(data)[:1000])


class ShortPath(type(Path())):  # type: ignore[misc]
    @override
    def open(self, mode: str, buffering: int = -1) -> Any:
        raw = ShortFile(self, mode.replace("b", ""))
        return raw if buffering == 0 else io.BufferedRandom(raw)


def test_pages_are_complete_if_writes_are_cut_short(tmp_path: Path) -> None:
    path, copy = tmp_path / "state.db", tmp_path / "copy.db"
    db = connect(path)
    change(db, ("insert", 40, 3000))
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    db.close(True)
    apply_parts(ShortPath(copy), pages_of_database(path).parts())
    assert copy.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("content", [b"", b"\x37\x7f\x06\x82" + bytes(10)])
def test_short_logs_have_no_pages(content: bytes, tmp_path: Path) -> None:
    log = tmp_path / "state.db-wal"
    assert pages_of_log(log) is None
    log.write_bytes(content)
    assert pages_of_log(log) is None


def test_other_files_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(bytes(200))
    with pytest.raises(StorageError, match="is no write-ahead log of SQLite"):
        pages_of_log(other)
    with pytest.raises(StorageError, match="is no database of SQLite"):
        pages_of_database(other)


def test_damaged_parts_are_refused(tmp_path: Path) -> None:
    connect(tmp_path / "state.db").close(True)
    [part] = pages_of_database(tmp_path / "state.db").parts()
    for damaged in (b"", part[:-1], part[:20], b"ABCD" + part[4:], part[:8] + struct.pack("<I", 7) + part[12:20]):
        with pytest.raises(StorageError, match="a part of a state database is damaged"):
            apply_parts(tmp_path / "copy.db", [damaged])
