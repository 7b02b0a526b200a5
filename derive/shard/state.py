"""A shard's state: one SQLite database under a lock, and write-ahead logs that are prepared transactions.

Each attempt at a shard's part of a transaction has a folder with a hard link to the database. SQLite writes the log of
the attempt into this folder. The attempt ends with one SQLite commit, which also stores the name of the attempt, and
which exists only in the log. Then the metadata database commits the name of one attempt.

When the shard is opened for another transaction, the log of the committed attempt is folded into the database. A short
log is copied into the folder of the next attempt instead, which avoids a wait for the disk. The folders of all other
attempts are removed, so their changes are undone exactly. A late attempt can change only its own log.

The folder of a shard is locked while the shard is opened. Under the lock, the published epoch of the task is read, and
processes of a fenced run are refused. The newest attempt is recorded, too, so attempts that Spark has replaced are
refused (law L5).

The epoch of a run is that of its capability in the metadata database, which workers do not open. So each run publishes
its epoch: an empty file in the folder `epochs` of the task, whose name is the epoch. The greatest epoch counts. No run
waits for another: a run that was stopped and continues late publishes an epoch that no longer counts, and removes only
files of its own epoch or of earlier epochs.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import apsw
import orjson

from derive.durable import clone, make_folders, sync
from derive.errors import FencedError, HeldError, OutdatedError
from derive.failpoint import reach
from derive.protocol.collection import version_name
from derive.shard.plan import Attempt
from derive.shard.state_database import DATABASE, begin, fault_of, fold_log, not_at, open_database, preparing, token_of
from derive.storage.blobs import translated
from derive.storage.location import Location, blobs_of
from derive.storage.metadata.chain import chains_folder, epoch_of_object
from derive.storage.metadata.process import has_open, is_stopped, lock_holder, ways_to_release
from derive.storage.segments.partition import own_path

_PATIENCE_SECONDS = 60.0
_EVICTION_SECONDS = 5.0
_POLL_SECONDS = 0.02


KEPT = "backup.lock"
"""File beside a lock. A backup locks this file, too: it must not be killed, unless it is stopped."""


@contextmanager
def kept(file: Path) -> Iterator[None]:
    """Hold a lock for a backup while the block runs; others do not kill this process meanwhile, unless it is stopped.

    Raises:
        HeldError: another process has held the lock for a minute.
    """
    mark = file.with_name(KEPT)
    with locked(file):
        descriptor = os.open(mark, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            mark.unlink(missing_ok=True)
            os.close(descriptor)


def _is_running_backup(file: Path, holder: int) -> bool:
    try:
        return lock_holder(os.stat(file.with_name(KEPT)), "FLOCK") == holder and not is_stopped(holder)
    except FileNotFoundError:
        return False


@contextmanager
def locked(
    file: Path, may_evict: Callable[[int], bool] = lambda _: False, prepare: Callable[[], None] = lambda: None
) -> Iterator[int]:
    """Hold a lock while the block runs, and yield the descriptor of the lock file.

    Args:
        file: the lock file; created if missing.
        may_evict: called with the descriptor after another process has held the lock for five seconds. It returns true
            if the other process, on this machine, may be killed without a loss of data.
        prepare: creates the folder of the file; also called after the former holder has removed this folder.

    Raises:
        HeldError: another process has held the lock for a minute.
    """
    while True:
        prepare()
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _acquire(file, descriptor, may_evict)
            if not _is_at(file, descriptor):  # the former holder has removed the folder
                continue
            yield descriptor
            return
        finally:
            os.close(descriptor)


def _is_at(file: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(file.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _acquire(file: Path, descriptor: int, may_evict: Callable[[int], bool]) -> None:
    begun = time.monotonic()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            waited = time.monotonic() - begun
        holder = lock_holder(os.fstat(descriptor), "FLOCK") if waited > _EVICTION_SECONDS else None
        is_other = holder is not None and holder != os.getpid() and not _is_running_backup(file, holder)
        if holder is not None and is_other and may_evict(descriptor) and has_open(holder, os.fstat(descriptor)):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(holder, signal.SIGKILL)
        if waited > _PATIENCE_SECONDS:
            who = f"process {holder}" if holder else "a process of another machine"
            hint = "the process works on an abandoned transaction; the task resumes when the process has ended"
            if holder is not None and is_stopped(holder):
                hint = f"the process is stopped: {ways_to_release(holder)}"
            raise HeldError(f"{who} has locked {file} for more than a minute", hint=hint)
        time.sleep(_POLL_SECONDS)


LOCK = "lock"
"""File of a shard's lock, which also records the newest attempt."""

