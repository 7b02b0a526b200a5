"""Versions of collections in the metadata database: at each time, the contents of a collection are of one version.

A shadow replaces the documents of a collection at a timestamp. The former documents stay as a collection under another
name, `x@1` for the first version of `x`, because contents at earlier times are read from the former documents. The
present version has the collection's own name. A collection that no shadow has replaced has no row here.

A version may have the definition under which its documents are read: a former version has it, and so has the present
version while a shadow is being derived from an edited definition. Other versions are read as the catalog defines them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from derive.protocol.collection import version_name
from derive.protocol.definition_text import restored_collection
from derive.protocol.specs import CollectionSpec
from derive.storage.capability.table import last_read
from derive.storage.metadata.transaction import Transaction
from derive.time import BEGINNING


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a collection.

    Attributes:
        stored: name of the collection with the documents.
        number: number of the version, from 1.
        begins: first timestamp of its contents.
        ends: first timestamp of the next version's contents; None for the present version.
        definition: JSON of the collection's definition; None if the catalog defines it.
    """

    stored: str
    number: int
    begins: int
    ends: int | None
    definition: str | None

    def read_as(self, spec: CollectionSpec) -> CollectionSpec:
        """Return the definition under which the documents of this version are read.

        Args:
            spec: the collection as the catalog defines it.
        """
        return spec if self.definition is None else replace(restored_collection(self.definition), name=spec.name)


def versions_of(db: Transaction, name: str) -> list[Version]:
    """Return the versions of a collection, in order; none if no shadow has replaced it."""
    rows: list[Any] = db.execute(
        "SELECT number, begins, lead(begins) OVER (ORDER BY number), definition FROM version WHERE collection = ?"
        " ORDER BY number",
        (name,),
    ).fetchall()
    return [
        Version(name if ends is None else version_name(name, number), number, begins, ends, definition)
        for number, begins, ends, definition in rows
    ]


def version_at(db: Transaction, name: str, clock: int | None) -> Version | None:
    """Return the version of a collection's contents at a timestamp; None if it has never had several versions.

    Args:
        db: a transaction.
        name: name of the collection.
        clock: the timestamp; None for the present.
    """
    versions = versions_of(db, name)
    begun = [version for version in versions if clock is None or version.begins <= clock]
    return begun[-1] if begun else next(iter(versions), None)


def describe_version(db: Transaction, name: str, definition: str | None) -> None:
    """Set the definition under which the present version of a collection is read; None for the catalog's."""
    versions = versions_of(db, name)
    if not versions:
        if definition is not None:
            begin_version(db, name, 1, BEGINNING, definition)
    elif definition is None and len(versions) == 1 and versions[0].number == 1:
        db.execute("DELETE FROM version WHERE collection = ?", (name,))
    else:
        db.execute(
            "UPDATE version SET definition = ? WHERE collection = ? AND number = ?",
            (definition, name, versions[-1].number),
        )


def begin_version(db: Transaction, name: str, number: int, begins: int, definition: str | None = None) -> None:
    """Add a version of a collection, which becomes the present version."""
    db.execute("INSERT INTO version VALUES (?, ?, ?, ?)", (name, number, begins, definition))


def readable_names(db: Transaction, name: str) -> list[str]:
    """Return the names of the collections with the documents of all versions of a collection."""
    return [name, *(version.stored for version in versions_of(db, name)[:-1])]


def drop_versions(db: Transaction, name: str, since: int | None = None) -> None:
    """Delete the former versions of a collection whose contents end by a timestamp.

    Without a timestamp, delete all former versions. With a timestamp, no capability to read the deleted contents may
    exist. The files wait for removal.
    """
    for version in versions_of(db, name)[:-1]:
        if since is not None and version.ends is not None and version.ends > since:
            break
        _drop(db, name, version, is_discarded=since is None)
    if since is None:
        db.execute("DELETE FROM version WHERE collection = ?", (name,))


def _drop(db: Transaction, name: str, version: Version, *, is_discarded: bool) -> None:
    stored = (version.stored,)
    if is_discarded:
        db.execute(
            "INSERT INTO discarded SELECT path, ? FROM segment WHERE collection = ?"
            " UNION SELECT path, ? FROM replaced WHERE collection = ? ON CONFLICT (path) DO NOTHING",
            (name, version.stored, name, version.stored),
        )
    else:
        db.execute(
            "INSERT INTO replaced SELECT path, ?, ? FROM segment WHERE collection = ?",
            (name, max(db.now(), last_read(db, name)), version.stored),
        )
        db.execute("UPDATE replaced SET collection = ? WHERE collection = ?", (name, version.stored))
    for table in ("discarded", "abandoned", "writer"):
        db.execute(f"UPDATE {table} SET collection = ? WHERE collection = ?", (name, version.stored))
    for table in ("segment", "replaced", "capability"):
        db.execute(f"DELETE FROM {table} WHERE collection = ?", stored)
    db.execute("DELETE FROM collection WHERE name = ?", stored)
    db.execute("DELETE FROM version WHERE collection = ? AND number = ?", (name, version.number))
