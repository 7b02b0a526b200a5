"""Owners of collections: check that no other writer in the data folder owns a derived collection."""

from __future__ import annotations

from collections.abc import Iterator

from derive.errors import Issue, OwnedError
from derive.protocol.specs import CatalogSpec
from derive.protocol.sql_names import is_of_sql
from derive.storage.metadata.owner import Door
from derive.storage.roles import Maintainable


def owner_issues(catalog: CatalogSpec, store: Maintainable) -> Iterator[Issue]:
    """Yield an issue for each derived collection that belongs to another writer; a run stops its task with the same.

    Args:
        catalog: the catalog; it has already refused names of SQL.
        store: the data folder, which may be read-only.
    """
    for name, derivation in catalog.derivations.items():
        try:
            if not is_of_sql(name):
                store.require_open(name, Door.TASK)
        except OwnedError as error:
            yield Issue("E106", error.message, derivation.collection.position, error.hint)
