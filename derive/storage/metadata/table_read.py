"""Updates of tables in the metadata database, wherever they are, as of one look at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import apsw

from derive.errors import ViewError
from derive.storage.metadata.failures import first_error
from derive.storage.metadata.segment import read_segments
from derive.storage.metadata.tables import read_appended
from derive.storage.table import AppendedRow
from derive.time.segment import Segment


@dataclass(frozen=True, slots=True)
class TableRead:
    """Updates of a table.

    Attributes:
        upper: of the table then.
        segments: that may hold some of them.
        appended: those that are in no segment yet.
        failure: if they end where a materialized view has an error in the place of rows, that time and the error.
    """

    upper: int
    segments: tuple[Segment, ...]
    appended: tuple[AppendedRow, ...]
    failure: tuple[int, ViewError] | None = None


def read_between(
    db: apsw.Connection, identifier: int, begin: int, end: int, within: Sequence[Sequence[str]]
) -> TableRead | None:
    """Updates of a table with clocks in `[begin, end)`; `within` as for `read_appended`. None if there is no table."""
    known = _known(db, identifier)
    if known is None:
        return None
    name, upper = known
    return TableRead(upper, _segments(db, name, begin, end), tuple(read_appended(db, identifier, begin, end, within)))


def read_on(db: apsw.Connection, identifier: int, begin: int) -> TableRead | None:
    """Final updates of a table from a clock on; None if there are none, since nothing is final that was not before."""
    known = _known(db, identifier)
    if known is None or known[1] <= begin:
        return None
    name, upper = known
    failure = first_error(db, name, begin, upper)
    end = upper if failure is None else failure[0]
    appended = tuple(read_appended(db, identifier, begin, end))
    return TableRead(upper, _segments(db, name, begin, end), appended, failure)


def _known(db: apsw.Connection, identifier: int) -> tuple[str, int] | None:
    """What a table is called, and its `upper`."""
    row: Any = db.execute(
        "SELECT name, upper FROM collection WHERE id = ? AND columns IS NOT NULL", (identifier,)
    ).fetchone()
    return (row[0], row[1]) if row else None


def _segments(db: apsw.Connection, name: str, begin: int, end: int) -> tuple[Segment, ...]:
    return tuple(segment for segment in read_segments(db, name, begin) if segment.clock_min < end)
