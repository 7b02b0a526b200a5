"""Backups of data folders: made while tasks run, restored into any folder, and verified file by file.

A folder without a manifest is not a backup, or is an incomplete backup.

Two locks are held while the metadata is copied: the lock of epochs (no task begins to run, is reset or is split), and
the locks of shards (no shard is opened for another transaction). A shard's lock is released after its state is copied.
Running attempts continue and may commit: the copied metadata names the attempt whose state is copied, and a prepared
state stays until the shard is opened again.

Metadata and states are copied as of one time. Segments do not change, so a backup on the same file system has hard
links to them. A backup on another file system has copies, and so has a backup of segments in an object store. Read
capabilities protect segments from removal during the backup. If a reset removes segments in spite of this, metadata and
states are copied again.

The copied metadata are a SQLite database, also if those of the data folder are in PostgreSQL.

Other processes may work during a verification, so a finding is checked against the metadata again before it is
reported.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import apsw
import orjson

from derive.document.clock import format_rfc3339
from derive.durable import make_folders, sync
from derive.errors import BusyError, FlowError, StateMissingError, StorageError, UsageError
from derive.failpoint import reach
from derive.plural import counted
from derive.shard.state import (
    copy_prepared,
    damage,
    keeps_state,
    settle_copy,
    shard_folder,
    still,
)
from derive.shard.state_objects import fault_of_chain
from derive.storage.blobs import translated
from derive.storage.capability.table import every_epoch
from derive.storage.folder_id import identity_of as folder_identity
from derive.storage.location import Location, blobs_of, fetch
from derive.storage.metadata.chain import CHAINS, object_paths, read_chains
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.descriptions import TaskState
from derive.storage.metadata.identity import DATABASE, PRIVATE, identity_of, read_commits
from derive.storage.metadata.materializations import adopt_every_file, read_record
from derive.storage.metadata.segment import every_segment, is_segment
from derive.storage.metadata.sqlite import SqliteConnection
from derive.storage.metadata.tasks import read_task, read_tasks
from derive.storage.metadata.transaction import Transaction
from derive.storage.segments.partition import own_path
from derive.storage.segments.segment_file import check_segments
from derive.storage.store import Store
from derive.time.positions import Segment

MANIFEST = "backup.json"
_FORM = 1


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a backup: its size in bytes, and its SHA-256 in hexadecimal digits."""

    bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a backup.

    Attributes:
        folder: identifier of the data folder of the backup.
        former: identifiers of the folders from whose backups this data folder was restored, the newest first.
        at: time of the backup, RFC 3339.
        files: files by path relative to the backup.
    """

    folder: str
    former: tuple[str, ...]
    at: str
    files: Mapping[str, StoredFile]


def present() -> str:
    """Return the present time, RFC 3339."""
    return format_rfc3339(time.time_ns() // 1000)


def file_checksum(path: Path) -> StoredFile:
    """Read a file and return its size and checksum."""
    with path.open("rb", buffering=0) as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    return StoredFile(path.stat().st_size, checksum)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a manifest durably and atomically."""
    value = {
        "form": _FORM,
        "folder": manifest.folder,
        "former": list(manifest.former),
        "at": manifest.at,
        "files": {path: [file.bytes, file.checksum] for path, file in sorted(manifest.files.items())},
    }
    draft = folder / f"{MANIFEST}.new"
    draft.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2))
    sync(draft)
    draft.replace(folder / MANIFEST)
    sync(folder)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a backup.

    Raises:
        UsageError: the folder is not a backup, or its manifest is damaged.
    """
    try:
        value: Any = orjson.loads((folder / MANIFEST).read_bytes())
        files = {path: StoredFile(*file) for path, file in value["files"].items()}
        manifest = Manifest(value["folder"], tuple(value["former"]), value["at"], files)
    except (FileNotFoundError, NotADirectoryError):
        unfinished = folder.is_dir() and any(folder.iterdir())
        raise UsageError(
            f"{folder} is not a backup: it has no {MANIFEST}",
            hint="the backup is incomplete: take another backup" if unfinished else None,
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise UsageError(f"{folder / MANIFEST} is damaged: {exc}", hint="use another backup") from exc
    if value["form"] != _FORM:
        raise UsageError(
            f"{folder} has backup format {value['form']}, but this flowctl reads format {_FORM}",
            hint="restore the backup with the release of flowctl that made it",
        )
    return manifest


_ATTEMPTS = 5


def copy_snapshot(root: Path, metadata: Metadata, copy: Path) -> None:
    """Copy metadata and shard states as of one time.

    Args:
        root: the data folder.
        metadata: its metadata database.
        copy: the destination; its earlier copies of these files are removed first.

    Raises:
        BusyError: tasks were started, split or reset during every attempt.
        HeldError: another process holds a shard's state.
        StorageError: a file cannot be copied.
    """
    for _ in range(_ATTEMPTS):
        _forget(copy)
        with ExitStack() as standstill, translated(copy):
            shards = _hold_shards(root, metadata, standstill)
            metadata.copy(copy / DATABASE)
            reach("backup.metadata")
            if not _adopt_copied(root, metadata, copy):
                continue  # a run has moved the files of an earlier release into the metadata
            tasks = read_copied_tasks(copy)
            folders = _folders(root, tasks)
            if not shards.keys() >= {folder for folder in folders if keeps_state(folder)}:
                continue
            epochs = _copied_epochs(copy)
            changing = {task.name for task in tasks if not shards.keys() >= _folders(root, [task]).keys()}
            with metadata.snapshot() as db:
                present = every_epoch(db)
            if any(epochs[task] != present.get(task) for task in changing):
                continue  # a reset may have removed files of a shard that is not locked
            _copy_states(root, copy, folders, shards)
            return
    raise BusyError(f"tasks of {root} were started, split or reset during every attempt", hint="run the command again")


def _adopt_copied(root: Path, metadata: Metadata, copy: Path) -> bool:
    """Record the facts in the files of an earlier release in a copied metadata database, which is then complete.

    Returns:
        False if other processes have recorded such facts in the metadata meanwhile, and perhaps removed the files.
    """
    with closing(SqliteConnection(str(copy / DATABASE), apsw.SQLITE_OPEN_READWRITE)) as db:
        missing = [task.name for task in read_tasks(db) if not read_record(db, task.name).is_stored]
        if not missing:
            return True
        db.execute("BEGIN IMMEDIATE")
        adopted = adopt_every_file(db, root)
        db.execute("COMMIT")
    if adopted:
        sync(copy / DATABASE)
    with metadata.snapshot() as live:
        return not any(read_record(live, name).is_stored for name in missing)


def read_copied_tasks(copy: Path) -> list[TaskState]:
    """Return the tasks of a copied metadata database."""
    with closing(SqliteConnection(str(copy / DATABASE), apsw.SQLITE_OPEN_READONLY)) as db:
        return read_tasks(db)


def _copied_epochs(copy: Path) -> dict[str, int]:
    with closing(SqliteConnection(str(copy / DATABASE), apsw.SQLITE_OPEN_READONLY)) as db:
        return every_epoch(db)


def _forget(copy: Path) -> None:
    (copy / DATABASE).unlink(missing_ok=True)
    for folder in ("state", CHAINS):
        shutil.rmtree(copy / folder, ignore_errors=True)


def _folders(root: Path, tasks: list[TaskState]) -> dict[Path, str]:
    """Return the last committed attempt of each shard whose state does not travel, by the shard's folder."""
    return {
        shard_folder(root, task.folder, number, task.shards): token
        for task in tasks
        for number, token in task.tokens.items()
        if number not in task.chains
    }


