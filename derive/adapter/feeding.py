"""Sources with rows of their own are fed: what is new in them is committed, with how far they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress

from derive.adapter.catalog import Item
from derive.adapter.group_commit import GroupCommit
from derive.adapter.objects import Objects
from derive.adapter.sources import polled
from derive.compute.algebra.relation import GlobalId
from derive.compute.algebra.types import Row
from derive.compute.relations.table_input import table_at
from derive.errors import FlowError, SqlError
from derive.storage.store import Store

_LOOK_SECONDS, _BREATH_SECONDS = 0.1, 0.01
"""How often files and counters are looked at, and how often while there is more."""


class Feeding:
    """A task that feeds sources, in the process that writes.

    Args:
        store: of the data folder.
        commits: writes.
        objects: what there is now.
    """

    def __init__(self, store: Store, commits: GroupCommit, objects: Callable[[], Objects]) -> None:
        self._store, self._commits, self._objects = store, commits, objects
        self._positions: dict[GlobalId, Row] = {}
        self._failures: dict[GlobalId, SqlError] = {}
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Feed from now on."""
        self._task = asyncio.create_task(self._feed())

    async def close(self) -> None:
        """Feed no more."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()  # in the middle of a commit it goes on to the end of that
            with suppress(asyncio.CancelledError):
                await self._task

    def check(self, ids: Collection[GlobalId]) -> None:
        """Check that nothing keeps sources from being fed.

        Raises:
            SqlError: something does.
        """
        for identifier in ids:
            if identifier in self._failures:
                raise self._failures[identifier]

    async def _feed(self) -> None:
        while not self._is_closed:
            objects = self._objects()
            is_idle = True
            for item in list(objects.items.values()):
                if item.position is not None:
                    is_idle &= not await self._feed_one(item)
            await asyncio.sleep(_LOOK_SECONDS if is_idle else _BREATH_SECONDS)

    async def _feed_one(self, item: Item) -> bool:
        """Feed one source; whether there was something new."""
        try:
            position = self._positions.get(item.id)
            if position is None:
                position = await asyncio.to_thread(self._position, item)
            now = self._store.timeline.time()
            changes, reached = await asyncio.to_thread(polled, item, position, now)
            if tuple(reached) != tuple(position):
                place = item.position
                assert place is not None
                writes = [(item.id, row, diff) for row, diff in changes]
                await self._commits.commit([*writes, (place, tuple(position), -1), (place, tuple(reached), 1)])
            self._positions[item.id] = reached
            self._failures.pop(item.id, None)
        except FlowError as error:
            self._positions.pop(item.id, None)
            if isinstance(error, SqlError):
                self._failures[item.id] = error
            return False
        return bool(changes)

    def _position(self, item: Item) -> Row:
        table = self._store.tables.table(item.position) if item.position is not None else None
        if table is None:
            raise SqlError("42P01", f'source "{item.name}" was dropped')
        rows = [row for rows in table_at(self._store, table, table.upper - 1) for row in rows]
        return rows[0]
