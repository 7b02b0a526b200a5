"""SQLite as the database of the metadata: its connections are transactions of `transaction.py`."""

from __future__ import annotations

import apsw

from derive.storage.metadata.transaction import SMALL_BYTES, SMALL_DOCUMENTS, Dialect

SQLITE = Dialect(
    is_small=f"(documents < {SMALL_DOCUMENTS} AND bytes < {SMALL_BYTES})",
    span_digits="length(printf('%x', clock_max - clock_min))",
    contains="instr(doc, ?) > 0",
)


class SqliteConnection(apsw.Connection):
    """A connection to a metadata database of SQLite, in which a transaction may be open."""

    dialect = SQLITE

    def defer_references(self) -> None:
        """Check references to names of collections at the commit, so that a collection can be renamed."""
        self.execute("PRAGMA defer_foreign_keys = ON").fetchall()