def _hold_shards(root: Path, metadata: Metadata, standstill: ExitStack) -> dict[Path, ExitStack]:
    """Lock the folders of all shards with state; closing a shard's stack releases its lock."""
    with metadata.snapshot() as db:
        folders = _folders(root, read_tasks(db))
    shards = {}
    for folder in sorted(filter(keeps_state, folders)):
        shards[folder] = standstill.enter_context(ExitStack())
        shards[folder].enter_context(still(folder))
    return shards


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


Progress: TypeAlias = Callable[[int, int], None]
"""A function that is called with the number of files that are done, and of all files."""

_TIMES = 10


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a backup.

    Attributes:
        base: an earlier backup, whose unchanged files are linked; None for none.
        copies: whether to copy segments, and not to link them to files of the data folder.
        progress: called with the number of files that are in the backup, and of all files.
    """

    base: Path | None = None
    copies: bool = False
    progress: Progress = lambda done, total: None


@dataclass(frozen=True, slots=True)
class Backup:
    """The outcome of a backup.

    Attributes:
        segments: number of segments.
        linked: number of linked segments.
        bytes: size of all files.
        at: time of the backup, RFC 3339.
    """

    segments: int
    linked: int
    bytes: int
    at: str


class _Gone(Exception):
    """A segment, or an object of a state, is missing."""

    def __init__(self, path: str, what: str) -> None:
        self.path, self.what = path, what


def require_empty(folder: Path) -> None:
    """Raise an error unless a folder is missing or empty.

    Raises:
        UsageError: the folder is a file, or is not empty.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    if folder.is_dir() and any(folder.iterdir()):
        what = f"holds a backup, which has {MANIFEST}" if (folder / MANIFEST).exists() else "is not empty"
        raise UsageError(f"{folder} {what}", hint="name a folder that does not exist")


