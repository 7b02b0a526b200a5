"""The boundary between the functions of the metadata and the database that stores it.

All functions of the metadata take a transaction of this type. Their SQL is the common subset of SQLite and PostgreSQL:

- Parameters are `?` in the order of the values. Values are integers, texts, bytes and None.
- Integers have 64 bits; a truth value is stored as 0 or 1, and an expression in the result may be a boolean.
- Upserts name their columns: `ON CONFLICT (…)`. In an upsert, a column of the stored row is qualified by its table.
- Texts are ordered by their bytes. An order of columns that may be NULL says where NULLs stand.
- Scalar `max`, `iif`, `OR IGNORE`, `OR REPLACE` and negative limits are not used.

The few expressions without a common form are attributes of the dialect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

SMALL_DOCUMENTS, SMALL_BYTES = 250_000, 32 << 20
"""A segment is small, and worth merging, if it has fewer documents and fewer bytes than this."""


class Rows(Protocol):
    """The rows of a statement, which are read once."""

    @property
    def get(self) -> Any:
        """Return the value of a single row with a single column; None without rows."""
        ...

    def fetchone(self) -> Any:
        """Return the next row; None after the last row."""
        ...

    def fetchall(self) -> list[Any]:
        """Return the remaining rows."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """Expressions of SQL that differ between databases; indexes have the first two.

    Attributes:
        is_small: 1 for a small segment, and 0 for others.
        span_digits: number of hexadecimal digits of a segment's time span.
        contains: condition that the text of an appended update contains a parameter.
    """

    is_small: str
    span_digits: str
    contains: str


class Transaction(Protocol):
    """A transaction of the metadata, to read or to write."""

    @property
    def dialect(self) -> Dialect:
        """Return the expressions that the database does not share with others."""
        ...

    def now(self) -> int:
        """Return the wall-clock time of the database, microseconds since the Unix epoch."""
        ...

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Rows:
        """Execute a statement."""
        ...

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> object:
        """Execute a statement without a result for each sequence of values."""
        ...

    def expect(self, statement: str, values: Sequence[Any] = (), /) -> bool:
        """Return true if a query has a row, as expected.

        A transaction of `Metadata.commit` may assume so, and is repeated if the query has no row.
        """
        ...

    def recall(self, statement: str, values: Sequence[Any] = (), /) -> Rows:
        """Execute a query whose result rarely changes; several rows must have an order.

        A transaction of `Metadata.commit` may assume the previous result, and is repeated if the result is another one.
        """
        ...

    def stream(self, statement: str, values: Sequence[Any] = (), /) -> Rows:
        """Execute a query with many rows, which are read in portions until the transaction ends."""
        ...

    def defer_references(self) -> None:
        """Check references to names of collections at the commit, so that a collection can be renamed."""
        ...


def nothing() -> None:
    """Return None: the result of a body of a commit that returns nothing."""


_ROWS = 512
"""Number of rows of a statement that inserts many rows; databases limit the number of parameters."""


def insert_rows(db: Transaction, into: str, rows: Sequence[Sequence[Any]], conflict: str = "") -> None:
    """Insert rows; of many rows, one statement inserts several hundred, which takes a third of the time.

    Args:
        db: a write transaction.
        into: the table, with its columns if values for some are left out.
        rows: the values of each row.
        conflict: the clause `ON CONFLICT …`; empty for none. The rows have different keys.
    """
    if not rows:
        return
    row = f"({', '.join('?' * len(rows[0]))})"
    many = len(rows) - len(rows) % _ROWS
    statement = f"INSERT INTO {into} VALUES {', '.join([row] * _ROWS)} {conflict}" if many else ""
    for begin in range(0, many, _ROWS):
        db.execute(statement, tuple(chain.from_iterable(rows[begin : begin + _ROWS])))
    if many < len(rows):
        db.executemany(f"INSERT INTO {into} VALUES {row} {conflict}", rows[many:])
