"""Reads of a table's updates: segments and appended rows of one state of the metadata database."""

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
from derive.time.source_read import Segment


@dataclass(frozen=True, slots=True)
class TableRead:
    """Updates of a table.

    Attributes:
        upper: `upper` of the table at the read.
        segments: segments that may contain some of the updates.
        appended: updates that are in no segment yet.
        failure: if the updates end at an error of a materialized view, the timestamp and the error.
    """

    upper: int
    segments: tuple[Segment, ...]
    appended: tuple[AppendedRow, ...]
    failure: tuple[int, ViewError] | None = None


def read_between(
    db: apsw.Connection, identifier: int, begin: int, end: int, within: Sequence[Sequence[str]]
) -> TableRead | None:
    """Return the updates of a table with timestamps in `[begin, end)`; None if the table does not exist.

    `within` filters as in `read_appended`.
    """
    known = _known(db, identifier)
    if known is None:
        return None
    name, upper = known
    return TableRead(upper, _segments(db, name, begin, end), tuple(read_appended(db, identifier, begin, end, within)))


def read_on(db: apsw.Connection, identifier: int, begin: int) -> TableRead | None:
    """Return the final updates of a table from a timestamp on; None if no later timestamp is final."""
    known = _known(db, identifier)
    if known is None or known[1] <= begin:
        return None
    name, upper = known
    failure = first_error(db, name, begin, upper)
    end = upper if failure is None else failure[0]
    appended = tuple(read_appended(db, identifier, begin, end))
    return TableRead(upper, _segments(db, name, begin, end), appended, failure)


def _known(db: apsw.Connection, identifier: int) -> tuple[str, int] | None:
    """Return the name of a table and its `upper`; None if it does not exist."""
    row: Any = db.execute(
        "SELECT name, upper FROM collection WHERE id = ? AND columns IS NOT NULL", (identifier,)
    ).fetchone()
    return (row[0], row[1]) if row else None


def _segments(db: apsw.Connection, name: str, begin: int, end: int) -> tuple[Segment, ...]:
    return tuple(segment for segment in read_segments(db, name, begin) if segment.clock_min < end)
