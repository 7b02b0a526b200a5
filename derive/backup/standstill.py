"""A standstill: the moment at which metadata, names of SQL and states of shards are copied as they fit one another.

Nothing is stopped. Nobody begins to run, reset or split a task (the lock of epochs), no shard is opened for another
transaction (the shards' locks), and no name of SQL changes (a transaction of its database), while the metadata is
copied. Each shard goes on once its own state is copied. Attempts that are at work go on, and may commit: the copied
metadata names the attempt that a state is copied at, because what an attempt has prepared stays until the shard is
opened again.

The files that a materialization keeps beside its endpoint may be of a later transaction than the metadata, as after a
crash.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import apsw

from derive.durable import make_folders, sync
from derive.errors import BusyError
from derive.failpoint import reach
from derive.shard.state import copy_prepared, epochs_lock, keeps_state, settle_copy, shard_folder, still, task_folder
from derive.storage.disk_errors import translated
from derive.storage.metadata.descriptions import TaskState
from derive.storage.metadata.tasks import read_tasks

METADATA, NAMES = "metadata.db", "sql.db"
"""The databases of a data folder that are copied whole."""

_OF_TASK, _OF_SHARD = ("restart", "restart.announced"), "kept.json"
"""Other files that materializations keep in the folders of tasks and of shards."""

_TIMES = 5
_PATIENCE = 60_000


def copy_moment(root: Path, copy: Path) -> None:
    """Copy metadata, names of SQL, and states of shards as they are at one moment.

    Args:
        root: the data folder.
        copy: the folder that is given them; what it has of them goes first.

    Raises:
        BusyError: tasks began to run, or were split, all the time.
        HeldError: a shard's state is held by another process.
        StorageError: something cannot be copied.
    """
    for _ in range(_TIMES):
        _forget(copy)
        with ExitStack() as standstill, translated(copy):
            lock = standstill.enter_context(ExitStack())
            lock.enter_context(epochs_lock(root))
            shards = _hold_shards(root, standstill)
            with _still_names(root / NAMES):
                _copy_database(root / METADATA, copy / METADATA)
                reach("backup.metadata")
                if (root / NAMES).exists():
                    _copy_database(root / NAMES, copy / NAMES)
            folders = _folders(root, read_copied_tasks(copy))
            if not shards.keys() >= {folder for folder in folders if keeps_state(folder)}:
                continue
            _copy_kept(root, copy, folders, _task_names(copy))
            lock.close()
            _copy_states(root, copy, folders, shards)
            return
    raise BusyError(f"tasks of {root} were split all the time", hint="take the backup again")


def read_copied_tasks(copy: Path) -> list[TaskState]:
    """Return the tasks of a copied metadata database."""
    with closing(apsw.Connection(str(copy / METADATA), apsw.SQLITE_OPEN_READONLY)) as db:
        return read_tasks(db)


def _task_names(copy: Path) -> list[str]:
    """Names of all tasks of a copied metadata database, also of those that were reset and have not run since."""
    with closing(apsw.Connection(str(copy / METADATA), apsw.SQLITE_OPEN_READONLY)) as db:
        return [str(name) for (name,) in db.execute("SELECT name FROM task").fetchall()]


def _forget(copy: Path) -> None:
    for name in (METADATA, NAMES):
        (copy / name).unlink(missing_ok=True)
    shutil.rmtree(copy / "state", ignore_errors=True)


def _folders(root: Path, tasks: list[TaskState]) -> dict[Path, str]:
    """For the folder of each shard that has taken part in a transaction, the attempt that was committed last."""
    return {
        shard_folder(root, task.name, number, task.shards): token
        for task in tasks
        for number, token in task.tokens.items()
    }


def _hold_shards(root: Path, standstill: ExitStack) -> dict[Path, ExitStack]:
    """Hold the folders of all shards that keep state; each is given back by closing its stack."""
    with closing(apsw.Connection(str(root / METADATA), apsw.SQLITE_OPEN_READWRITE)) as db:
        db.set_busy_timeout(_PATIENCE)
        folders = _folders(root, read_tasks(db))
    shards = {}
    for folder in sorted(filter(keeps_state, folders)):
        shards[folder] = standstill.enter_context(ExitStack())
        shards[folder].enter_context(still(folder))
    return shards


@contextmanager
def _still_names(path: Path) -> Iterator[None]:
    """No name of SQL changes while the block is at work."""
    if not path.exists():
        yield
        return
    with closing(apsw.Connection(str(path), apsw.SQLITE_OPEN_READWRITE)) as db:
        db.set_busy_timeout(_PATIENCE)
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")


def _copy_database(path: Path, copy: Path) -> None:
    """Copy a database that others write, as it is at one moment, into one file, durably."""
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
    """Copy what materializations keep; each file is replaced as a whole whenever it changes."""
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
    """Copy the state of each shard, which goes on then."""
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
