"""The redactor of a collection, with the salt that its catalog or its data folder has."""

from __future__ import annotations

from pathlib import Path

from derive.protocol.collection import CollectionSpec
from derive.schema.redaction import Redactor
from derive.storage.folder_id import folder_id


def redactor_of(spec: CollectionSpec, root: Path) -> Redactor | None:
    """Return what redacts documents of a collection; None if nothing is redacted.

    Args:
        spec: the collection.
        root: the data folder. Its identifier, which a copy of the folder has too, is the salt where a catalog has none.
    """
    if spec.redaction is None:
        return None
    salt = spec.redaction.salt
    return Redactor(spec.redaction, folder_id(root).encode() if salt is None else salt)