def back_up(store: Store, folder: Path, options: Options | None = None) -> Backup:
    """Back up a data folder into an empty folder; other processes may use the data folder meanwhile.

    Args:
        store: the data folder.
        folder: the backup's folder; created if missing.
        options: options of the backup.

    Raises:
        UsageError: the folder is not empty or lies in the data folder, or the base is not a backup.
        StorageError: a file is missing or damaged, or cannot be copied.
    """
    options = options or Options()
    require_empty(folder)
    if folder.absolute().is_relative_to(store.root.absolute()):
        raise UsageError(f"{folder} lies in the data folder {store.root}", hint="name a folder elsewhere")
    if options.base is not None and not (options.base / MANIFEST).exists():
        raise UsageError(f"{options.base} is not a backup: it has no {MANIFEST}")
    taking = _Taking(store, folder, options)
    with translated(folder), store.capabilities.keep_all():
        make_folders(folder.absolute(), PRIVATE)
        reach("backup.begun")
        return taking.take()


class _Taking:
    """A backup in progress."""

    def __init__(self, store: Store, folder: Path, options: Options) -> None:
        self._root, self._location, self._metadata = store.root, store.location, store.metadata
        self._folder, self._options = folder, options
        self._segments: dict[str, StoredFile] = {}
        self._linked: set[str] = set()
        self._others = 0  # number of files that are no segments

    def take(self) -> Backup:
        missing: set[str] = set()
        for _ in range(_TIMES):
            at = present()
            copy_snapshot(self._root, self._metadata, self._folder)
            self._others = len(self._other_files(self._segments))
            try:
                desired = self._copy_segments()
                self._copy_objects()
            except _Gone as gone:
                if gone.path in missing:
                    raise StorageError(
                        f"{gone.what} is missing: {gone.path}", hint="list the damaged files: flowctl verify"
                    ) from None
                missing.add(gone.path)
            else:
                return self._complete(desired, at)
        raise BusyError(f"collections of {self._root} were reset during every attempt", hint="run the command again")

    def _copy_segments(self) -> set[str]:
        """Copy or link all segments that the copied metadata names; return their paths."""
        with closing(apsw.Connection(str(self._folder / DATABASE), apsw.SQLITE_OPEN_READONLY)) as db:
            rows: list[Any] = db.execute("SELECT path, bytes, checksum FROM segment ORDER BY path").fetchall()
        for path, size, checksum in rows:
            if path not in self._segments:
                self._segments[path] = self._copy(path, size, checksum)
                reach("backup.segment")
                self._options.progress(len(self._segments), len(rows) + self._others)
        for folder in {(self._folder / path).parent for path in self._segments}:
            sync(folder)
        return {row[0] for row in rows}

    def _other_files(self, known: Collection[str]) -> list[str]:
        """Return the sorted paths of the files of the backup that are not known yet."""
        paths = (str(entry.relative_to(self._folder)) for entry in self._folder.rglob("*") if entry.is_file())
        return sorted(path for path in paths if path not in known)

    def _copy_objects(self) -> None:
        """Copy or link the objects of states that travel."""
        with closing(SqliteConnection(str(self._folder / DATABASE), apsw.SQLITE_OPEN_READONLY)) as db:
            paths = object_paths(db)
        for path in paths:
            self._place(path, "an object with states of shards")
            reach("backup.object")
        for folder in {(self._folder / path).parent for path in paths}:
            sync(folder)

    def _place(self, path: str, kind: str = "a segment") -> Path:
        """Link or copy a file into the backup, and return its path there."""
        target = self._folder / path
        make_folders(target.parent)
        if not self._link(path, target):
            try:
                fetch(self._location, path, target)
            except FileNotFoundError:
                raise _Gone(path, kind) from None
        return target

    def _copy(self, path: str, size: int, checksum: str) -> StoredFile:
        target = self._place(path)
        is_known = path in self._linked and checksum and target.stat().st_size == size
        file = StoredFile(size, checksum) if is_known else file_checksum(target)
        if file.bytes != size or (checksum and file.checksum != checksum):
            raise StorageError(
                f"a segment is damaged: the checksum of {path} differs from the recorded one",
                hint="list the damaged files: flowctl verify",
            )
        return file

    def _link(self, path: str, target: Path) -> bool:
        """Link a segment to the earlier backup or, without the option `copies`, to the data folder.

        Return true if linked.
        """
        sources = [self._options.base / path] if self._options.base else []
        if not self._options.copies and isinstance(self._location, Path):
            sources.append(self._location / path)
        for source in sources:
            with suppress(OSError):
                os.link(source, target)
                self._linked.add(path)
                return True
        return False

    def _complete(self, desired: set[str], at: str) -> Backup:
        for path in self._segments.keys() - desired:
            (self._folder / path).unlink()
        files = {path: self._segments[path] for path in desired}
        for count, path in enumerate(others := self._other_files(files), start=1):
            files[path] = file_checksum(self._folder / path)
            self._options.progress(len(desired) + count, len(desired) + len(others))
        for entry in self._folder.rglob("*"):
            if entry.is_dir():
                sync(entry)
        identity = folder_identity(self._root)
        reach("backup.completing")
        write_manifest(self._folder, Manifest(identity.id, identity.former, at, files))
        reach("backup.completed")
        total = sum(file.bytes for file in files.values())
        return Backup(len(desired), len(self._linked & desired), total, at)


