"""Upkeep of tables: what was appended becomes segments, small ones are merged, and history that nobody needs goes."""

from __future__ import annotations

from collections import defaultdict

from derive.storage.garbage import GRACE
from derive.storage.roles import Kept
from derive.storage.table import GlobalId, Table
from derive.storage.timeline import wall_clock

_MANY_UPDATES = 5_000
"""So many updates that were appended become a segment."""

_FEWEST = 8
"""So many small segments in a row are merged."""

_FEWEST_ROWS = 10_000
"""Fewer rows than that are not worth forgetting history."""


class TableUpkeep:
    """Looks after the tables of one data folder, now and then, for whoever writes them.

    Forgetting history writes all that is left of a table. So it is done each time that the table has grown to twice
    what was left the last time, and costs about as much as writing the rows did.

    Args:
        store: the data folder.
        grace: how long replaced files are kept, microseconds.
    """

    def __init__(self, store: Kept, grace: int = GRACE) -> None:
        self._store = store
        self._grace = grace
        self._left: defaultdict[GlobalId, int] = defaultdict(int)
        self._segments: defaultdict[GlobalId, int] = defaultdict(int)

    def tend(self, since: int) -> None:
        """Look after all tables.

        Args:
            since: the time before which nobody needs history, but those who hold a right to read it.

        Raises:
            FlowError: the disk is full or broken; nothing is lost.
        """
        self._store.tables.flush(fewest=_MANY_UPDATES)
        for table in self._store.tables.all():
            self._tend(table, since)
        self._store.tables.forget_unread()
        self._store.garbage.collect_replaced(wall_clock() - self._grace)

    def _tend(self, table: Table, since: int) -> None:
        known = self._store.collection(table.name)
        if known is None:
            return
        forgets = since > table.since and known.documents >= max(_FEWEST_ROWS, 2 * self._left[table.id])
        if not forgets and known.segments < self._segments[table.id] + _FEWEST:
            return
        from derive.storage.compaction import compact  # not before there is something to do

        wanted = since if forgets else None
        done = compact(self._store, table.spec, since=wanted, fewest=_FEWEST, grace=self._grace, wait=False)
        if done is not None:
            self._segments[table.id] = done.after
            if forgets:
                self._left[table.id] = done.documents_after
