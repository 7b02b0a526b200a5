"""Copy metadata and shard states as they are at one moment.

Two locks are held while the metadata is copied: the lock of epochs (no task begins to run, is reset or is split), and
the locks of shards (no shard is opened for another transaction). A shard's lock is released after its state is copied.
Running attempts continue and may commit: the copied metadata names the attempt whose state is copied, and a prepared
state stays until the shard is opened again.

The files that a materialization keeps beside its endpoint may belong to a later transaction than the metadata, as after
a crash.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import apsw

from derive.durable import make_folders, sync
from derive.errors import BusyError
from derive.failpoint import reach
from derive.shard.state import copy_prepared, epochs_lock, keeps_state, settle_copy, shard_folder, still, task_folder
from derive.storage.disk_errors import translated
from derive.storage.metadata.descriptions import TaskState
from derive.storage.metadata.tasks import read_tasks

METADATA = "metadata.db"
"""Database of a data folder that is copied as a whole."""

_OF_TASK, _OF_SHARD = ("restart", "restart.announced"), "kept.json"
"""Files that materializations keep in the folders of tasks and of shards."""

_TIMES = 5
_PATIENCE = 60_000


def copy_snapshot(root: Path, copy: Path) -> None:
    """Copy metadata and shard states as they are at one moment.

    Args:
        root: the data folder.
        copy: the destination; its earlier copies of these files are removed first.

    Raises:
        BusyError: tasks were started or split during every attempt.
        HeldError: another process holds a shard's state.
        StorageError: a file cannot be copied.
    """
    for _ in range(_TIMES):
        _forget(copy)
        with ExitStack() as standstill, translated(copy):
            lock = standstill.enter_context(ExitStack())
            lock.enter_context(epochs_lock(root))
            shards = _hold_shards(root, standstill)
            _copy_database(root / METADATA, copy / METADATA)
            reach("backup.metadata")
            folders = _folders(root, read_copied_tasks(copy))
            if not shards.keys() >= {folder for folder in folders if keeps_state(folder)}:
                continue
            _copy_kept(root, copy, folders, _task_names(copy))
            lock.close()
            _copy_states(root, copy, folders, shards)
            return
    raise BusyError(f"tasks of {root} were started or split during every attempt", hint="take the backup again")


def read_copied_tasks(copy: Path) -> list[TaskState]:
    """Return the tasks of a copied metadata database."""
    with closing(apsw.Connection(str(copy / METADATA), apsw.SQLITE_OPEN_READONLY)) as db:
        return read_tasks(db)


def _task_names(copy: Path) -> list[str]:
    """Return the names of all tasks of a copied metadata database, also of tasks that were reset."""
    with closing(apsw.Connection(str(copy / METADATA), apsw.SQLITE_OPEN_READONLY)) as db:
        return [str(name) for (name,) in db.execute("SELECT name FROM task").fetchall()]


def _forget(copy: Path) -> None:
    (copy / METADATA).unlink(missing_ok=True)
    shutil.rmtree(copy / "state", ignore_errors=True)


def _folders(root: Path, tasks: list[TaskState]) -> dict[Path, str]:
    """Return the last committed attempt of each shard that has taken part in a transaction, by the shard's folder."""
    return {
        shard_folder(root, task.name, number, task.shards): token
        for task in tasks
        for number, token in task.tokens.items()
    }


def _hold_shards(root: Path, standstill: ExitStack) -> dict[Path, ExitStack]:
    """Lock the folders of all shards with state; closing a shard's stack releases its lock."""
    with closing(apsw.Connection(str(root / METADATA), apsw.SQLITE_OPEN_READWRITE)) as db:
        db.set_busy_timeout(_PATIENCE)
        folders = _folders(root, read_tasks(db))
    shards = {}
    for folder in sorted(filter(keeps_state, folders)):
        shards[folder] = standstill.enter_context(ExitStack())
        shards[folder].enter_context(still(folder))
    return shards


def _copy_database(path: Path, copy: Path) -> None:
    """Copy a database of concurrent writers, as it is at one moment, into one durable file."""
    with (
        closing(apsw.Connection(str(path), apsw.SQLITE_OPEN_READWRITE)) as source,
        closing(apsw.Connection(str(copy))) as target,
    ):
        source.set_busy_timeout(_PATIENCE)
        with target.backup("main", source, "main") as backup:
            backup.step(-1)
        target.execute("PRAGMA journal_mode=DELETE").fetchall()
    sync(copy)


def _copy_kept(root: Path, copy: Path, folders: Mapping[Path, str], tasks: Iterable[str]) -> None:
    """Copy the files that materializations keep; writers replace each of these files atomically."""
    kept = [task_folder(root, task) / name for task in tasks for name in _OF_TASK]
    kept += [folder / _OF_SHARD for folder in folders]
    for path in kept:
        with suppress(FileNotFoundError):
            content = path.read_bytes()
            target = copy / path.relative_to(root)
            make_folders(target.parent)
            target.write_bytes(content)
            sync(target)
            sync(target.parent)


def _copy_states(root: Path, copy: Path, folders: Mapping[Path, str], shards: Mapping[Path, ExitStack]) -> None:
    """Copy the state of each shard, and release the shard's lock after its copy."""
    for folder, token in folders.items():
        if folder not in shards:
            continue
        target = copy / folder.relative_to(root)
        make_folders(target)
        is_copied = copy_prepared(folder, target, token)
        reach("backup.state")
        shards[folder].close()
        if is_copied:
            settle_copy(target, token)