@dataclass(frozen=True, slots=True)
class Finding:
    """A defect of a file.

    Attributes:
        kind: `missing`, `truncated`, `changed`, `damaged`, `unknown` or `older`.
        path: path of the file, relative to the folder.
        what: description, for people.
        collection: collection of the file; None for other files.
        task: task of the state; None for other files.
    """

    kind: str
    path: str
    what: str
    collection: str | None = None
    task: str | None = None


def verify_backup(folder: Path, progress: Progress = lambda done, total: None) -> Iterator[Finding]:
    """Compare all files of a backup with its manifest; yield the findings.

    Raises:
        UsageError: the folder is no backup.
    """
    manifest = read_manifest(folder)
    for count, (path, stored) in enumerate(sorted(manifest.files.items()), start=1):
        finding = _compare(folder, path, stored.bytes, stored.checksum)
        if finding is not None:
            yield finding
        progress(count, len(manifest.files))
    for entry in sorted(folder.rglob("*")):
        path = str(entry.relative_to(folder))
        if entry.is_file() and path not in manifest.files and path != "backup.json":
            yield Finding("unknown", path, "the backup does not name this file")


class Verification:
    """The verification of a data folder.

    Args:
        store: the data folder.
    """

    def __init__(self, store: Store) -> None:
        self._root, self._location, self._metadata = store.root, store.location, store.metadata
        self._unknown = store.garbage.unknown

    def run(self, progress: Progress = lambda done, total: None) -> Iterator[Finding]:
        """Yield the findings one after the other.

        Args:
            progress: called with the number of checked files, and of all files.
        """
        made = read_commits(self._root)
        with self._metadata.reader() as db:
            yield from self._databases(db, made)
            tasks, count = read_tasks(db), 0
            total = db.execute("SELECT count(*) FROM segment").get + sum(len(task.tokens) for task in tasks)
            for count, segment in enumerate(every_segment(db), start=1):
                finding = self._segment(segment)
                if finding is not None and is_segment(db, segment.path):
                    yield finding
                progress(count, total)
            yield from (
                Finding("unknown", path, "the metadata does not name this file, which stays")
                for path in self._unknown()
            )
            yield from self._states(db, tasks, lambda states: progress(count + states, total))

    def _databases(self, db: Transaction, made: int | None) -> Iterator[Finding]:
        fault = self._metadata.damage()
        if fault:
            yield Finding("damaged", self._metadata.file, fault)
        _, commits = identity_of(db)
        if made is not None and made > commits:
            what = f"it has {counted(commits, 'commit')}, but {made:,} were made in the folder"
            yield Finding("older", self._metadata.file, what)

    def _segment(self, segment: Segment) -> Finding | None:
        if isinstance(self._location, Path):
            finding = _compare(self._root, segment.path, segment.bytes, segment.checksum, segment.collection)
        else:
            finding = _compare_object(self._location, segment)
        if finding is None and not segment.checksum:  # segments of an old version have no checksum; their pages have
            try:
                check_segments(self._location, [segment])
            except FlowError as error:
                return Finding("damaged", segment.path, error.message, segment.collection)
        return finding

    def _states(
        self, db: Transaction, tasks: Sequence[TaskState], progress: Callable[[int], None]
    ) -> Iterator[Finding]:
        count = 0
        for task in tasks:
            for number in task.tokens:
                finding = self._chain(db, task, number) if number in task.chains else self._state(db, task, number)
                if finding is not None:
                    yield finding
                count += 1
                progress(count)
        known = {own_path("state", str(name)) for (name,) in db.execute("SELECT name FROM task").fetchall()}
        for entry in sorted((self._root / "state").rglob("*@")):
            path = str(entry.relative_to(self._root))
            if path not in known:
                yield Finding("unknown", path, "the metadata has no task of this name")

    def _state(self, db: Transaction, task: TaskState, number: int) -> Finding | None:
        folder = shard_folder(self._root, task.folder, number, task.shards)
        fault = damage(folder, lambda: _token(db, task.name, number))
        path = str((folder / "state.db").relative_to(self._root))
        if fault:
            return Finding("damaged", path, fault, task=task.name)
        is_derived = db.execute("SELECT 1 FROM collection WHERE name = ?", (task.name,)).get
        # A materialization has its state at the endpoint. A reset removes the token before the state.
        if not is_derived or keeps_state(folder) or _token(db, task.name, number) != task.tokens[number]:
            return None
        return Finding("missing", path, "the shard has processed documents, and has no state", task=task.name)

    def _chain(self, db: Transaction, task: TaskState, number: int) -> Finding | None:
        """Return the fault of a state that travels, if the shard still has this state after the check."""
        chain = task.chains[number]
        faulty = fault_of_chain(blobs_of(self._location), chain, task.tokens[number])
        if faulty is None or read_chains(db, task.name).get(number) != chain:
            return None
        path, fault = faulty
        kind = "missing" if isinstance(fault, StateMissingError) else "damaged"
        return Finding(kind, path, fault.message, task=task.name)


