"""The disk of test_power_loss.py forgets what POSIX does not promise to keep, and nothing else."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import apsw
import pytest
from power_loss import Disk, Recorder

CONTEXT = multiprocessing.get_context("forkserver")


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def after(folder: Path, work: Callable[[Path], None], lost_at: int = 0) -> Disk:
    """The disk after work in a process of its own, before which it holds `old` with `one`."""
    disk = folder / "disk"
    disk.mkdir()
    (disk / "old").write_text("one")
    child = CONTEXT.Process(target=do, args=(work, disk, folder / "log", lost_at))
    child.start()
    child.join()
    assert child.exitcode == (-signal.SIGKILL if lost_at else 0)
    return Disk(disk, folder / "log")


def do(work: Callable[[Path], None], disk: Path, log: Path, lost_at: int) -> None:
    Recorder(disk, log, lost_at).install()
    work(disk)
    os._exit(0)


def tree(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def left(folder: Path, disk: Disk) -> dict[str, str]:
    disk.restore(folder / "restored")
    return tree(folder / "restored")


def write(disk: Path) -> None:
    (disk / "old").write_text("two")


def write_and_sync(disk: Path) -> None:
    (disk / "old").write_text("two")
    sync(disk / "old")
    (disk / "old").write_text("three")


def create_and_sync_the_file(disk: Path) -> None:
    (disk / "new").write_text("new")
    sync(disk / "new")


def create_and_sync_the_folder(disk: Path) -> None:
    (disk / "new").write_text("new")
    sync(disk)


def create_and_sync_both(disk: Path) -> None:
    create_and_sync_the_file(disk)
    sync(disk)


def create_below_a_folder_that_is_not_synced(disk: Path) -> None:
    (disk / "below").mkdir()
    create_and_sync_both(disk / "below")


def create_below_a_folder_that_is(disk: Path) -> None:
    create_below_a_folder_that_is_not_synced(disk)
    sync(disk)


def replace(disk: Path) -> None:
    create_and_sync_both(disk)
    (disk / "new").replace(disk / "old")


def replace_and_sync(disk: Path) -> None:
    replace(disk)
    sync(disk)


def link(disk: Path) -> None:
    os.link(disk / "old", disk / "new")
    sync(disk)


def remove(disk: Path) -> None:
    (disk / "old").unlink()


def remove_and_write_anew(disk: Path) -> None:
    (disk / "old").unlink()
    (disk / "new").write_text("new")  # might be given the inode of the old one
    sync(disk / "new")


def test_a_file_with_two_names_is_one_file(tmp_path: Path) -> None:
    after(tmp_path, link).restore(tmp_path / "restored")

    assert (tmp_path / "restored" / "old").samefile(tmp_path / "restored" / "new")


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (write, {"old": "one"}),
        (write_and_sync, {"old": "two"}),
        (create_and_sync_the_file, {"old": "one"}),
        (create_and_sync_the_folder, {"old": "one", "new": ""}),
        (create_and_sync_both, {"old": "one", "new": "new"}),
        (create_below_a_folder_that_is_not_synced, {"old": "one"}),
        (create_below_a_folder_that_is, {"old": "one", "below/new": "new"}),
        (replace, {"old": "one", "new": "new"}),
        (replace_and_sync, {"old": "new"}),
        (remove, {"old": "one"}),
        (remove_and_write_anew, {"old": "one"}),
    ],
)
def test_what_was_not_synced_is_gone(work: Callable[[Path], None], expected: dict[str, str], tmp_path: Path) -> None:
    assert left(tmp_path, after(tmp_path, work)) == expected


def test_the_power_goes_before_a_sync_has_done_anything(tmp_path: Path) -> None:
    assert left(tmp_path, after(tmp_path, create_and_sync_both, lost_at=2)) == {"old": "one"}


def test_any_part_of_what_was_not_synced_may_survive(tmp_path: Path) -> None:
    disk = after(tmp_path, remove_and_write_anew)
    seen = set()
    for seed in range(40):
        disk.restore(tmp_path / str(seed), random.Random(seed))
        seen.add(tuple(sorted(tree(tmp_path / str(seed)))))

    assert seen == {(), ("new",), ("old",), ("new", "old")}


def commit(disk: Path, synchronous: str) -> None:
    db = apsw.Connection(str(disk / "a.db"))
    db.execute(f"PRAGMA journal_mode=WAL; PRAGMA synchronous={synchronous}").fetchall()
    db.execute("CREATE TABLE t (n)")
    for number in (1, 2):
        db.execute("INSERT INTO t VALUES (?)", (number,))
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO t VALUES (3)")
    os._exit(0)


def test_sqlite_keeps_what_it_synced(tmp_path: Path) -> None:
    after(tmp_path, partial(commit, synchronous="FULL")).restore(tmp_path / "restored")

    db = apsw.Connection(str(tmp_path / "restored" / "a.db"))
    assert db.execute("SELECT n FROM t").fetchall() == [(1,), (2,)]
    db.close()


def test_sqlite_loses_what_it_did_not_sync(tmp_path: Path) -> None:
    after(tmp_path, partial(commit, synchronous="OFF")).restore(tmp_path / "restored")

    db = apsw.Connection(str(tmp_path / "restored" / "a.db"))
    assert db.execute("SELECT name FROM sqlite_schema").fetchall() == []
    db.close()
