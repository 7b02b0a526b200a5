"""The redactor of a collection, with the salt of its catalog or of its data folder."""

from __future__ import annotations

from pathlib import Path

from derive.errors import StorageError
from derive.protocol.collection import CollectionSpec
from derive.schema.redaction import Redactor
from derive.storage.folder_id import folder_id, identity_of


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


def _salt_of(root: Path) -> bytes:
    folder_id(root)  # writes an identifier if there is none
    origin = identity_of(root).origin
    if not origin:
        raise StorageError(
            f"{root} has no identifier, which is the salt of hashes", hint="let this user read and write the folder"
        )
    return origin.encode()
