"""The cache of a shard's state on the machine of a worker, if the state travels between machines as objects.

The cache has the database at the last commit, whose file name is the identity of its chain, and a folder for each
attempt with a hard link to the database and the log of the attempt. A shard is opened at one chain:

- The cache has the database of this chain: the attempt uses it.
- The attempt that was committed last has run here: its log is folded into the database.
- Otherwise the missing objects are fetched, and applied to a copy of the database of an earlier chain, if there is one.

A database is never changed while it has the name of a chain: its name is removed before a log is folded, and a fetched
database gets its name when it is complete. So a cache is correct after a crash of a process, and no write of the cache
waits for the disk. A loss of power may damage the cache, so each boot of a machine has caches of its own.

The cache records the newest attempt and refuses earlier attempts, as the folder of a shard does whose state does not
travel. A late attempt may read a database into which a newer attempt folds a log. This does no harm: the driver has
committed another attempt by then, or is fenced, so no chain will name the objects of the late attempt.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import apsw

from derive.failpoint import reach
from derive.shard.plan import Attempt
from derive.shard.state import LOCK, read_lock, recorded, shard_folder, superseded
from derive.shard.state_database import DATABASE, begin, fold_log, open_database, preparing
from derive.shard.state_objects import apply_links
from derive.storage.blobs import Blobs, translated
from derive.storage.metadata.chain import Chain, identity_of
from derive.storage.metadata.identity import PRIVATE
from derive.storage.metadata.process import boot

_CHAIN = "chain"
"""File in the folder of an attempt: the identity of the chain after the attempt."""

_UNUSED_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Origin:
    """The state of a shard at its last commit.

    Attributes:
        committed: name of the attempt that was committed last; None for none.
        chain: the chain of the state; empty if the state has not travelled yet.
        blobs: the place of the objects.
        copy: copies the database of a state that has not travelled yet into a new file; None for other states.
    """

    committed: str | None
    chain: Chain
    blobs: Blobs
    copy: Callable[[Path], None] | None = None

    @property
    def identity(self) -> str:
        """Return the identity of the state."""
        return identity_of(self.chain) if self.chain else f"before {self.committed}"


def cache_folder(root: Path, task: str, number: int, shards: int) -> Path:
    """Return the folder of a shard's cache on this machine.

    Args:
        root: folder of the caches of a data folder.
        task: the task in whose folder the state is.
        number: number of the shard.
        shards: number of the task's shards.
    """
    _prepare(root)
    return shard_folder(root / (boot() or f"process-{os.getpid()}"), task, number, shards)


@cache
def _prepare(root: Path) -> None:
    """Create the folder of caches, and remove the caches that no attempt has opened for a day; once for each process.

    Documents are private, so other users have no access.
    """
    with translated(root):
        root.mkdir(PRIVATE, parents=True, exist_ok=True)
    oldest = time.time() - _UNUSED_SECONDS
    for lock in root.rglob(LOCK):
        with suppress(OSError):
            if lock.stat().st_mtime < oldest:
                shutil.rmtree(lock.parent, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class CachedAttempt:
    """An attempt at a shard whose state travels.

    Attributes:
        db: the database, in an open transaction.
        folder: folder of the attempt.
    """

    db: apsw.Connection
    folder: Path

    @property
    def before(self) -> Path:
        """Return the database without the changes of the attempt."""
        return self.folder / DATABASE

    @property
    def log(self) -> Path:
        """Return the write-ahead log with the changes of the attempt."""
        return self.folder / f"{DATABASE}-wal"

    def record(self, chain: Chain) -> None:
        """Record the chain after the attempt, so that its log can be folded if the attempt is committed."""
        with suppress(FileNotFoundError):  # a newer attempt has removed the folder
            (self.folder / _CHAIN).write_text(identity_of(chain))


@contextmanager
def open_cached(folder: Path, *, attempt: Attempt, origin: Origin) -> Iterator[CachedAttempt]:
    """Yield a shard's database in an open transaction; if the block raises no error, the transaction is in the log.

    Args:
        folder: folder of the cache.
        attempt: the attempt.
        origin: the state at the last commit.

    Raises:
        FencedError: a newer run has used the cache.
        OutdatedError: a newer attempt has begun.
        HeldError: another process holds the cache.
        StorageError: an object is missing or damaged, or the block has ended its transaction.
    """

    def check(newest: Attempt) -> None:
        if newest.epoch > attempt.epoch:
            error = superseded(folder.parent)
            error.hint = f"if the data folder was restored from a snapshot of its file system, remove {folder.parent}"
            raise error

    own = folder / str(attempt)
    with translated(folder):
        with recorded(folder, attempt, check):
            base = _settle(folder, attempt, origin)
            db = begin(own, base, origin.committed, is_durable=False)
        with preparing(db, own, attempt):
            yield CachedAttempt(db, own)


def _settle(folder: Path, attempt: Attempt, origin: Origin) -> Path | None:
    """Return the database at the last commit, and remove all other files; None for a shard without state.

    Other attempts at the same transaction stay, because one of these may be committed.
    """
    if origin.committed is None:
        _discard(folder, attempt)
        return None
    database = folder / f"{origin.identity}.db"
    if not database.exists():
        _discard_attempts(folder, attempt, origin.committed)
        if _leads_to(folder / origin.committed, origin.identity):
            _fold(folder, folder / origin.committed, database)
        else:
            _fetch(folder, origin, database)
    _discard(folder, attempt, database.name)
    return database


def _leads_to(prepared: Path, identity: str) -> bool:
    """Return whether the folder of an attempt has the log after which a state is reached."""
    try:
        return (prepared / _CHAIN).read_text() == identity
    except FileNotFoundError:
        return False


def _fold(folder: Path, prepared: Path, database: Path) -> None:
    """Fold the log of the committed attempt into its database."""
    for named in folder.glob("*.db"):  # hard links to the same file, which is no longer the state of their chain
        named.unlink()
    fold_log(prepared / DATABASE, is_durable=False)
    os.link(prepared / DATABASE, database)


def _fetch(folder: Path, origin: Origin, database: Path) -> None:
    """Fetch the missing objects of a chain."""
    new = database.with_suffix(".new")
    new.unlink(missing_ok=True)
    if origin.copy is not None and not origin.chain:
        origin.copy(new)
    else:
        known = _known_links(folder, origin.chain)
        if known:
            shutil.copyfile(folder / f"{identity_of(origin.chain[:known])}.db", new)
        apply_links(origin.blobs, origin.chain[known:], new)
    reach("chain.fetched")
    new.replace(database)


def _known_links(folder: Path, chain: Chain) -> int:
    """Return the number of the first links of a chain whose state is in the cache."""
    names = {file.stem for file in folder.glob("*.db")}
    numbers = range(len(chain) - 1, 0, -1) if names else range(0)
    return next((number for number in numbers if identity_of(chain[:number]) in names), 0)


def _discard(folder: Path, attempt: Attempt, database: str = "") -> None:
    """Remove all databases except one, and the folders of earlier attempts."""
    for entry in folder.iterdir():
        if entry.is_file() and entry.name not in (LOCK, database) and not entry.name.startswith("backup."):
            entry.unlink(missing_ok=True)
    _discard_attempts(folder, attempt)


def _discard_attempts(folder: Path, attempt: Attempt, committed: str = "") -> None:
    """Remove the folders of attempts, except the committed attempt and attempts at the present transaction."""
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name != committed and not attempt.is_sibling(entry.name):
            shutil.rmtree(entry, ignore_errors=True)


@contextmanager
def cached_state(folder: Path, origin: Origin, epoch: int | None = None) -> Iterator[apsw.Connection]:
    """Yield a shard's database at its last commit, for reading; fetch what the cache does not have.

    Args:
        folder: folder of the cache.
        origin: the state at the last commit.
        epoch: epoch of the run that reads, which may end processes of older runs; None for other readers.

    Raises:
        HeldError: another process holds the cache.
        StorageError: an object is missing or damaged.
    """
    with translated(folder), ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(read_lock(folder, epoch))
        database = folder / f"{origin.identity}.db"
        if not database.exists() and _leads_to(folder / str(origin.committed), origin.identity):
            database = folder / str(origin.committed) / DATABASE
        elif not database.exists():
            _fetch(folder, origin, database)
        db = open_database(database, is_durable=False)
        try:
            yield db
        finally:
            db.close(True)
            _remove_empty_log(database)


def _remove_empty_log(database: Path) -> None:
    """Remove the empty log that SQLite has made beside a database."""
    log = Path(f"{database}-wal")
    if log.exists() and not log.stat().st_size:
        log.unlink()
