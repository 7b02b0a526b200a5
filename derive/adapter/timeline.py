"""The adapter's timeline: one order of all reads and writes, told in times that storage understands.

These are its rules.

1. Times never decrease.
2. A write's time is above that of every read before it.
3. A read's time is at or above the `since` of what it reads, and at or above the time of every write before it.
4. A write's time is at or above the `upper` of what it writes.

At one time, writes come before reads. Times are clocks of the data folder's own timeline, so whatever other processes
ingest has its place among them, too. What runs here runs in one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Protocol, TypeAlias

from derive.compute.algebra.relation import GlobalId
from derive.compute.algebra.types import Row
from derive.errors import FrontierError, SqlError

Write: TypeAlias = tuple[GlobalId, Row, int]
"""A table, a row, and how many more of it there are."""


class Ledger(Protocol):
    """Storage, as the timeline needs it. Others may run during each of its methods."""

    async def present(self) -> int:
        """What time it is: a clock that is above all that were assigned. Another process may assign it, too."""

    async def append(self, time: int, writes: Sequence[Write]) -> None:
        """Write into tables at a time, all or nothing, durably; the `upper` of all tables is above it then.

        Raises:
            FrontierError: the `upper` of a table is above that time already; nothing was written.
        """

    async def seal(self, ids: Collection[GlobalId], time: int) -> None:
        """Move `upper` of tables and ingested collections above a time, which nothing will be written at any more."""

    async def frontiers(self, ids: Collection[GlobalId]) -> tuple[int, int]:
        """The greatest `since` and the least `upper` of collections and of what is maintained; no id, no bounds."""

    async def changed(self, ids: Collection[GlobalId], time: int) -> None:
        """Wait for news of an `upper` that does not pass a time.

        Raises:
            SqlError: it will not, as nobody works on it.
        """


class Timeline:
    """Assigns times to reads and writes.

    Args:
        ledger: where they happen.
        latest: a time that is not below those of all reads and writes of earlier processes.
    """

    def __init__(self, ledger: Ledger, latest: int) -> None:
        self._ledger = ledger
        self._latest = latest
        self._turn = asyncio.Lock()  # of whoever moves `upper` of tables

    @property
    def latest(self) -> int:
        """The latest time of a read or a finished write."""
        return self._latest

    async def read(self, ids: Collection[GlobalId], *, at_present: bool, least: int = 0) -> int:
        """The time of a strictly serializable read, once everything is known that happened up to it.

        Args:
            ids: what is read.
            at_present: whether others than we write what is read, so that only the present is sure to follow them.
            least: a time that is not to be below, so that an index can be used which is known from then on.

        Raises:
            SqlError: it would be waited for in vain.
        """
        time = self._latest
        since, upper = await self._ledger.frontiers(ids)
        since = max(since, least)
        if at_present or since > time or upper <= time:
            async with self._turn:
                time = await self._time_of_read(since, at_present=at_present)
                self._latest = time
                await self._ledger.seal(ids, time)
        await self._reached(ids, time)
        return time

    async def reach(self, ids: Collection[GlobalId], time: int) -> None:
        """Wait until everything is known that happened up to a time, of a transaction or of somebody's choice.

        Raises:
            SqlError: it is forgotten, or it would be waited for in vain.
        """
        since, upper = await self._ledger.frontiers(ids)
        if since > time:
            raise SqlError(
                "22023",
                f"what happened up to {time} is forgotten: what is read is known from {since} on",
                hint=f"read it at {since} or later",
            )
        if upper <= time:
            if time <= max(self._latest, await self._ledger.present() - 1):
                async with self._turn:
                    await self._ledger.seal(ids, time)
            await self._reached(ids, time)

    async def _reached(self, ids: Collection[GlobalId], time: int) -> None:
        while (await self._ledger.frontiers(ids))[1] <= time:
            await self._ledger.changed(ids, time)

    async def complete(self, ids: Collection[GlobalId]) -> int:
        """The time of a serializable read: the newest at which all that is read is known, without a wait if it can be.

        It may be before that of a write which is finished. Time passes for what nobody derives.

        Raises:
            SqlError: there is no such time yet, and it would be waited for in vain.
        """
        async with self._turn:
            await self._ledger.seal(ids, await self._ledger.present() - 1)
        while True:
            since, upper = await self._ledger.frontiers(ids)
            if upper > since:
                return upper - 1
            await self.reach(ids, since)

    async def write(self, writes: Sequence[Write]) -> int:
        """Write, and return the time at which it was; whoever reads from now on sees it."""
        async with self._turn:
            while True:
                time = await self._time_of_write()
                try:
                    await self._ledger.append(time, writes)
                except FrontierError:  # another process has sealed a table that it reads
                    continue
                self._latest = max(self._latest, time)
                return time

    async def _time_of_read(self, since: int, *, at_present: bool) -> int:
        return max(self._latest, since, await self._ledger.present() if at_present else 0)

    async def _time_of_write(self) -> int:
        return max(await self._ledger.present(), self._latest + 1)
