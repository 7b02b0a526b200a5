"""Group commit: writes that wait for storage at one moment are written together, for one sync of the disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import starmap
from typing import Protocol, TypeAlias

from derive.algebra.relation import GlobalId
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.sql.planner.names import NamedColumn
from derive.sql.transactions.timeline import Check, Timeline, Write, told

NO_SHAPES: Mapping[GlobalId, tuple[tuple[str, Type], ...]] = {}

_MOST_TRIES = 5
"""So often a time is chosen for a commit that follows from what others write."""


def nothing() -> None:
    """What is done behind most commits."""


Histories: TypeAlias = Mapping[GlobalId, tuple[int, int]]
"""Of collections and tables, which relation each is, and the time from which on its rows have its columns."""


@dataclass(frozen=True, slots=True)
class Basis:
    """What writes follow from.

    Attributes:
        ids: what was read.
        time: at which time.
        is_strict: what others than the adapter have written since counts as well.
        histories: of what was read, as it was then.
    """

    ids: frozenset[GlobalId]
    time: int
    is_strict: bool = True
    histories: Histories = field(default_factory=dict, hash=False)


Shape: TypeAlias = tuple[tuple[str, Type], ...]
"""The names and types of a table's columns, in their order."""


def shape_of(columns: Iterable[NamedColumn]) -> Shape:
    """Return the shape of a table with some columns."""
    return tuple((column.name, column.type) for column in columns)


class Commit(Protocol):
    """Commits writes, and returns their time."""

    def __call__(
        self,
        writes: Sequence[Write],
        basis: Basis | None = None,
        then: Callable[[], None] = nothing,
        shapes: Mapping[GlobalId, Shape] = NO_SHAPES,
    ) -> Awaitable[int]:
        """Commit writes, and do something once they have happened."""


class Others(Protocol):
    """What is not written by group commit."""

    def written_by_others(self, basis: Basis) -> frozenset[GlobalId]:
        """Of what writes follow from, what others may have written."""

    async def is_unchanged(
        self, ids: Collection[GlobalId], after: int, before: int, writing: Collection[GlobalId]
    ) -> bool:
        """Whether nothing happens to some collections after one time and before another, at which tables are written.

        False if that cannot be told.
        """

    def histories(self, ids: Collection[GlobalId]) -> Histories:
        """The histories of collections and tables; those that are no more are left out."""


class Nobody:
    """There are no others."""

    def written_by_others(self, basis: Basis) -> frozenset[GlobalId]:
        """Nothing."""
        return frozenset()

    async def is_unchanged(
        self, ids: Collection[GlobalId], after: int, before: int, writing: Collection[GlobalId]
    ) -> bool:
        """It is."""
        return True

    def histories(self, ids: Collection[GlobalId]) -> Histories:
        """They have none that may change."""
        return {}


@dataclass(slots=True)
class _Waiting:
    writes: Sequence[Write]
    basis: Basis | None
    then: Callable[[], None]
    shapes: Mapping[GlobalId, Shape]
    done: asyncio.Future[int]


