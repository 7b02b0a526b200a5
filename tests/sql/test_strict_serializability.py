"""The timeline, group commit and transactions are strictly serializable, and a checker that says so would notice if not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
from simulation import Machine, simulate

from derive.algebra.relation import GlobalId
from derive.sql.transactions.group_commit import NO_SHAPES, Basis, Commit, GroupCommit, Shape, _PendingCommit, nothing
from derive.sql.transactions.timeline import Check, Timeline
from derive.sql.transactions.writes import Write
from derive.storage.metadata.definitions import Definitions

EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "60"))


def test_histories_are_strictly_serializable() -> None:
    histories = [simulate(seed) for seed in range(EXAMPLES)]
    for history in histories:
        history.check()
    assert sum(len(history.operations) for history in histories) > 40 * EXAMPLES
    assert sum(history.refused for history in histories) > 0
    assert any(len(writes) > 2 for history in histories for _, writes in history.storage.appends)  # groups


class WritesAtReads(Timeline):
    """A write may be at the time of an earlier read."""

    async def _time_of_write(self, *, is_exact: bool) -> int:
        return max(self._latest, await self._storage_clock.present() - 5)


class BelievesEstimates(Timeline):
    """A write is at an estimated time, even if the check has found the estimate wrong."""

    async def _time_of_write(self, *, is_exact: bool) -> int:
        return await super()._time_of_write(is_exact=False)


class ForgetsReads(Timeline):
    """A read moves nothing."""

    async def read(self, ids: Collection[int], *, at_present: bool, least: int = 0) -> int:
        latest = self._latest
        time = await super().read(ids, at_present=at_present)
        self._latest = latest
        return time


class ReadsThePast(Timeline):
    """What others write is read as of our latest time."""

    async def read(self, ids: Collection[int], *, at_present: bool, least: int = 0) -> int:
        return await super().read(ids, at_present=False)


class TellsTooEarly(Timeline):
    """Writes are acknowledged before they are in storage."""

    async def write(
        self,
        writes: Sequence[Write],
        *,
        after: int | None = None,
        check: Check | None = None,
        definitions: Definitions | None = None,
        in_doubt: Callable[[int], None] = lambda _: None,
    ) -> int:
        time = await self._time_of_write(is_exact=True)
        asyncio.get_running_loop().create_task(super().write(writes))
        return time


class DoesNotSeal(Timeline):
    """A read does not wait for its inputs."""

    async def read(self, ids: Collection[int], *, at_present: bool, least: int = 0) -> int:
        return await self._time_of_read(1, at_present=at_present)


class NobodyIsExcluded(GroupCommit):
    """Others write between a statement's read and its write, of which it does not tell what it follows from."""

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[Commit]:
        async def write(
            writes: Sequence[Write],
            basis: Basis | None = None,
            then: Callable[[], None] = nothing,
            shapes: Mapping[GlobalId, Shape] = NO_SHAPES,
            definitions: Definitions | None = None,
        ) -> int:
            return await self.commit(writes, None, then, shapes)

        yield write


class ChecksNoBasis(GroupCommit):
    """What a transaction has read may have been written meanwhile."""

    async def commit(
        self,
        writes: Sequence[Write],
        basis: Basis | None = None,
        then: Callable[[], None] = nothing,
        shapes: Mapping[GlobalId, Shape] = NO_SHAPES,
        definitions: Definitions | None = None,
    ) -> int:
        return await super().commit(writes, None, then, shapes)


class ChecksNoOthers(GroupCommit):
    """What others have written of what a transaction has read does not count."""

    def _to_check(self, waiting: _PendingCommit) -> frozenset[int]:
        return frozenset()


class WritesRightBehind(Timeline):
    """A write that follows from what was read at a time is just above that, whoever has read since."""

    async def write(
        self,
        writes: Sequence[Write],
        *,
        after: int | None = None,
        check: Check | None = None,
        definitions: Definitions | None = None,
        in_doubt: Callable[[int], None] = lambda _: None,
    ) -> int:
        if after is not None:
            self._latest = after
        return await super().write(writes, after=after, check=check, in_doubt=in_doubt)


class ForgetsDoubts(GroupCommit):
    """A failed write has not happened, even if nobody has checked."""

    def _note_doubt(self, group: Sequence[_PendingCommit], tables: Collection[int], time: int) -> None: ...


class ChecksEarly(GroupCommit):
    """… by another one of the same group."""

    def _is_outdated(self, basis: Basis, before: Collection[int]) -> bool:
        return super()._is_outdated(basis, ())


MUTANTS = [
    Machine(timeline=WritesAtReads),
    Machine(timeline=BelievesEstimates),
    Machine(timeline=ReadsThePast),
    Machine(timeline=TellsTooEarly),
    Machine(timeline=DoesNotSeal),
    Machine(timeline=ForgetsReads),
    Machine(commits=NobodyIsExcluded),
    Machine(commits=ChecksNoBasis),
    Machine(commits=ChecksEarly),
    Machine(commits=ChecksNoOthers),
    Machine(timeline=WritesRightBehind),
    Machine(commits=ForgetsDoubts),
    Machine(remembers=False),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.timeline.__name__}-{mutant.commits.__name__}")
def test_history_check_detects_mutants(mutant: Machine) -> None:
    assert any(_is_caught(mutant, seed) for seed in range(60))


def _is_caught(mutant: Machine, seed: int) -> bool:
    try:
        simulate(seed, mutant).check()
    except AssertionError:
        return True
    return False
