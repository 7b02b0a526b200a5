"""Restore a backup as a data folder with its own identity.

The restored folder has a new identifier, records the original's identifier, and raises the epochs of its tasks far
above those of the original. Processes of the original can therefore commit nothing to the restored folder.
Capabilities of its processes end.

The metadata database is entered last. An interrupted restore leaves a folder that all commands refuse, and into which a
restore can be repeated.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from uuid import uuid4

import apsw
import orjson

from derive.backup.manifest import Manifest, StoredFile, read_manifest
from derive.backup.standstill import METADATA
from derive.backup.taking import require_empty
from derive.durable import clone, make_folders, sync
from derive.errors import StorageError, UsageError
from derive.failpoint import reach
from derive.storage.disk_errors import translated
from derive.storage.folder_id import RESTORED, write_folder_id
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.identity import COMMITS, RESTORING
from derive.storage.metadata.opening import PRIVATE
from derive.storage.segments.partition import FOLDER

_EPOCHS = 1 << 20
"""Distance between the epochs of restored tasks and those of the original, whose later runs stay below."""


def restore(backup: Path, root: Path, *, copies: bool = False, progress: Callable[[int], None] = lambda _: None) -> int:
    """Restore a backup into an empty folder, and compare each file with its checksum.

    Args:
        backup: folder of a complete backup.
        root: the data folder; created if missing.
        copies: copy segments instead of linking them to the backup's files.
        progress: called with the number of restored files.

    Returns:
        The number of restored files.

    Raises:
        UsageError: `backup` is no backup, or `root` is not empty.
        StorageError: a file of the backup is missing or damaged; `root` is then no data folder.
    """
    manifest = read_manifest(backup)
    begun = root / RESTORING
    if not begun.exists():
        require_empty(root)
    if root.absolute().is_relative_to(backup.absolute()):
        raise UsageError(f"{root} lies in the backup", hint="name a folder elsewhere")
    with translated(root):
        make_folders(root.absolute(), PRIVATE)
        begun.write_text(str(backup.absolute()))
        sync(begun)
        sync(root)
        reach("restore.begun")
        _clear(root)
        for count, (path, file) in enumerate(sorted(manifest.files.items()), start=1):
            name = f"{METADATA}.new" if path == METADATA else path
            _restore_file(backup / path, root / name, file, is_linked=path.startswith(f"{FOLDER}/") and not copies)
            reach("restore.file")
            progress(count)
        for folder in (root, *(entry for entry in root.rglob("*") if entry.is_dir())):
            sync(folder)
        _replace_identity(root, manifest)
        reach("restore.completing")
        (root / f"{METADATA}.new").replace(root / METADATA)
        sync(root)
        reach("restore.completed")
        begun.unlink()
        sync(root)
    return len(manifest.files)


def _clear(root: Path) -> None:
    """Remove the files of an interrupted restore."""
    for entry in list(root.iterdir()):
        if entry.name == RESTORING:
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
        raise StorageError(f"{source} is missing in the backup", hint="use another backup") from exc
    with target.open("rb", buffering=0) as restored:
        checksum = hashlib.file_digest(restored, "sha256").hexdigest()
    if checksum != file.checksum:
        raise StorageError(
            f"{source} is damaged: its checksum differs from the recorded one", hint="use another backup"
        )


def _replace_identity(root: Path, manifest: Manifest) -> None:
    """Give a restored folder its own identity, and end the capabilities of the original."""
    identifier = str(uuid4())
    path = root / f"{METADATA}.new"
    metadata = Metadata(path)  # opening upgrades the database to the current format
    try:
        with metadata.transaction() as db:
            db.execute("UPDATE folder SET id = ?", (identifier,))
            db.execute("UPDATE task SET epoch = epoch + ?", (_EPOCHS,))
            db.execute("DELETE FROM capability WHERE kind = 'run' OR expires IS NOT NULL OR kind = 'write'")
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
    (root / RESTORED).write_bytes(orjson.dumps({"folders": folders, "at": manifest.at}))
    sync(root / RESTORED)
    sync(path)
    write_folder_id(root, identifier)
