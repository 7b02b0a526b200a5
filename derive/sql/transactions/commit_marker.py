"""The mark: a row in Storage that tells which prepared change of the catalog of SQL has happened.

Names are in one database, and what is stored in another. Where one COMMIT changes both, the change of names is
prepared, then rows are written together with the mark, in one commit of Storage, and then the names are changed.
Whoever comes after a crash looks at the mark.
"""

from __future__ import annotations

from derive.algebra.types import Type
from derive.protocol.sql_names import MARK
from derive.relations.tables.input import table_at
from derive.sql.transactions.timeline import Write
from derive.storage.store import Store
from derive.storage.table import Table, TableColumn

_COLUMNS = (TableColumn("version", Type.BIGINT.value),)


class CatalogMark:
    """The mark of one data folder.

    Args:
        store: of the data folder.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def version(self) -> int:
        """The version of the catalog to which the last change has led that was marked; 0 before any."""
        table = self._store.tables.find(MARK)
        return self._version(table) if table else 0

    def writes(self, version: int) -> list[Write]:
        """What is to be written with the rows of a commit."""
        table = self._store.tables.find(MARK) or self._store.tables.create(MARK, _COLUMNS)
        before = self._version(table)
        return [*([(table.id, (before,), -1)] if before else []), (table.id, (version,), 1)]

    def _version(self, table: Table) -> int:
        if table.upper <= table.since:
            return 0
        versions = [row[0] for rows in table_at(self._store, table, table.upper - 1) for row in rows]
        return max((version for version in versions if isinstance(version, int)), default=0)
