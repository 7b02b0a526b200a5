"""Restores backups into data folders.

The restored folder has a new identifier and records the identifier of the original. The epochs of its tasks are far
above the epochs of the original, and capabilities of processes end. So processes of the original folder cannot commit
to the restored folder.

The metadata database is restored last. After an interrupted restore, all commands refuse the folder, and the restore
can be repeated.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import closing, suppress
from pathlib import Path
from uuid import uuid4

import apsw
import orjson

from derive.backup import Manifest, Progress, StoredFile, read_manifest, require_empty
from derive.durable import clone, make_folders, sync
from derive.errors import StorageError, UsageError
from derive.failpoint import reach
from derive.shard.state import task_folder
from derive.storage.blobs import translated
from derive.storage.folder_id import FILE as FOLDER_ID
from derive.storage.folder_id import RESTORED, write_folder_id
from derive.storage.location import ObjectFolder, blobs_of, claim
from derive.storage.metadata.chain import CHAINS
from derive.storage.metadata.identity import COMMITS, DATABASE, PRIVATE, RESTORING
from derive.storage.metadata.joining import publish_history
from derive.storage.metadata.place import Place
from derive.storage.metadata.recorded_location import record_location
from derive.storage.metadata.sqlite import SqliteMetadata
from derive.storage.metadata.table_copy import raise_epochs
from derive.storage.metadata.tasks import read_applied, read_tasks
from derive.storage.segments.partition import FOLDER


def restore(
    backup: Path,
    root: Path,
    *,
    copies: bool = False,
    segments: ObjectFolder | None = None,
    place: Place | None = None,
    progress: Progress = lambda done, total: None,
) -> int:
    """Restore a backup into an empty folder, and compare each file with its checksum.

    Args:
        backup: folder of a complete backup.
        root: the data folder; created if missing.
        copies: whether to copy segments, and not to link them to files of the backup.
        segments: location of the segments of the restored data folder; None for the folder itself.
        place: place of its metadata in PostgreSQL; None for a database in the folder.
        progress: called with the number of restored files, and of all files.

    Returns:
        The number of restored files.

    Raises:
        UsageError: `backup` is not a backup, `root` is not empty, or the place has other metadata.
        StorageError: a file of the backup is missing or damaged; `root` is not a data folder then.
    """
    manifest = read_manifest(backup)
    begun = root / RESTORING
    if not begun.exists():
        require_empty(root)
    if root.absolute().is_relative_to(backup.absolute()):
        raise UsageError(f"{root} is inside the backup", hint="name a folder outside of the backup")
    with translated(root):
        make_folders(root.absolute(), PRIVATE)
        begun.write_text(str(backup.absolute()))
        sync(begun)
        sync(root)
        reach("restore.begun")
        _clear(root)
        identifier = write_folder_id(root, str(uuid4()))
        if place is not None:
            _require_free(place, identifier)
        if segments is not None:
            claim(segments, identifier)
        for count, (path, file) in enumerate(sorted(manifest.files.items()), start=1):
            name = f"{DATABASE}.new" if path == DATABASE else path
            is_blob = path.startswith((f"{FOLDER}/", f"{CHAINS}/"))
            if is_blob and segments is not None:
                _restore_object(backup / path, segments, path, file)
            else:
                _restore_file(backup / path, root / name, file, is_linked=is_blob and not copies)
            reach("restore.file")
            progress(count, len(manifest.files))
        for folder in (root, *(entry for entry in root.rglob("*") if entry.is_dir())):
            sync(folder)
        _replace_identity(root, manifest, identifier, segments)
        reach("restore.completing")
        _put_in_force(root, place)
        sync(root)
        reach("restore.completed")
        begun.unlink()
        sync(root)
    return len(manifest.files)


def _require_free(place: Place, identifier: str) -> None:
    """Raise an error before files are copied if a place has other metadata."""
    from derive.storage.metadata.postgres_copy import find_schema, require_place, used_alone

    with used_alone(place) as connection:
        require_place(find_schema(connection, place), place, identifier, replaces=True)


def _put_in_force(root: Path, place: Place | None) -> None:
    """Move the restored metadata to their place."""
    draft = root / f"{DATABASE}.new"
    if place is None:
        draft.replace(root / DATABASE)
        return
    from derive.storage.metadata.relocation import fill_place

    fill_place(root, draft, place)


def _clear(root: Path) -> None:
    """Remove the files of an interrupted restore, except its identifier, with which it has claimed a location."""
    for entry in list(root.iterdir()):
        if entry.name in {RESTORING, FOLDER_ID}:
            continue
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _restore_file(source: Path, target: Path, file: StoredFile, *, is_linked: bool) -> None:
    make_folders(target.parent)
    try:
        if is_linked:
            with suppress(OSError):
                os.link(source, target)
        if not target.exists():
            clone(source, target)
    except FileNotFoundError as exc:
        raise _missing(source) from exc
    with target.open("rb", buffering=0) as restored:
        _check(source, file, hashlib.file_digest(restored, "sha256").hexdigest())


def _restore_object(source: Path, location: ObjectFolder, path: str, file: StoredFile) -> None:
    """Store a segment, or an object with states, of a backup in an object store; a repeated restore finds it there."""
    try:
        data = source.read_bytes()
    except FileNotFoundError as exc:
        raise _missing(source) from exc
    _check(source, file, hashlib.sha256(data).hexdigest())
    blobs_of(location).put(path, data)


def _missing(source: Path) -> StorageError:
    return StorageError(f"{source} is missing in the backup", hint="use another backup")


def _check(source: Path, file: StoredFile, checksum: str) -> None:
    """Raise an error if a file of a backup has another checksum than the manifest."""
    if checksum != file.checksum:
        raise StorageError(
            f"{source} is damaged: its checksum differs from the recorded one", hint="use another backup"
        )


def _replace_identity(root: Path, manifest: Manifest, identifier: str, segments: ObjectFolder | None) -> None:
    """Give a restored folder its own identity and location, and end the capabilities of the original."""
    path = root / f"{DATABASE}.new"
    metadata = SqliteMetadata(path)  # opening upgrades the database to the current format
    try:
        with metadata.transaction() as db:
            db.execute("UPDATE folder SET id = ?", (identifier,))
            record_location(db, segments)
            raise_epochs(db)
            for task in read_tasks(db):
                if read_applied(db, task.name) is not None:  # the folder of a materialization that continues here
                    make_folders(task_folder(root, task.name))
            for table in ("writer", "discarded", "abandoned", "replaced"):
                db.execute(f"DELETE FROM {table}")
    finally:
        metadata.close()
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA journal_mode=DELETE").fetchall()
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    (root / COMMITS).unlink(missing_ok=True)
    folders = [manifest.folder, *manifest.former]
    restored = orjson.dumps({"folders": folders, "at": manifest.at})
    (root / RESTORED).write_bytes(restored)
    if segments is not None:
        publish_history(segments, restored)
    sync(root / RESTORED)
    sync(path)
