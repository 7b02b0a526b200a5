"""Verify a data folder or a backup: compare each file with its checksum, and check the integrity of each database.

Other processes may work meanwhile: a finding is checked against the metadata again before it is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import apsw

from derive.backup.manifest import file_checksum, read_manifest
from derive.backup.standstill import METADATA
from derive.errors import FlowError
from derive.shard.state import damage, shard_folder
from derive.storage.metadata.identity import identity_of, read_commits
from derive.storage.metadata.segment import every_segment, is_segment
from derive.storage.metadata.tasks import read_task, read_tasks
from derive.storage.segments.partition import own_path
from derive.storage.segments.segment_file import check_segments
from derive.time.source_read import Segment

Progress = Callable[[int], None]


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


def verify_backup(folder: Path, progress: Progress = lambda _: None) -> Iterator[Finding]:
    """Compare all files of a backup with its manifest; yield the findings.

    Raises:
        UsageError: the folder is no backup.
    """
    manifest = read_manifest(folder)
    for count, (path, stored) in enumerate(sorted(manifest.files.items()), start=1):
        finding = _compare(folder, path, stored.bytes, stored.checksum)
        if finding is not None:
            yield finding
        progress(count)
    for entry in sorted(folder.rglob("*")):
        path = str(entry.relative_to(folder))
        if entry.is_file() and path not in manifest.files and path != "backup.json":
            yield Finding("unknown", path, "the backup does not name this file")


class Verification:
    """The verification of a data folder.

    Args:
        root: the data folder, which has a metadata database.
        unknown: returns the paths of files without a known writer.
    """

    def __init__(self, root: Path, unknown: Callable[[], list[str]]) -> None:
        self._root, self._unknown = root, unknown

    def run(self, progress: Progress = lambda _: None) -> Iterator[Finding]:
        """Yield the findings one after the other.

        Args:
            progress: called with the number of checked files.
        """
        counted = read_commits(self._root)
        with closing(self._connect()) as db:
            yield from self._databases(db, counted)
            count = 0
            for count, segment in enumerate(every_segment(db), start=1):
                finding = self._segment(segment)
                if finding is not None and is_segment(db, segment.path):
                    yield finding
                progress(count)
            yield from (
                Finding("unknown", path, "the metadata does not name this file, which stays")
                for path in self._unknown()
            )
            yield from self._states(db, count, progress)

    def _connect(self) -> apsw.Connection:
        db = apsw.Connection(str(self._root / METADATA), apsw.SQLITE_OPEN_READONLY)
        db.set_busy_timeout(60_000)
        return db

    def _databases(self, db: apsw.Connection, counted: int | None) -> Iterator[Finding]:
        told = _integrity(db)
        if told:
            yield Finding("damaged", METADATA, told)
        _, commits = identity_of(db)
        if counted is not None and counted > commits:
            what = f"it knows {commits:,} commits, and the folder has seen {counted:,}"
            yield Finding("older", METADATA, what)

    def _segment(self, segment: Segment) -> Finding | None:
        finding = _compare(self._root, segment.path, segment.bytes, segment.checksum, segment.collection)
        if finding is None and not segment.checksum:  # segments of an old version have no checksum; their pages have
            try:
                check_segments(self._root, [segment])
            except FlowError as error:
                return Finding("damaged", segment.path, error.message, segment.collection)
        return finding

    def _states(self, db: apsw.Connection, count: int, progress: Progress) -> Iterator[Finding]:
        tasks = read_tasks(db)
        for task in tasks:
            for number in task.tokens:
                folder = shard_folder(self._root, task.name, number, task.shards)
                told = damage(folder, lambda name=task.name, number=number: _token(db, name, number))  # type: ignore[misc]
                if told:
                    path = str((folder / "state.db").relative_to(self._root))
                    yield Finding("damaged", path, told, task=task.name)
                count += 1
                progress(count)
        known = {own_path("state", str(name)) for (name,) in db.execute("SELECT name FROM task").fetchall()}
        for entry in sorted((self._root / "state").rglob("*@")):
            path = str(entry.relative_to(self._root))
            if path not in known:
                yield Finding("unknown", path, "the metadata has no task of this name")


def _token(db: apsw.Connection, name: str, number: int) -> str | None:
    task = read_task(db, name)
    return task.tokens.get(number) if task else None


def _integrity(db: apsw.Connection) -> str | None:
    try:
        told = [str(row[0]) for row in db.execute("PRAGMA integrity_check(3)")]
    except apsw.Error as exc:
        return str(exc)
    return None if told == ["ok"] else "; ".join(told)


def _compare(root: Path, path: str, size: int, checksum: str, collection: str | None = None) -> Finding | None:
    try:
        size_now = (root / path).stat().st_size
        if size_now != size:
            kind = "truncated" if size_now < size else "changed"
            return Finding(kind, path, f"the file has {size_now:,} bytes instead of {size:,}", collection)
        if checksum and file_checksum(root / path).checksum != checksum:
            return Finding("changed", path, "the checksum differs from the recorded one", collection)
    except FileNotFoundError:
        return Finding("missing", path, "the file is missing", collection)
    except OSError as exc:
        return Finding("damaged", path, f"the file cannot be read: {exc.strerror or exc}", collection)
    return None