class GroupCommit:
    """Commits writes of all sessions.

    Args:
        timeline: gives them their times.
        dropped: what a table was called that was dropped; None if it can be written.
        others: who writes as well.
        altered: what a table is called that has another shape than this one; None if it has not.
    """

    def __init__(
        self,
        timeline: Timeline,
        dropped: Callable[[GlobalId], str | None] = lambda _: None,
        others: Others | None = None,
        altered: Callable[[GlobalId, Shape], str | None] = lambda *_: None,
    ) -> None:
        self._altered = altered
        self._timeline, self._dropped, self._others = timeline, dropped, others or Nobody()
        self._writers = asyncio.Lock()  # of whoever writes, from what it has read for that on
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None
        self._written: dict[GlobalId, int] = {}

    async def commit(
        self,
        writes: Sequence[Write],
        basis: Basis | None = None,
        then: Callable[[], None] = nothing,
        shapes: Mapping[GlobalId, Shape] = NO_SHAPES,
    ) -> int:
        """Commit writes, and return their time. Whoever is cancelled meanwhile has committed, or nothing is written.

        Args:
            writes: all or none of them happen.
            basis: what they follow from, which must not have been written since; None if they follow from nothing.
            then: what is done once they have happened, before anybody can know of it.
            shapes: of tables whose rows are written, as these are; a table that was altered since is not written.

        Raises:
            SqlError: what they follow from was written.
            StorageError: storage cannot write; nothing was written.
        """
        waiting = _Waiting(writes, basis, then, shapes, asyncio.get_running_loop().create_future())
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
    async def exclusive(self) -> AsyncIterator[Commit]:
        """Nobody else writes tables in this block. What it gives commits the block's writes, and returns their time."""
        async with self._writers:

            async def write(
                writes: Sequence[Write],
                basis: Basis | None = None,
                then: Callable[[], None] = nothing,
                shapes: Mapping[GlobalId, Shape] = NO_SHAPES,
            ) -> int:
                waiting = _Waiting(writes, basis, then, shapes, asyncio.get_running_loop().create_future())
                writing = asyncio.create_task(self._write(self._accepted([waiting])))
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
                alone = [[waiting] for waiting in group if self._to_check(waiting)]
                together = [waiting for waiting in group if [waiting] not in alone]
                try:
                    for part in (together, *alone):
                        await self._write(self._accepted(part))
                except BaseException:
                    _give_up(group)
                    raise

    def _to_check(self, waiting: _Waiting) -> frozenset[GlobalId]:
        return self._others.written_by_others(waiting.basis) if waiting.basis else frozenset()

    def _give_up(self, drained: asyncio.Task[None]) -> None:
        if drained.cancelled():
            group, self._waiting = self._waiting, []
            _give_up(group)

    def _accepted(self, group: Sequence[_Waiting]) -> list[_Waiting]:
        """Those of a group that can be written, and whose basis holds where all are written one after the other."""
        accepted: list[_Waiting] = []
        known: dict[GlobalId, str | None] = {}
        before: set[GlobalId] = set()
        for waiting in group:
            if waiting.basis and self._others.histories(waiting.basis.histories) != waiting.basis.histories:
                waiting.done.set_exception(_replaced())
                continue
            if waiting.basis and self._is_outdated(waiting.basis, before):
                waiting.done.set_exception(
                    _outdated("another transaction has written what this one has read", waiting.basis)
                )
                continue
            tables = {table for table, _, _ in waiting.writes}
            known.update((table, self._dropped(table)) for table in tables - known.keys())
            if dropped := sorted(name for table in tables if (name := known[table])):
                message = f"table {', '.join(dropped)} was dropped before this was committed"
                waiting.done.set_exception(SqlError("42P01", message))
                continue
            if altered := sorted(filter(None, starmap(self._altered, waiting.shapes.items()))):
                message = f"could not serialize access: table {', '.join(altered)} was altered"
                waiting.done.set_exception(SqlError("40001", message, hint="run the transaction again"))
                continue
            accepted.append(waiting)
            before.update(tables)
        return accepted

    def histories(self, ids: Collection[GlobalId]) -> Histories:
        """The histories of collections and tables; those that are no more are left out."""
        return self._others.histories(ids)

    def check_histories(self, histories: Histories) -> None:
        """Check that what was read is what it was.

        Raises:
            SqlError: 40001, a collection was reset since, or a table was dropped or had its rows altered.
        """
        if histories and self._others.histories(histories) != histories:
            raise _replaced()

    def _is_outdated(self, basis: Basis, before: Collection[GlobalId]) -> bool:
        return any(id_ in before or self._written.get(id_, 0) > basis.time for id_ in basis.ids)

    def _check_of(self, basis: Basis, ids: Collection[GlobalId], writing: Collection[GlobalId]) -> Check:
        tries = 0

        async def check(time: int) -> None:
            nonlocal tries
            tries += 1
            if tries > _MOST_TRIES or not await self._others.is_unchanged(ids, basis.time, time, writing):
                raise _outdated("others have written what this transaction has read, or are about to", basis)
            self.check_histories(basis.histories)

        return check

    async def _write(self, group: Sequence[_Waiting]) -> None:
        """Write a group at one time, and tell those who wait."""
        if not group:
            return
        writes = [write for waiting in group for write in waiting.writes]
        first = group[0]
        to_check, basis = self._to_check(first), first.basis  # such a one is alone in its group
        try:
            if to_check and basis:
                check = self._check_of(basis, to_check, {table for table, _, _ in writes})
                time = await self._timeline.write(writes, after=basis.time, check=check)
            else:
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
            try:
                waiting.then()
            except Exception as error:
                waiting.done.set_exception(error)
            else:
                waiting.done.set_result(time)


def _replaced() -> SqlError:
    message = "could not serialize access: what this transaction has read was reset, dropped or altered since"
    return SqlError("40001", message, hint="run the transaction again")


def _outdated(reason: str, basis: Basis) -> SqlError:
    hint = "run the transaction again"
    if not basis.is_strict:
        hint += f" when what it reads is known beyond {told(basis.time)}, all of it"
    return SqlError("40001", f"could not serialize access: {reason}", hint=hint)


def _give_up(group: Sequence[_Waiting]) -> None:
    """Tell those of a group who still wait that the process is being shut down."""
    for waiting in group:
        if not waiting.done.done():
            waiting.done.set_exception(SqlError("08007", "the server is shut down: it is not known what was committed"))
