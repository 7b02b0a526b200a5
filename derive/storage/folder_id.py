"""Identifiers of data folders, independent of the path of the mounted folder, and the redactors that they salt."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import orjson

from derive.durable import sync
from derive.errors import StorageError
from derive.protocol.collection import CollectionSpec
from derive.schema.redaction import Redactor

FILE = "folder-id"

RESTORED = "restored.json"
"""File of a restored data folder with the identifiers of the folders whose history it has."""


@dataclass(frozen=True, slots=True)
class FolderIdentity:
    """Identity of a data folder.

    Attributes:
        id: identifier of the folder; empty for none.
        former: identifiers of the folders from whose backups it was restored, the newest first.
    """

    id: str = ""
    former: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """Return the identifier of the folder in which the history began; empty for none."""
        return self.former[-1] if self.former else self.id


def identity_of(root: Path) -> FolderIdentity:
    """Return the identity of a data folder."""
    try:
        former = orjson.loads((root / RESTORED).read_bytes())["folders"]
    except (FileNotFoundError, NotADirectoryError):
        former = []
    return FolderIdentity(known_folder_id(root), tuple(former))


def known_folder_id(root: Path) -> str:
    """Return the identifier of a data folder; empty if there is none, or if the file cannot be read."""
    try:
        return (root / FILE).read_text().strip()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return ""


def cache_name(root: Path) -> str:
    """Return the name of a data folder's caches; copies of a folder, which share its identifier, have others."""
    return f"{known_folder_id(root)}-{hashlib.sha256(str(root.absolute()).encode()).hexdigest()[:8]}"


def folder_id(root: Path) -> str:
    """Return the identifier of a data folder; write a new identifier if there is none. Copies of a folder share it.

    Returns:
        The identifier; empty if there is none, and the folder is not writable.
    """
    return known_folder_id(root) or write_folder_id(root, str(uuid4()))


def write_folder_id(root: Path, identifier: str) -> str:
    """Write the identifier of a data folder durably, unless the folder has an identifier.

    Returns:
        The identifier of the folder; empty if there is none, and the folder is not writable.
    """
    path = root / FILE
    draft = root / f"{FILE}.{uuid4()}"
    try:
        draft.write_text(identifier)
        sync(draft)
        with suppress(FileExistsError):  # another process was first
            os.link(draft, path)
        draft.unlink()
        sync(root)
    except OSError:
        return ""
    return path.read_text()


def redactor_of(spec: CollectionSpec, root: Path) -> Redactor | None:
    """Return the redactor of a collection; None if its documents need no redaction.

    Args:
        spec: the collection.
        root: the data folder. Without a salt in the catalog, the identifier of the folder in which the history began is
            the salt; copies and restored backups share this identifier.

    Raises:
        StorageError: the folder has no identifier, and an identifier cannot be written.
    """
    if spec.redaction is None:
        return None
    salt = spec.redaction.salt
    return Redactor(spec.redaction, _salt_of(root) if salt is None else salt)


def salted(spec: CollectionSpec, root: Path) -> CollectionSpec:
    """Return a collection whose redaction names the salt that `redactor_of` would take from the data folder.

    Raises:
        StorageError: as for `redactor_of`.
    """
    if spec.redaction is None or spec.redaction.salt is not None:
        return spec
    return replace(spec, redaction=replace(spec.redaction, salt=_salt_of(root)))


def _salt_of(root: Path) -> bytes:
    folder_id(root)  # writes an identifier if there is none
    origin = identity_of(root).origin
    if not origin:
        raise StorageError(
            f"{root} has no identifier, which is the salt of hashes", hint="let this user read and write the folder"
        )
    return origin.encode()
