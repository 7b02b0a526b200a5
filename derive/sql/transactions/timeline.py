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
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Protocol, TypeAlias

from derive.algebra.relation import GlobalId
from derive.algebra.types import Row
from derive.document.clock import format_rfc3339
from derive.errors import FrontierError, SqlError
from derive.time.frontier import BEGINNING, END_OF_TIME

Write: TypeAlias = tuple[GlobalId, Row, int]
"""A table, a row, and how many more of it there are."""

Check: TypeAlias = Callable[[int], Awaitable[None]]
"""Checks that something may be written at a time; raises an error if not."""

SEAL_SECONDS = 0.25
"""How often whoever waits lets time pass: it costs a commit."""


def told(clock: int) -> str:
    """A clock, for people."""
    return f"{clock} ({format_rfc3339(clock)})" if BEGINNING < clock < END_OF_TIME else str(clock)


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
        seal_seconds: see `SEAL_SECONDS`.
    """

    def __init__(self, ledger: Ledger, latest: int, seal_seconds: float = SEAL_SECONDS) -> None:
        self._ledger = ledger
        self._seal_seconds = seal_seconds
        self._latest = latest
        self._turn = asyncio.Lock()  # of whoever moves `upper` of tables
        self._moving = asyncio.Lock()  # of whoever reads at a new time
        self._alone: asyncio.Task[object] | None = None

    @property
    def latest(self) -> int:
        """The latest time of a read or a finished write."""
        return self._latest

    def tell(self, time: int) -> None:
        """A client is told what was written at a time: whoever reads from now on sees it."""
        self._latest = max(self._latest, time)

    async def read(self, ids: Collection[GlobalId], *, at_present: bool, least: int = 0) -> int:
        """The time of a strictly serializable read, once everything is known that happened up to it.

        Args:
            ids: what is read.
            at_present: whether others than we write what is read, so that only the present is sure to follow them.
            least: a time that is not to be below, so that an index can be used which is known from then on.

        Raises:
            SqlError: it would be waited for in vain.
        """
        since, upper = await self._ledger.frontiers(ids)
        time = None if at_present else self.time_at_once(since, upper, least=least)
        if time is None:
            since = max(since, least)
            is_alone = self._alone is not None and self._alone is asyncio.current_task()
            async with nullcontext() if is_alone else self._moving, self._turn:
                time = await self._time_of_read(since, at_present=at_present)
                self._latest = time
                await self._ledger.seal(ids, time)
            await self._reached(ids, time)
        return time

    def time_at_once(self, since: int, upper: int, *, least: int = 0) -> int | None:
        """The time of a strictly serializable read of what only we write; None if it takes a new time, or a wait.

        Args:
            since: the greatest of what is read, at this moment.
            upper: the least of what is read, at this moment.
            least: as of `read`.
        """
        time = self._latest
        return time if max(since, least) <= time < upper else None

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Nobody else reads at a new time in this block, so what it has read may be followed by a write right above."""
        async with self._moving:
            self._alone = asyncio.current_task()
            try:
                yield
            finally:
                self._alone = None

    async def reach(self, ids: Collection[GlobalId], time: int) -> None:
        """Wait until everything is known that happened up to a time, of a transaction or of somebody's choice.

        A time that is yet to come is waited for.

        Raises:
            SqlError: it is forgotten, or it would be waited for in vain.
        """
        since, upper = await self._ledger.frontiers(ids)
        if since > time:
            raise SqlError(
                "22023",
                f"what is read is known from {told(since)} on, and not at {told(time)}",
                hint="read a later time; a transaction reads all at the time of its first statement: begin another one",
            )
        if upper <= time:
            await self._reached(ids, time)

    async def _reached(self, ids: Collection[GlobalId], time: int) -> None:
        """Wait until everything is known that happened up to a time, and let time pass for what nobody derives.

        Who ingests holds that up, and leaves it at the last of what was ingested.
        """
        loop = asyncio.get_running_loop()
        sealed = -self._seal_seconds
        while (await self._ledger.frontiers(ids))[1] <= time:
            is_due = loop.time() - sealed >= self._seal_seconds
            if is_due and time <= max(self._latest, await self._ledger.present() - 1):
                sealed = loop.time()
                async with self._turn:
                    await self._ledger.seal(ids, time)
            else:
                await self._ledger.changed(ids, time)

    async def complete(self, ids: Collection[GlobalId], *, least: int = 0, upper: int | None = None) -> int:
        """The time of a serializable read: the newest at which all that is read is known, without a wait if it can be.

        It may be before that of a write which is finished. Time passes for what nobody derives.

        Args:
            ids: what is read.
            least: a time that it is better not below.
            upper: before it everything is known where this is maintained; None if it is read from where it is stored.

        Raises:
            SqlError: there is no such time yet, and it would be waited for in vain.
        """
        if upper is not None:
            time = await self._maintained(ids, upper)
            since, _ = await self._ledger.frontiers(ids)
            if time >= max(since, least):
                return time
        async with self._turn:
            await self._ledger.seal(ids, await self._ledger.present() - 1)
        while True:
            since, upper = await self._ledger.frontiers(ids)
            if upper > since:
                return upper - 1
            await self.reach(ids, since)

    async def _maintained(self, ids: Collection[GlobalId], upper: int) -> int:
        """The newest time at which all is known where it is maintained, and not below what was read or written here.

        To let time pass up to the present would only have the reader wait until what is maintained has followed. It
        passes up to what is known of any of what is read, so that nothing stays behind.
        """
        uppers = [(await self._ledger.frontiers([identifier]))[1] for identifier in ids]
        wanted = self._latest
        if min(uppers) < max(uppers):
            wanted = max(wanted, min(max(uppers), await self._ledger.present()) - 1)
        if min(uppers) <= wanted:
            async with self._turn:
                await self._ledger.seal(ids, wanted)
        _, known = await self._ledger.frontiers(ids)
        return min(known - 1, max(self._latest, upper - 1))

    async def write(self, writes: Sequence[Write], *, after: int | None = None, check: Check | None = None) -> int:
        """Write, and return the time at which it was; whoever reads from now on sees it.

        What follows from what was read is written just above that, if nobody has read or written since; else what was
        read is checked.

        Args:
            writes: all or none of them happen.
            after: the time at which that was read from which they follow.
            check: of the time at which they are to be written.

        Raises:
            SqlError: the check has failed.
        """
        async with self._turn:
            is_next = after is not None and after >= self._latest
            while True:
                time = after + 1 if is_next and after is not None else await self._time_of_write()
                if check is not None and not is_next:
                    await check(time)
                is_next = False
                try:
                    await self._ledger.append(time, writes)
                except FrontierError:  # somebody has sealed a table
                    continue
                self._latest = max(self._latest, time)
                return time

    async def _time_of_read(self, since: int, *, at_present: bool) -> int:
        return max(self._latest, since, await self._ledger.present() if at_present else 0)

    async def _time_of_write(self) -> int:
        return max(await self._ledger.present(), self._latest + 1)