def _token(db: Transaction, name: str, number: int) -> str | None:
    task = read_task(db, name)
    return task.tokens.get(number) if task else None


def _compare(root: Path, path: str, size: int, checksum: str, collection: str | None = None) -> Finding | None:
    try:
        size_now = (root / path).stat().st_size
        if size_now != size:
            kind = "truncated" if size_now < size else "changed"
            return Finding(kind, path, f"the file has {counted(size_now, 'byte')} instead of {size:,}", collection)
        if checksum and file_checksum(root / path).checksum != checksum:
            return Finding("changed", path, "the checksum differs from the recorded one", collection)
    except FileNotFoundError:
        return Finding("missing", path, "the file is missing", collection)
    except OSError as exc:
        return Finding("damaged", path, f"the file cannot be read: {exc.strerror or exc}", collection)
    return None


def _compare_object(location: Location, segment: Segment) -> Finding | None:
    path, size, collection = segment.path, segment.bytes, segment.collection
    try:
        data = blobs_of(location).get(path)
    except FileNotFoundError:
        return Finding("missing", path, "the object is missing", collection)
    if len(data) != size:
        kind = "truncated" if len(data) < size else "changed"
        return Finding(kind, path, f"the object has {counted(len(data), 'byte')} instead of {size:,}", collection)
    if segment.checksum and hashlib.sha256(data).hexdigest() != segment.checksum:
        return Finding("changed", path, "the checksum differs from the recorded one", collection)
    return None
