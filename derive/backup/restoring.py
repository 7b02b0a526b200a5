"""Restoring a backup: a data folder that goes on where the backup was, and that nobody takes for the original.

It has an identifier of its own, knows that it has the history of the original, and its tasks have epochs that are far
above those of the original: processes that still work for the original can commit nothing to it. Leases that were held
when the backup was taken have ended.

The metadata database is entered last. A restore that was interrupted leaves a folder that all commands refuse, and that
can be restored into again.
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
"""By how much epochs of tasks are above those of the original, so that its later runs are not taken for ours."""


def restore(backup: Path, root: Path, *, copies: bool = False, progress: Callable[[int], None] = lambda _: None) -> int:
    """Restore a backup into an empty folder; each file is compared with its checksum.

    Args:
        backup: the folder of a backup that is complete.
        root: the data folder; created if it is missing.
        copies: copy segments that could be linked to those of the backup.
        progress: is told how many files were restored.

    Returns:
        How many files were restored.

    Raises:
        UsageError: the backup is none, or the folder is not empty.
        StorageError: a file of the backup is missing or damaged; the folder is no data folder then.
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
        _begin_anew(root, manifest)
        reach("restore.completing")
        (root / f"{METADATA}.new").replace(root / METADATA)
        sync(root)
        reach("restore.completed")
        begun.unlink()
        sync(root)
    return len(manifest.files)


def _clear(root: Path) -> None:
    """Remove what an interrupted restore has left."""
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
        raise StorageError(f"{source} is damaged: it is not what was backed up", hint="use another backup")


def _begin_anew(root: Path, manifest: Manifest) -> None:
    """Give a restored folder an identity of its own, and end what was held in the original."""
    identifier = str(uuid4())
    path = root / f"{METADATA}.new"
    metadata = Metadata(path)  # which brings it to today's format
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
