"""Data folders of further machines, if the metadata is in PostgreSQL and the segments are objects.

Such a folder need not be shared: the first command on another machine gives an empty folder the identity of the data
folder, and the folder has only logs, locks and temporary files. The state of shards must travel then. A materialization
stays on the machine whose folder has its locks and the data of its shards.
"""

from __future__ import annotations

from pathlib import Path

from derive.durable import make_folders, sync
from derive.storage.blobs import translated
from derive.storage.folder_id import RESTORED, write_folder_id
from derive.storage.location import ObjectFolder, blobs_of, require_claimed
from derive.storage.metadata.identity import PRIVATE

_JOINED = "joined"
"""Name of the file in a folder that has joined."""


def is_joined(root: Path) -> bool:
    """Return true if a folder has joined the data folder of another machine."""
    return (root / _JOINED).exists()


def join(root: Path, identifier: str, location: ObjectFolder) -> None:
    """Let an empty folder be a data folder of this machine.

    Args:
        root: the folder; created if missing.
        identifier: identifier of the data folder.
        location: location of its segments.

    Raises:
        StorageError: the location cannot be read, or has the segments of another data folder.
    """
    require_claimed(location, identifier)
    with translated(str(location)):
        try:
            restored = blobs_of(location).get(RESTORED)
        except FileNotFoundError:
            restored = None
    with translated(root):
        make_folders(root.absolute(), PRIVATE)
        if restored is not None:
            (root / RESTORED).write_bytes(restored)
            sync(root / RESTORED)
        (root / _JOINED).touch()
        sync(root)
        write_folder_id(root, identifier)  # last: a folder with an identifier is complete


def publish_history(location: ObjectFolder, restored: bytes) -> None:
    """Store the identities of a restored data folder for the folders that join it, in place of earlier ones.

    Args:
        location: location of the segments.
        restored: content of the file with these identities.
    """
    with translated(str(location)):
        blobs_of(location).delete([RESTORED])
        blobs_of(location).put(RESTORED, restored)