_SHARD = re.compile("[0-9a-f]{8}-[0-9a-f]{8}")
_REMOVED = ".removed-"
"""Part of the name of the folder of a shard that is being removed."""

_NOTE_BYTES = 256

FOLD_BYTES = 64 << 10
"""Length of a log from which it is folded into the database, bytes."""


def task_folder(root: Path, task: str) -> Path:
    """Return the folder of a task's shards."""
    return root / own_path("state", task)


def shard_folder(root: Path, task: str, number: int, shards: int) -> Path:
    """Return the folder of a shard, named by its inclusive range of key hashes."""
    begin = -(-(number << 32) // shards)
    end = -(-((number + 1) << 32) // shards) - 1
    return task_folder(root, task) / f"{begin:08x}-{end:08x}"


EPOCHS = "epochs"
"""Folder in the folder of a task, with a file for each published epoch."""


def publish_epoch(root: Path, task: str, epoch: int) -> None:
    """Publish the current epoch of a task to its workers, durably; the epoch never decreases.

    Raises:
        FencedError: a newer run has published its epoch, or a reset has removed the state.
    """
    folder = task_folder(root, task)
    published = folder / EPOCHS
    with translated(folder):
        _touch(published / str(epoch))
        reach("epoch.written")
        try:
            sync(published)
        except FileNotFoundError as exc:  # removed by a later reset
            raise superseded(folder) from exc
        reach("epoch.published")
        try:
            require_epoch(folder, epoch)
        except FencedError:
            (published / str(epoch)).unlink(missing_ok=True)
            raise
        _forget_epochs(published, epoch)


def _touch(file: Path) -> None:
    """Create an empty file and its folder, which a late reset may remove as long as it is empty."""
    while True:
        try:
            make_folders(file.parent)
            file.touch()
        except FileNotFoundError:
            continue
        return


def _forget_epochs(published: Path, epoch: int) -> None:
    """Remove the files of the epochs before an epoch; others may remove these, too."""
    for earlier in filter(epoch.__gt__, _published_epochs(published)):
        (published / str(earlier)).unlink(missing_ok=True)


def remove_shards(root: Path, task: str, shards: int, epoch: int) -> None:
    """Remove the folders of unknown shards, which a crash during a split or a removal leaves behind.

    Raises:
        FencedError: a newer run has begun than that of the epoch.
    """
    known = {shard_folder(root, task, number, shards).name for number in range(shards)}
    for folder in _shard_folders(task_folder(root, task)):
        if folder.name not in known:
            _remove_shard(folder, epoch)
    for removed in task_folder(root, task).glob(f"*{_REMOVED}*"):
        shutil.rmtree(removed, ignore_errors=True)


def remove_state(root: Path, task: str, location: Location, epoch: int) -> None:
    """Remove the state of a task after an epoch was committed in the metadata database.

    Args:
        root: the data folder.
        task: name of the task.
        location: location of objects with states.
        epoch: the epoch, in which nothing was written: a newer run may have written files in later epochs.

    Raises:
        FencedError: a newer run has begun; its state stays.
    """
    folder = task_folder(root, task)
    remove_objects(location, task, epoch)
    if not folder.exists():
        return
    publish_epoch(root, task, epoch)  # from now on, processes of older runs cannot open a shard
    for shard in _shard_folders(folder):
        _remove_shard(shard, epoch)
    require_epoch(folder, epoch)
    for entry in _entries(folder):  # a shard that is here now is that of a newer run
        if entry.name == EPOCHS or _SHARD.fullmatch(entry.name):
            continue
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    _forget_epochs(folder / EPOCHS, epoch + 1)
    with suppress(OSError):  # they have files of a newer run, or files that stay
        (folder / EPOCHS).rmdir()
        folder.rmdir()


def remove_objects(
    location: Location, task: str, epoch: int, *, keep: Collection[str] = (), traveled: Collection[Path] = ()
) -> None:
    """Remove objects of a task's shards that no chain names, after a new epoch was committed.

    Args:
        location: location of the objects.
        task: the task in whose folder the state is.
        epoch: the new epoch, which has written no object yet: a newer run may have written objects of later epochs.
        keep: paths of the objects that chains name, as read under the epoch.
        traveled: folders of shards whose state now is in objects.

    Raises:
        FencedError: a newer run has begun, whose state may have come back into its folder.
    """
    blobs = blobs_of(location)
    written = {name: epoch_of_object(name) for name in blobs.list(chains_folder(task), "*") if name not in keep}
    removed = [name for name, begun in written.items() if begun is not None and begun <= epoch]
    if removed:
        blobs.delete(removed)
        reach("chain.collected")
    for folder in traveled:
        if keeps_state(folder):
            _remove_shard(folder, epoch)


def shadow_states(root: Path, task: str) -> list[str]:
    """Return the names of a task's shadows whose state has a folder."""
    folder = task_folder(root, task)
    numbers = [other.name[len(folder.name) : -1] for other in folder.parent.glob(f"{folder.name}*@")]
    return [version_name(task, int(number)) for number in numbers if number.isdecimal()]


def _shard_folders(folder: Path) -> list[Path]:
    return [shard for shard in _entries(folder) if _SHARD.fullmatch(shard.name)]


def _entries(folder: Path) -> list[Path]:
    """Return the entries of the folder of a task; none if a reset has removed the folder."""
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _remove_shard(folder: Path, epoch: int) -> None:
    """Remove the folder of a shard that is no longer used; wait for a process that is opening the shard.

    The folder first gets another name, in one step. So a process that is stopped during the removal removes no file of
    a newer run, which creates the folder again.

    Raises:
        FencedError: a newer run has begun, which may use the folder.
    """

    def may_evict(_: int) -> bool:
        require_epoch(folder.parent, epoch)
        return True

    removed = folder.with_name(f"{folder.name}{_REMOVED}{uuid.uuid4()}")
    with translated(folder), suppress(FileNotFoundError):  # another process has removed the folder
        with locked(folder / LOCK, may_evict):
            require_epoch(folder.parent, epoch)
            folder.rename(removed)
        reach("state.removing")
        shutil.rmtree(removed, ignore_errors=True)


def current_epoch(folder: Path) -> int | None:
    """Return the current epoch of a task; None after a reset."""
    return max(_published_epochs(folder / EPOCHS), default=None)


def _published_epochs(published: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(published) if name.isdecimal()]
    except FileNotFoundError:
        return []


def require_epoch(folder: Path, epoch: int) -> None:
    """Raise an error if a run of a later epoch has begun.

    Args:
        folder: folder of the task.
        epoch: epoch of the caller.

    Raises:
        FencedError: a later epoch was published.
    """
    if (current_epoch(folder) or 0) > epoch:
        raise superseded(folder)


@contextmanager
def open_state(
    folder: Path,
    *,
    attempt: Attempt,
    committed: str | None,
    fold_bytes: int = FOLD_BYTES,
    fetch: Callable[[Path], None] | None = None,
) -> Iterator[apsw.Connection]:
    """Yield a shard's database in an open transaction; if the block raises no error, the transaction is prepared.

    After an error, the writes of the block are discarded.

    Args:
        folder: folder of the shard.
        attempt: the attempt.
        committed: name of the last committed attempt; None for none.
        fold_bytes: length from which the committed log is folded.
        fetch: writes the database at the committed attempt into a new file, if the state has travelled; None for a
            state that stays in the folder.

    Raises:
        FencedError: a newer run has begun.
        OutdatedError: a newer attempt has begun.
        HeldError: a process of another machine holds the shard's folder.
        StorageError: the database is not at the committed attempt, or the block has ended its transaction.
    """
    own = folder / str(attempt)
    with translated(folder):
        with owned(folder, attempt):
            if fetch is not None and committed is not None:
                _replace(folder, committed, fetch)
            log = _settle(folder, committed, attempt, fold_bytes)
            db = begin(own, None if committed is None else folder / DATABASE, committed, log)
        with preparing(db, own, attempt):
            yield db
        sync(folder)  # makes the attempt's folder durable; the entries of the folder are synced with the log


def _replace(folder: Path, committed: str, fetch: Callable[[Path], None]) -> None:
    """Replace a shard's database by its fetched state, durably, unless it is at the committed attempt."""
    path, new = folder / DATABASE, folder / f"{DATABASE}.new"
    if path.exists():
        db = open_database(path)
        is_there = token_of(db) == committed
        db.close(True)
        if is_there:
            return
    for file in (new, path, Path(f"{path}-wal")):
        file.unlink(missing_ok=True)
    fetch(new)
    sync(new)
    new.replace(path)
    sync(folder)


def fold(folder: Path, *, attempt: Attempt, committed: str) -> Path:
    """Fold the committed attempt into a shard's database file; return its path.

    Raises:
        FencedError: a newer run has begun.
        OutdatedError: a newer attempt has begun.
        HeldError: a process of another machine holds the shard's folder.
        StorageError: the database is not at the committed attempt.
    """
    path = folder / DATABASE
    with translated(folder), owned(folder, attempt):
        _settle(folder, committed, attempt)
        _require_token(path, committed)
    return path


def copy_state(
    database: Path, folder: Path, *, attempt: Attempt, divide: Callable[[apsw.Connection], None] | None = None
) -> None:
    """Replace a shard's state by a durable copy of another shard's folded database.

    Args:
        database: the folded database.
        folder: folder of the shard.
        attempt: the attempt that copies.
        divide: deletes the state of other shards from the copy; None to keep all.

    Raises:
        FencedError: a newer run has begun.
        OutdatedError: a newer attempt has begun.
        HeldError: a process of another machine holds the shard's folder.
    """
    with translated(folder), owned(folder, attempt):
        for entry in folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != LOCK:
                entry.unlink()
        copy = folder / DATABASE
        shutil.copyfile(database, copy)
        if divide is not None:
            with closing(apsw.Connection(str(copy))) as db, db:
                divide(db)
        for path in (copy, folder, folder.parent):
            sync(path)


def still(folder: Path) -> AbstractContextManager[None]:
    """Return a lock during which the shard cannot be opened; an attempt that is already running continues.

    Raises:
        HeldError: another process holds the folder.
    """
    return kept(folder / LOCK)


def read_lock(folder: Path, epoch: int | None) -> AbstractContextManager[object]:
    """Return the lock under which the state of a shard is read.

    Args:
        folder: folder of the shard, or of its cache.
        epoch: epoch of the run that reads, which may end processes of older runs; None for other readers.
    """
    return still(folder) if epoch is None else locked(folder / LOCK, lambda held: _newest(held).epoch < epoch)


def keeps_state(folder: Path) -> bool:
    """Return true if a shard's folder has a state database, settled or prepared."""
    return (folder / DATABASE).exists() or any(folder.glob(f"*/{DATABASE}"))


def copy_prepared(folder: Path, copy: Path, committed: str) -> bool:
    """Copy the database of a shard with the log of the committed attempt, from a folder that `still` has locked.

    Args:
        folder: folder of the shard.
        copy: folder for both files, for `settle_copy`.
        committed: name of the last committed attempt.

    Returns:
        False if the shard has no state.
    """
    prepared = folder / committed / DATABASE
    database = prepared if prepared.exists() else folder / DATABASE
    if not database.exists():
        return False
    with translated(copy):
        for suffix in ("", "-wal"):
            if Path(f"{database}{suffix}").exists():
                clone(Path(f"{database}{suffix}"), copy / f"{DATABASE}{suffix}")
    return True


def settle_copy(copy: Path, committed: str) -> Path:
    """Fold the log of a copied database, durably; return the path of the database.

    Raises:
        StorageError: the database is not at the committed attempt.
    """
    path = copy / DATABASE
    with translated(copy):
        fold_log(path)
        _require_token(path, committed)
        sync(path)
        sync(copy)
    return path


@contextmanager
def committed_state(folder: Path, committed: str, epoch: int | None = None) -> Iterator[apsw.Connection | None]:
    """Yield a shard's database at its last commit, for reading; None if the shard has no database.

    Args:
        folder: folder of the shard.
        committed: name of the last committed attempt.
        epoch: epoch of the run that reads, which may end processes of older runs; None for other readers.

    Raises:
        HeldError: another process holds the folder.
        StorageError: the database cannot be read.
    """
    if not folder.exists():
        yield None
        return
    with translated(folder), read_lock(folder, epoch):
        prepared = folder / committed / DATABASE
        path = prepared if prepared.exists() else folder / DATABASE
        if not path.exists():
            yield None
            return
        log = Path(f"{path}-wal")
        has_log = log.exists()
        db = open_database(path)
        try:
            yield db
        finally:
            db.close(True)
            if not has_log:
                log.unlink(missing_ok=True)  # SQLite has made an empty log


def damage(folder: Path, committed: Callable[[], str | None]) -> str | None:
    """Return the fault of a shard's database; None for none.

    Args:
        folder: folder of the shard.
        committed: returns the present name of the last committed attempt.
    """
    if not folder.exists():
        return None
    with translated(folder), still(folder):
        token = committed()
        if token is None:
            return None
        prepared = folder / token / DATABASE
        path = prepared if prepared.exists() else folder / DATABASE
        if not path.exists():
            return None
        return fault_of(path, token)


def owned(folder: Path, attempt: Attempt) -> AbstractContextManager[None]:
    """Lock the folder of a shard; refuse every attempt except the newest attempt of the task's current run."""

    def check(_: Attempt) -> None:
        if current_epoch(folder.parent) != attempt.epoch:
            raise superseded(folder.parent)

    return recorded(folder, attempt, check)


@contextmanager
def recorded(folder: Path, attempt: Attempt, check: Callable[[Attempt], None]) -> Iterator[None]:
    """Lock a folder with the state of a shard, and record the attempt; refuse every attempt except the newest.

    Args:
        folder: the folder.
        attempt: the attempt.
        check: called under the lock with the newest attempt so far; raises an error to refuse the attempt.

    Raises:
        OutdatedError: a newer attempt has begun.
        HeldError: another process holds the folder.
    """
    with locked(
        folder / LOCK, lambda descriptor: _newest(descriptor) <= attempt, partial(make_folders, folder)
    ) as descriptor:
        newest = _newest(descriptor)
        check(newest)
        if newest > attempt:
            raise OutdatedError(f"a newer attempt has opened the state in {folder}")
        # No sync is needed: no attempt outlives a loss of power, and other machines see the record once the lock is
        # free.
        os.pwrite(descriptor, orjson.dumps(attempt.to_json()).ljust(_NOTE_BYTES), 0)
        yield


def _newest(descriptor: int) -> Attempt:
    """Return the newest attempt that has opened a shard, from its open lock file.

    A record that a loss of power has damaged counts as no record, because no attempt has survived the loss.
    """
    try:
        return Attempt.from_json(orjson.loads(os.pread(descriptor, _NOTE_BYTES, 0)))
    except ValueError:
        return Attempt(0)


def superseded(folder: Path) -> FencedError:
    """Return the error of a run that another run has fenced, with the folder of the task."""
    return FencedError(f"another flowctl runs '{folder.name.removesuffix('@')}' now, or has reset it")


def _settle(folder: Path, committed: str | None, attempt: Attempt, fold_bytes: int = 0) -> Path | None:
    """Settle a shard's database at the committed attempt: fold its log, and remove other attempts.

    Other attempts at the same transaction stay, because one of these may be committed.

    Returns:
        The log of the committed attempt if it is too short to fold; None otherwise.
    """
    path, log = folder / DATABASE, None
    if committed is None:
        # Without a commit, all files were left by failed attempts.
        for suffix in ("", "-wal"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
            reach("state.forgotten")
    else:
        prepared = folder / committed / DATABASE
        if prepared.exists():
            log = _short_log(prepared, path, fold_bytes)
            if log is None:
                fold_log(prepared)
                _enter(prepared, path)
        elif Path(f"{path}-wal").exists():
            _settle_log_beside(path, committed)
    kept = committed if log else None
    others = [
        entry
        for entry in folder.iterdir()
        if entry.is_dir() and entry.name != kept and not attempt.is_sibling(entry.name)
    ]
    if others:
        reach("state.discarding")
    for other in others:
        shutil.rmtree(other, ignore_errors=True)
        reach("state.discarded")
    return log


def _short_log(prepared: Path, path: Path, fold_bytes: int) -> Path | None:
    """Return the log of an attempt if it is too short to fold; None otherwise."""
    log = Path(f"{prepared}-wal")
    is_short = log.exists() and 0 < log.stat().st_size < fold_bytes
    return log if is_short and path.exists() and path.samefile(prepared) else None


def _enter(prepared: Path, path: Path) -> None:
    """Make a folded database the database of its shard, durably.

    Most folded databases are the database of their shard already. Exceptions are the first commit, and data folders
    that were copied without hard links.
    """
    if not (path.exists() and path.samefile(prepared)):
        link = path.with_name(f"{path.name}.new")
        link.unlink(missing_ok=True)
        os.link(prepared, link)
        link.replace(path)
        sync(path.parent)


def _settle_log_beside(path: Path, committed: str) -> None:
    """Fold or remove a log beside the database itself, where older versions stored the log."""
    db = open_database(path)
    is_committed = token_of(db) == committed
    db.close(True)
    if is_committed:
        fold_log(path)
    Path(f"{path}-wal").unlink()


def _require_token(path: Path, committed: str) -> None:
    if not path.exists():
        raise not_at(path, committed)
    db = open_database(path)
    token = token_of(db)
    db.close(True)
    Path(f"{path}-wal").unlink(missing_ok=True)
    if token != committed:
        raise not_at(path, committed)
