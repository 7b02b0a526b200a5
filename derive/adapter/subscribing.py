"""SUBSCRIBE: what is maintained here is followed there; anything else is maintained for the subscriber alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, suppress

from derive.adapter.batches import in_thread
from derive.adapter.outcome import Result
from derive.adapter.parser.statement import AsOf, Subscribe
from derive.adapter.planner.plan import PlannedView
from derive.adapter.planner.reading import ids_of, require_maintainable
from derive.adapter.preparing import Plan, rows_of_view
from derive.adapter.reading import clock_of, time_of
from derive.adapter.state import State
from derive.adapter.subscription import Subscription
from derive.compute.algebra.relation import Finishing, Get, GlobalId
from derive.compute.algebra.types import Row, Type
from derive.compute.instance import Instance
from derive.compute.relations.input import relation_input
from derive.errors import FlowError, SqlError

_OWN: GlobalId = 0
"""What a subscriber's own relation is called in its own instance."""

_LOOK_SECONDS = 0.25


async def subscribe(state: State, plan: Plan, statement: Subscribe) -> Result:
    """The updates of a relation, as they come."""
    assert plan.view is not None
    rows = await updates(state, plan.view, statement)
    return Result(lambda count: f"SUBSCRIBE {count}", plan.columns, rows, is_prompt=True)


async def updates(state: State, view: PlannedView, statement: Subscribe) -> AsyncIterator[Sequence[Row]]:
    """Rows of updates, from the time on that the statement says, or else from the present on.

    Raises:
        SqlError: that time is forgotten, or the relation cannot be kept up to date.
    """
    coordinator = state.coordinator
    relation = coordinator.maintenance.expanded(view.relation)
    require_maintainable(relation, "subscription")
    ids = ids_of(relation)
    with state.interruptible():
        time = await time_of(state, ids, statement.as_of) if ids else 0
        source = await _opened(state, view, time)
    up_to = None
    if statement.up_to is not None:
        up_to = clock_of(state, AsOf(statement.up_to, is_at_least=False, offset=0))
    subscription = Subscription(
        source, time, has_snapshot=statement.has_snapshot, has_progress=statement.has_progress, up_to=up_to
    )
    return _stream(state, source, subscription, ids)


async def _stream(
    state: State, source: _Shared | _Own, subscription: Subscription, ids: frozenset[GlobalId]
) -> AsyncGenerator[Sequence[Row]]:
    coordinator = state.coordinator
    coordinator.maintenance.follow(ids)
    batches = subscription.begin()
    try:
        while True:
            news = coordinator.news.next
            is_quiet = True
            async with aclosing(in_thread(batches, _nothing)) as sent:
                async for batch in sent:
                    is_quiet = False
                    yield batch
                    state.check_stopped()
            if subscription.is_ended or not ids:
                return
            state.check_stopped()
            if is_quiet:
                with suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), _LOOK_SECONDS)
                state.check_stopped()
            batches = subscription.poll()
    finally:
        coordinator.maintenance.unfollow(ids)
        source.close()


def _nothing() -> None: ...


async def _opened(state: State, view: PlannedView, time: int) -> _Shared | _Own:
    opening = asyncio.ensure_future(asyncio.to_thread(_followed, state, view, time))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        await asyncio.wait([opening])
        if not opening.exception():
            opening.result().close()
        raise


def _followed(state: State, view: PlannedView, time: int) -> _Shared | _Own:
    maintenance = state.coordinator.maintenance
    query = rows_of_view(view)
    arranged = maintenance.arranged(query.relation, query.finishing, time)
    if arranged is not None and isinstance(arranged[0], Get):
        return _Shared(maintenance.instance, arranged[0], time)
    return _Own(state, view, time)


class _Shared:
    """A relation that an instance maintains.

    Args:
        instance: which.
        get: the relation there.
        as_of: from when on it is followed.
    """

    def __init__(self, instance: Instance, get: Get, as_of: int) -> None:
        self._instance, self._get = instance, get
        self._frontier = as_of + 1

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of the columns."""
        return self._get.types

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        """The rows at a time."""
        everything = Finishing((), None, 0, tuple(range(len(self._get.types))))
        return self._instance.peek(self._get, everything, as_of)

    def poll(self) -> tuple[int, list[tuple[int, Row, int]]]:
        """What is new."""
        _, upper = self._instance.frontiers(self._get.id)
        if upper <= self._frontier:
            return self._frontier, []
        begin, self._frontier = self._frontier, upper
        return upper, self._instance.updates(self._get.id, begin, upper)

    def close(self) -> None:
        """Follow no more."""


class _Own:
    """A relation that is maintained for one subscriber.

    Args:
        state: of its session.
        view: the relation.
        as_of: from when on it is followed.
    """

    def __init__(self, state: State, view: PlannedView, as_of: int) -> None:
        coordinator = state.coordinator
        relation = coordinator.maintenance.expanded(view.relation)
        sources = {identifier: coordinator.source(identifier) for identifier in ids_of(relation)}
        inputs = {
            identifier: relation_input(coordinator.store, source, as_of) for identifier, source in sources.items()
        }
        self._instance = Instance()
        self._instance.maintain(_OWN, relation, as_of, inputs)
        self._shared = _Shared(self._instance, Get(_OWN, relation.types), as_of)
        self._work()

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of the columns."""
        return self._shared.types

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        """The rows at a time."""
        return self._shared.snapshot(as_of)

    def poll(self) -> tuple[int, list[tuple[int, Row, int]]]:
        """What is new."""
        self._work()
        frontier, news = self._shared.poll()
        self._instance.allow_compaction(_OWN, frontier - 1)
        return frontier, news

    def close(self) -> None:
        """Follow no more."""
        self._instance.close()

    def _work(self) -> None:
        while self._instance.step():
            pass
        failure = self._instance.failure(_OWN)
        if isinstance(failure, SqlError):
            raise failure
        if isinstance(failure, FlowError):
            raise SqlError("XX000", failure.message, hint=failure.hint) from failure
