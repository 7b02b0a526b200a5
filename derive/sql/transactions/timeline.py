"""The timeline of SQL: one order of all reads and writes, in times of Storage.

Rules:

1. Times never decrease.
2. A write's time is above the times of all earlier reads.
3. A read's time is at or above the `since` of the relations read, and at or above the times of all earlier writes.
4. A write's time is at or above the `upper` of the tables written.

At one time, writes precede reads. Times come from the clock of the data folder, so ingestion by other processes is
part of the same order. The timeline runs in one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Protocol, TypeAlias

from derive.algebra.relation import GlobalId
from derive.document.clock import format_rfc3339
from derive.errors import FrontierError, SqlError
from derive.sql.transactions.writes import Write, tables_of
from derive.storage.metadata.definitions import Definitions
from derive.time import BEGINNING, END_OF_TIME, FOREVER

Check: TypeAlias = Callable[[int], Awaitable[None]]
"""A function that raises an error if a write may not happen at a time."""

SEAL_SECONDS = 0.25
"""Interval at which a waiting read seals relations, in seconds; each seal costs a commit."""


def time_text(clock: int) -> str:
    """Return a time as text for messages."""
    return f"{clock} ({format_rfc3339(clock)})" if BEGINNING < clock < END_OF_TIME else str(clock)


class StorageClock(Protocol):
    """The part of Storage that the timeline needs. Other tasks may run during each method."""

    async def present(self, *, is_exact: bool = True) -> int:
        """Return the present time, above all times assigned so far; another process may get the same time.

        Without `is_exact`, the time is an estimate, which `append` checks.
        """

    async def append(
        self, time: int, writes: Sequence[Write], definitions: Definitions | None = None, *, is_estimate: bool = False
    ) -> None:
        """Define and write tables at a time, atomically and durably; afterwards each `upper` is above the time.

        Raises:
            FrontierError: the `upper` of a table is above the time already, or the time is a wrong estimate; nothing
                was written.
            UsageError: a name of a defined table is in use; nothing was written.
        """

    async def seal(self, ids: Collection[GlobalId], time: int) -> None:
        """Move `upper` of tables and ingested collections above a time.

        No rows can be written at this time afterwards.
        """

    async def frontiers(self, ids: Collection[GlobalId]) -> tuple[int, int]:
        """Return the greatest `since` and the least `upper` of relations; without identifiers, the widest bounds."""

    async def changed(self, ids: Collection[GlobalId], time: int) -> None:
        """Wait for a notification about an `upper` at or below a time.

        Raises:
            SqlError: no task advances the `upper`.
        """


class Timeline:
    """Assigns times to reads and writes.

    Args:
        storage_clock: storage of the reads and writes.
        latest: a time at or above all reads and writes of earlier processes.
        seal_seconds: see `SEAL_SECONDS`.
    """

    def __init__(self, storage_clock: StorageClock, latest: int, seal_seconds: float = SEAL_SECONDS) -> None:
        self._storage_clock = storage_clock
        self._seal_seconds = seal_seconds
        self._latest = latest
        self._turn = asyncio.Lock()  # held while `upper` of tables moves
        self._moving = asyncio.Lock()  # held by a read at a new time
        self._alone: asyncio.Task[object] | None = None

    @property
    def latest(self) -> int:
        """Return the latest time of a read or a finished write."""
        return self._latest

    def observe(self, time: int) -> None:
        """Let later reads include a write of which a client was notified."""
        self._latest = max(self._latest, time)

    async def read(self, ids: Collection[GlobalId], *, at_present: bool, least: int = 0) -> int:
        """Return the time of a strictly serializable read, after the relations are complete at this time.

        Args:
            ids: relations to read.
            at_present: whether other processes write the relations, so that only a read at the present certainly
                includes their writes.
            least: a lower bound, from which an index can be used.

        Raises:
            SqlError: no task advances a relation.
        """
        since, upper = await self._storage_clock.frontiers(ids)
        time = None if at_present else self.time_at_once(since, upper, least=least)
        if time is None:
            since = max(since, least)
            is_alone = self._alone is not None and self._alone is asyncio.current_task()
            async with nullcontext() if is_alone else self._moving, self._turn:
                time = await self._time_of_read(since, at_present=at_present)
                self._latest = time
                await self._storage_clock.seal(ids, time)
            await self._reached(ids, time)
        return time

    def time_at_once(self, since: int, upper: int, *, least: int = 0) -> int | None:
        """Return the time of a read of relations that only SQL writes; None if the read needs a new time, or a wait.

        Args:
            since: the current greatest `since` of the relations.
            upper: the current least `upper` of the relations.
            least: as in `read`.
        """
        time = self._latest
        return time if max(since, least) <= time < upper else None

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Exclude other reads at new times during the block, so that its write can directly follow its reads."""
        async with self._moving:
            self._alone = asyncio.current_task()
            try:
                yield
            finally:
                self._alone = None

    async def reach(self, ids: Collection[GlobalId], time: int) -> None:
        """Wait until relations are complete up to a given time, which may be in the future.

        Raises:
            SqlError: history at the time is compacted, or no task advances a relation.
        """
        since, upper = await self._storage_clock.frontiers(ids)
        if since > time:
            raise SqlError(
                "22023",
                f"the relations are known from {time_text(since)} on, and not at {time_text(time)}",
                hint="Read at a later time; a transaction reads at the time of its first statement, so begin"
                " another transaction.",
            )
        if upper <= time:
            await self._reached(ids, time)

    async def _reached(self, ids: Collection[GlobalId], time: int) -> None:
        """Wait until relations are complete up to a time. Seal relations that no task derives.

        Active ingestion delays the seal, and stops it at the last ingested time.
        """
        loop = asyncio.get_running_loop()
        sealed = -self._seal_seconds
        while (await self._storage_clock.frontiers(ids))[1] <= time:
            is_due = loop.time() - sealed >= self._seal_seconds
            if is_due and time <= max(self._latest, await self._storage_clock.present() - 1):
                sealed = loop.time()
                async with self._turn:
                    await self._storage_clock.seal(ids, time)
            else:
                await self._storage_clock.changed(ids, time)

    async def complete(self, ids: Collection[GlobalId], *, least: int = 0, upper: int | None = None) -> int:
        """Return the time of a serializable read: the newest complete time, if possible without a wait.

        The time may be before a finished write. Relations that no task derives are sealed.

        Args:
            ids: relations to read.
            least: a preferred lower bound.
            upper: time before which the maintained rows are complete; None if rows are read from Storage.

        Raises:
            SqlError: the time is in the future, and no task advances a relation.
        """
        if upper is not None:
            time = await self._maintained(ids, upper)
            since, _ = await self._storage_clock.frontiers(ids)
            if time >= max(since, least):
                return time
        async with self._turn:
            await self._storage_clock.seal(ids, await self._storage_clock.present() - 1)
        while True:
            since, upper = await self._storage_clock.frontiers(ids)
            if upper >= FOREVER:
                return max(since, await self._storage_clock.present() - 1)
            if upper > since:
                return upper - 1
            await self.reach(ids, since)

    async def _maintained(self, ids: Collection[GlobalId], upper: int) -> int:
        """Return the newest complete time of maintained relations; it is not before reads and writes of this process.

        After a seal up to the present, the reader would wait for the maintained rows. So each relation is sealed up to
        the greatest `upper` of the read relations.
        """
        uppers = [(await self._storage_clock.frontiers([identifier]))[1] for identifier in ids]
        desired = self._latest
        if min(uppers) < max(uppers):
            desired = max(desired, min(max(uppers), await self._storage_clock.present()) - 1)
        if min(uppers) <= desired:
            async with self._turn:
                await self._storage_clock.seal(ids, desired)
        _, known = await self._storage_clock.frontiers(ids)
        return min(known - 1, max(self._latest, upper - 1))

    async def write(
        self,
        writes: Sequence[Write],
        *,
        after: int | None = None,
        check: Check | None = None,
        definitions: Definitions | None = None,
        in_doubt: Callable[[int], None] = lambda _: None,
    ) -> int:
        """Write, and return the time of the write; later reads see it.

        A write that depends on reads is written directly above the time of the reads, if no other read or write has
        followed; otherwise the reads are checked.

        Args:
            writes: the writes, applied atomically.
            after: time of the reads that the writes depend on.
            check: a function that checks the time of the write.
            definitions: definitions of the same commit.
            in_doubt: a function that gets the time of a failed write that may have happened; later reads are not before
                this time.

        Raises:
            SqlError: the check has failed.
        """
        async with self._turn:
            is_next = after is not None and after >= self._latest
            is_estimate = check is None and definitions is None
            while True:
                time = (
                    after + 1 if is_next and after is not None else await self._time_of_write(is_exact=not is_estimate)
                )
                if check is not None and not is_next:
                    await check(time)
                is_next = False
                try:
                    await self._storage_clock.append(time, writes, definitions, is_estimate=is_estimate)
                except FrontierError:  # another process has sealed a table, or the estimate is wrong
                    is_estimate = False
                    continue
                except Exception:
                    if await self._may_stand(writes, time):
                        in_doubt(time)
                        self._latest = max(self._latest, time)
                    raise
                self._latest = max(self._latest, time)
                return time

    async def _may_stand(self, writes: Sequence[Write], time: int) -> bool:
        """Return whether a failed write may have happened; a write that happens moves each `upper` above its time."""
        try:
            _, upper = await self._storage_clock.frontiers(tables_of(writes))
        except Exception:  # nothing is known, and the caller raises the error of the write
            return True
        return upper > time

    async def _time_of_read(self, since: int, *, at_present: bool) -> int:
        return max(self._latest, since, await self._storage_clock.present() if at_present else 0)

    async def _time_of_write(self, *, is_exact: bool) -> int:
        return max(await self._storage_clock.present(is_exact=is_exact), self._latest + 1)
