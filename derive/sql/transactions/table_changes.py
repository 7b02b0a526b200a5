"""Committed changes of a table that its copy in memory does not have yet."""

from __future__ import annotations

import marshal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TypeAlias

from derive.algebra.types import Row
from derive.relations.table_rows import StoredRow, rows_of
from derive.sql.transactions.key_rows import FORMAT
from derive.storage.table_types import Table

LEAST_PENDING = 10_000
"""Number of pending changes from which a copy is discarded, if its table has fewer rows."""

Changes: TypeAlias = tuple[Sequence[Row], Sequence[int]]
"""Rows, and the changes of their counts; none if each is 1."""
Net: TypeAlias = tuple[Sequence[tuple[Row, int]], Sequence[Row]]
"""Removed rows with their counts, and added rows."""


@dataclass(slots=True)
class PendingChanges:
    """Changes of one table, in the order of their commits.

    Attributes:
        since: time up to which the copy has the changes.
        latest: time of the last change.
        size: number of changed rows.
    """

    since: int
    latest: int = 0
    size: int = 0
    _changes: list[Changes] = field(default_factory=list)

    def add(self, rows: Sequence[Row], diffs: Sequence[int], time: int) -> None:
        """Add the changes of a commit."""
        if time > self.since:
            self.latest = time
            self.size += len(rows)
            self._changes.append((rows, diffs))

    def is_excessive(self, count: int) -> bool:
        """Return whether a table of a number of rows is read again in less time than the changes take."""
        return self.size > max(LEAST_PENDING, count)

    def take(self) -> list[Changes]:
        """Return all changes, which are no longer pending."""
        changes, self._changes, self.size = self._changes, [], 0
        return changes


def net_changes(source: Table, changes: Sequence[Changes]) -> Net | None:
    """Return changes as removed and added rows, as they are read from Storage; None if not all rows are known."""
    if any(StoredRow in set(map(type, rows)) for rows, _ in changes):
        return None
    stored = rows_of(source)
    listed = [(stored.as_stored(rows), diffs) for rows, diffs in changes if rows]
    return distinct(listed) or net(listed)


def distinct(changes: Sequence[Changes]) -> Net | None:
    """Return the removed and added rows like `net`, in less time; None if some rows are equal in Python."""
    if len(changes) != 1:
        return None
    rows, diffs = changes[0]
    if not diffs:
        return [], rows
    removed, added = ([row for row, one in zip(rows, diffs, strict=True) if one == diff] for diff in (-1, 1))
    known = set(removed)
    is_distinct = len(known) == len(removed) and known.isdisjoint(added)
    return ([(row, 1) for row in removed], added) if is_distinct and len(removed) + len(added) == len(rows) else None


def net(changes: Sequence[Changes]) -> Net:
    """Return the removed rows, each with a count, and the added rows."""
    counts, known = Counter[bytes](), dict[bytes, Row]()
    for rows, diffs in changes:
        keys = list(map(marshal.dumps, rows, repeat(FORMAT)))  # rows that are equal in Python may differ
        known.update(zip(keys, rows, strict=True))
        if not diffs:
            counts.update(keys)
        else:
            for key, diff in zip(keys, diffs, strict=True):
                counts[key] += diff
    removed = [(known[key], -count) for key, count in counts.items() if count < 0]
    return removed, [known[key] for key, count in counts.items() for _ in range(count)]
