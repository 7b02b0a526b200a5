"""The commit marker: a row in Storage with the version of the last committed change of the catalog.

Names and rows are in two databases. A COMMIT that changes both prepares the change of names, writes rows and the commit
marker in one commit of Storage, and then applies the change of names. Recovery after a crash reads the commit marker.
"""

from __future__ import annotations

from derive.algebra.types import Type
from derive.contents.tables import table_at
from derive.protocol.sql_names import MARK
from derive.sql.transactions.timeline import Write
from derive.storage.store import Store
from derive.storage.table import Table, TableColumn

_COLUMNS = (TableColumn("version", Type.BIGINT.value),)


class CommitMarker:
    """The commit marker of one data folder.

    Args:
        store: the data folder.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def version(self) -> int:
        """Return the catalog's version after the last marked change; 0 without one."""
        table = self._store.tables.find(MARK)
        return self._version(table) if table else 0

    def writes(self, version: int) -> list[Write]:
        """Return the writes that set the marker, for the commit that writes the rows."""
        table = self._store.tables.find(MARK) or self._store.tables.create(MARK, _COLUMNS)
        before = self._version(table)
        return [*([(table.id, (before,), -1)] if before else []), (table.id, (version,), 1)]

    def _version(self, table: Table) -> int:
        if table.upper <= table.since:
            return 0
        versions = [row[0] for rows in table_at(self._store, table, table.upper - 1) for row in rows]
        return max((version for version in versions if isinstance(version, int)), default=0)
