"""The redactor of a collection, with the salt that its catalog or its data folder has."""

from __future__ import annotations

from pathlib import Path

from derive.errors import StorageError
from derive.protocol.collection import CollectionSpec
from derive.schema.redaction import Redactor
from derive.storage.folder_id import folder_id, identity_of


def redactor_of(spec: CollectionSpec, root: Path) -> Redactor | None:
    """Return what redacts documents of a collection; None if nothing is redacted.

    Args:
        spec: the collection.
        root: the data folder. The identifier of the folder in which its history began is the salt where a catalog has
            none: a copy has the same, and so has what was restored of a backup.

    Raises:
        StorageError: there is no such identifier, and none can be written.
    """
    if spec.redaction is None:
        return None
    salt = spec.redaction.salt
    return Redactor(spec.redaction, _salt_of(root) if salt is None else salt)


def _salt_of(root: Path) -> bytes:
    folder_id(root)  # which writes one where there is none yet
    origin = identity_of(root).origin
    if not origin:
        raise StorageError(
            f"{root} has no identifier, which is the salt of hashes", hint="let this user read and write the folder"
        )
    return origin.encode()
