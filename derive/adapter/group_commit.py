"""Group commit: writes that wait for storage at one moment are written together, for one sync of the disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from derive.adapter.timeline import Timeline, Write
from derive.compute.algebra.relation import GlobalId
from derive.errors import SqlError


@dataclass(frozen=True, slots=True)
class Basis:
    """What writes follow from.

    Attributes:
        ids: what was read.
        time: at which time.
    """

    ids: frozenset[GlobalId]
    time: int


@dataclass(slots=True)
class _Waiting:
    writes: Sequence[Write]
    basis: Basis | None
    done: asyncio.Future[int]


class GroupCommit:
    """Commits writes of all sessions.

    Args:
        timeline: gives them their times.
        is_there: whether a table can be written still.
    """

    def __init__(self, timeline: Timeline, is_there: Callable[[GlobalId], bool] = lambda _: True) -> None:
        self._timeline, self._is_there = timeline, is_there
        self._writers = asyncio.Lock()  # of whoever writes, from what it has read for that on
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None
        self._written: dict[GlobalId, int] = {}

    async def commit(self, writes: Sequence[Write], basis: Basis | None = None) -> int:
        """Commit writes, and return their time. Whoever is cancelled meanwhile has committed, or nothing is written.

        Args:
            writes: all or none of them happen.
            basis: what they follow from, which must not have been written since; None if they follow from nothing.

        Raises:
            SqlError: what they follow from was written.
            StorageError: storage cannot write; nothing was written.
        """
        waiting = _Waiting(writes, basis, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drain())
            self._task.add_done_callback(self._give_up)
        return await self._settled(waiting)

    async def _settled(self, waiting: _Waiting) -> int:
        is_cancelled = False
        while not waiting.done.done():
            try:
                await asyncio.wait([waiting.done])
            except asyncio.CancelledError:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)
                    raise
                is_cancelled = True
        if is_cancelled and waiting.done.exception():
            raise asyncio.CancelledError from waiting.done.exception()
        return waiting.done.result()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[Callable[[Sequence[Write]], Awaitable[int]]]:
        """Nobody else writes in this block. What it gives commits the block's writes, and returns their time."""
        async with self._writers:

            async def write(writes: Sequence[Write]) -> int:
                waiting = _Waiting(writes, None, asyncio.get_running_loop().create_future())
                writing = asyncio.create_task(self._write([waiting]))
                writing.add_done_callback(lambda _: _give_up([waiting]))
                try:
                    return await self._settled(waiting)
                finally:
                    await writing

            yield write

    async def _drain(self) -> None:
        while self._waiting:
            async with self._writers:
                group, self._waiting = self._waiting, []
                await self._write(self._accepted(group))

    def _give_up(self, drained: asyncio.Task[None]) -> None:
        if drained.cancelled():
            group, self._waiting = self._waiting, []
            _give_up(group)

    def _accepted(self, group: Sequence[_Waiting]) -> list[_Waiting]:
        """Those of a group that can be written, and whose basis holds where all are written one after the other."""
        accepted: list[_Waiting] = []
        known: dict[GlobalId, bool] = {}
        before: set[GlobalId] = set()
        for waiting in group:
            if waiting.basis and self._is_outdated(waiting.basis, before):
                waiting.done.set_exception(
                    SqlError(
                        "40001",
                        "could not serialize access: another transaction has written what this one has read",
                        hint="run the transaction again",
                    )
                )
                continue
            tables = {table for table, _, _ in waiting.writes}
            known.update((table, self._is_there(table)) for table in tables - known.keys())
            if not all(known[table] for table in tables):
                waiting.done.set_exception(SqlError("42P01", "a table was dropped before this was committed"))
                continue
            accepted.append(waiting)
            before.update(tables)
        return accepted

    def _is_outdated(self, basis: Basis, before: Collection[GlobalId]) -> bool:
        return any(id_ in before or self._written.get(id_, 0) > basis.time for id_ in basis.ids)

    async def _write(self, group: Sequence[_Waiting]) -> None:
        """Write a group at one time, and tell those who wait."""
        if not group:
            return
        writes = [write for waiting in group for write in waiting.writes]
        try:
            time = await self._timeline.write(writes)
        except Exception as error:
            for waiting in group:
                waiting.done.set_exception(error)
            return
        except BaseException:
            _give_up(group)
            raise
        self._written.update(dict.fromkeys((table for table, _, _ in writes), time))
        for waiting in group:
            waiting.done.set_result(time)


def _give_up(group: Sequence[_Waiting]) -> None:
    """Tell those of a group who still wait that the process is being shut down."""
    for waiting in group:
        if not waiting.done.done():
            waiting.done.set_exception(SqlError("08007", "the server is shut down: it is not known what was committed"))
