"""Maintenance of tables: write appended rows to segments, merge small segments, and delete unneeded history."""

from __future__ import annotations

from collections import defaultdict

from derive.storage.history import GRACE
from derive.storage.roles import Maintainable
from derive.storage.table_types import GlobalId, Table
from derive.storage.timeline import wall_clock

_MANY_UPDATES = 5_000
"""Number of appended updates that are written to a segment."""

_FEWEST = 8
"""Smallest number of consecutive small segments that are merged."""

_FEWEST_ROWS = 10_000
"""Smallest number of rows for which history is deleted."""


class TableCompaction:
    """Maintains the tables of one data folder, for the process that writes them.

    To delete history, the whole rest of a table is written again. This is done each time the size of the table has
    doubled, so the total cost is about the cost of writing the rows.

    Args:
        store: the data folder.
        grace: shortest time for which replaced files are kept, microseconds.
    """

    def __init__(self, store: Maintainable, grace: int = GRACE) -> None:
        self._store = store
        self._grace = grace
        self._left: defaultdict[GlobalId, int] = defaultdict(int)
        self._segments: defaultdict[GlobalId, int] = defaultdict(int)

    def compact(self, since: int) -> None:
        """Maintain all tables.

        Args:
            since: timestamp before which history is not needed, except by read capabilities.

        Raises:
            FlowError: the disk is full or broken; no data is lost.
        """
        self._store.tables.flush(fewest=_MANY_UPDATES)
        for table in self._store.tables.all():
            self._compact(table, since)
        self._store.tables.forget_unread()
        self._store.garbage.collect_replaced(wall_clock() - self._grace)

    def _compact(self, table: Table, since: int) -> None:
        known = self._store.collection(table.name)
        if known is None:
            return
        forgets = since > table.since and known.documents >= max(_FEWEST_ROWS, 2 * self._left[table.id])
        if not forgets and known.segments < self._segments[table.id] + _FEWEST:
            return
        from derive.storage.compaction import compact  # imported only if there is work

        desired = since if forgets else None
        done = compact(self._store, table.spec, since=desired, fewest=_FEWEST, grace=self._grace, wait=False)
        if done is not None:
            self._segments[table.id] = done.after
            if forgets:
                self._left[table.id] = done.documents_after
