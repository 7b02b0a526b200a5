"""Take a backup: a folder with the layout of a data folder, as it is at one moment, while other processes work.

Metadata and states are copied at one moment. Segments never change: they are hard-linked into a backup on the same file
system, and copied into a backup elsewhere. Read capabilities keep segments from being removed meanwhile. If a reset
removes segments nevertheless, metadata and states are copied again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from derive.backup.manifest import MANIFEST, Manifest, StoredFile, file_checksum, present, write_manifest
from derive.backup.standstill import METADATA, copy_snapshot
from derive.durable import clone, make_folders, sync
from derive.errors import BusyError, StorageError, UsageError
from derive.failpoint import reach
from derive.storage.disk_errors import translated
from derive.storage.folder_id import identity_of
from derive.storage.metadata.opening import PRIVATE
from derive.storage.store import Store

_TIMES = 10


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a backup.

    Attributes:
        base: an earlier backup, whose unchanged files are linked; None for none.
        copies: copy segments instead of linking them to the data folder's files.
        progress: called with the number of segments in the backup.
    """

    base: Path | None = None
    copies: bool = False
    progress: Callable[[int], None] = lambda _: None


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
    """A segment is missing."""

    def __init__(self, path: str) -> None:
        self.path = path


def require_empty(folder: Path) -> None:
    """Raise an error unless a folder is missing or empty.

    Raises:
        UsageError: the folder is a file, or is not empty.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is no folder")
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
        UsageError: the folder is not empty or lies in the data folder, or the base is no backup.
        StorageError: a file is missing or damaged, or cannot be copied.
    """
    options = options or Options()
    require_empty(folder)
    if folder.absolute().is_relative_to(store.root.absolute()):
        raise UsageError(f"{folder} lies in the data folder {store.root}", hint="name a folder elsewhere")
    if options.base is not None and not (options.base / MANIFEST).exists():
        raise UsageError(f"{options.base} is no backup: it has no {MANIFEST}")
    taking = _Taking(store.root, folder, options)
    with translated(folder), store.capabilities.keep_all():
        make_folders(folder.absolute(), PRIVATE)
        reach("backup.begun")
        return taking.take()


class _Taking:
    """A backup in progress."""

    def __init__(self, root: Path, folder: Path, options: Options) -> None:
        self._root, self._folder, self._options = root, folder, options
        self._segments: dict[str, StoredFile] = {}
        self._linked: set[str] = set()

    def take(self) -> Backup:
        missing: set[str] = set()
        for _ in range(_TIMES):
            at = present()
            copy_snapshot(self._root, self._folder)
            try:
                desired = self._copy_segments()
            except _Gone as gone:
                if gone.path in missing:
                    raise StorageError(
                        f"a segment is missing: {gone.path}", hint="list the damaged files: flowctl verify"
                    ) from None
                missing.add(gone.path)
            else:
                return self._complete(desired, at)
        raise BusyError(f"collections of {self._root} were reset during every attempt", hint="take the backup again")

    def _copy_segments(self) -> set[str]:
        """Copy or link all segments that the copied metadata names; return their paths."""
        with closing(apsw.Connection(str(self._folder / METADATA), apsw.SQLITE_OPEN_READONLY)) as db:
            rows: list[Any] = db.execute("SELECT path, bytes, checksum FROM segment ORDER BY path").fetchall()
        for path, size, checksum in rows:
            if path not in self._segments:
                self._segments[path] = self._copy(path, size, checksum)
                reach("backup.segment")
                self._options.progress(len(self._segments))
        for folder in {(self._folder / path).parent for path in self._segments}:
            sync(folder)
        return {row[0] for row in rows}

    def _copy(self, path: str, size: int, checksum: str) -> StoredFile:
        source, target = self._root / path, self._folder / path
        make_folders(target.parent)
        if not self._link(path, target):
            try:
                clone(source, target)
            except FileNotFoundError:
                raise _Gone(path) from None
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
        if not self._options.copies:
            sources.append(self._root / path)
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
        for entry in sorted(self._folder.rglob("*")):
            path = str(entry.relative_to(self._folder))
            if entry.is_file() and path not in files:
                files[path] = file_checksum(entry)
            elif entry.is_dir():
                sync(entry)
        identity = identity_of(self._root)
        reach("backup.completing")
        write_manifest(self._folder, Manifest(identity.id, identity.former, at, files))
        reach("backup.completed")
        total = sum(file.bytes for file in files.values())
        return Backup(len(desired), len(self._linked & desired), total, at)
