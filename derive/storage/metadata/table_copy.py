"""Copies of the metadata's tables from one database into another, of the same or of the other kind.

SQLite and PostgreSQL have the same tables with the same columns. A copy is compared with the original: each table has
the same number of rows, and the same digest.

The original must not change meanwhile. The caller holds the lock of its writers, or reads a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol, TypeAlias

from derive.errors import StorageError
from derive.failpoint import reach
from derive.plural import counted
from derive.storage.metadata.transaction import Transaction

Row: TypeAlias = tuple[Any, ...]

Progress: TypeAlias = Callable[[int, int], None]
"""A function that is called with the number of rows that are done, and of all rows."""

MOVED = "moved"
"""Table of a SQLite database whose metadata were copied to another place, which it names."""

_SUMS, _SUM_COLUMNS = "size", ("collection", "segments", "documents", "bytes")
_OWN = {"format", "folder", "session", _SUMS, MOVED}
"""Tables that are not copied: versions, the identity, processes that write, sums that triggers keep, and marks."""

_STEP = 1_000
"""Number of rows between two calls of `Progress`."""


class Tables(Protocol):
    """The tables of one metadata database, in a transaction."""

    def columns(self) -> Mapping[str, Sequence[str]]:
        """Return the columns of each table."""
        ...

    def rows(self, table: str, columns: Sequence[str]) -> Iterable[Row]:
        """Yield the rows of a table, in any order, with constant memory."""
        ...

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        ...

    def replace(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Replace all rows of a table."""
        ...


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """A table that was copied and compared.

    Attributes:
        name: its name.
        rows: number of rows.
        digest: sum of the SHA-256 of all rows, which does not depend on their order, in hexadecimal digits.
    """

    name: str
    rows: int
    digest: str


def copy_tables(source: Tables, target: Tables, progress: Progress = lambda done, total: None) -> list[CopiedTable]:
    """Replace the rows of all tables by those of another database, and compare; the identity is left out.

    Args:
        source: the original, which does not change meanwhile.
        target: an open write transaction of the copy.
        progress: called with the number of copied rows, and of all rows.

    Returns:
        The copied tables, by name.

    Raises:
        StorageError: the databases have different tables, or the copy differs from the original.
    """
    tables = _common(source.columns(), target.columns())
    total = sum(map(source.count, tables))
    copied, done = [], 0
    for table, columns in tables.items():
        original = _Digest()
        target.replace(
            table, columns, original.over(map(_storable, source.rows(table, columns)), progress, done, total)
        )
        done += original.rows
        reach("move.table")
        copied.append(original.of(table))
    for expected in [*copied, _digest(_SUMS, source.rows(_SUMS, _SUM_COLUMNS))]:
        columns = tables.get(expected.name, _SUM_COLUMNS)
        _require_equal(expected, _digest(expected.name, target.rows(expected.name, columns)))
    return copied


def raise_epochs(db: Transaction, steps: int = 1 << 20) -> None:
    """Raise the epochs of all tasks and servers, and end the capabilities of all processes.

    Earlier processes then commit nothing, also if they have epochs that this database has never assigned.

    Args:
        db: a write transaction.
        steps: number that is added to each epoch; more than the number of runs that this database may lack.
    """
    db.execute("UPDATE task SET epoch = epoch + ?", (steps,))
    db.execute(
        "INSERT INTO abandoned SELECT id, collection FROM capability WHERE kind = 'write' AND task IS NULL"
        " ON CONFLICT (id) DO NOTHING"
    )
    db.execute("DELETE FROM capability WHERE task IS NULL OR kind <> 'read'")
    db.execute("UPDATE capability SET at = NULL")


def _common(source: Mapping[str, Sequence[str]], target: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return the columns of the tables that are copied.

    Raises:
        StorageError: the databases have different tables or columns.
    """
    left, right = ({name: set(columns[name]) for name in columns.keys() - _OWN} for columns in (source, target))
    if left != right:
        names = ", ".join(sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name)))
        raise StorageError(
            f"the databases have different tables: {names}", hint="use the release of flowctl that wrote them"
        )
    return {name: tuple(source[name]) for name in sorted(left)}


def _storable(row: Row) -> Row:
    """Return a row with U+FFFD for U+0000, which PostgreSQL cannot store; only messages have it."""
    if any(type(value) is str and "\0" in value for value in row):
        return tuple(value.replace("\0", "\ufffd") if type(value) is str else value for value in row)
    return row


def _require_equal(expected: CopiedTable, written: CopiedTable) -> None:
    """Raise an error if a copied table differs from the original.

    Raises:
        StorageError: the table differs.
    """
    if written != expected:
        raise StorageError(
            f"the copy of the table '{written.name}' differs from the original: it has {counted(written.rows, 'row')}"
            f" instead of {expected.rows:,}, and the digest {written.digest[:12]} instead of {expected.digest[:12]}",
            hint="nothing was changed; run the command again",
        )


class _Digest:
    """The number of rows so far, and the sum of their digests."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, row: Row) -> None:
        self.rows += 1
        self._sum += int.from_bytes(sha256(repr(row).encode()).digest(), "big")

    def over(self, rows: Iterable[Row], progress: Progress, before: int, total: int) -> Iterator[Row]:
        """Yield rows, and add each."""
        for row in rows:
            self.add(row)
            if self.rows % _STEP == 0:
                progress(before + self.rows, total)
            yield row

    def of(self, table: str) -> CopiedTable:
        return CopiedTable(table, self.rows, f"{self._sum % (1 << 256):064x}")


def _digest(table: str, rows: Iterable[Row]) -> CopiedTable:
    digest = _Digest()
    for row in rows:
        digest.add(row)
    return digest.of(table)
