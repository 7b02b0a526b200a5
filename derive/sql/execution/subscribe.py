"""SUBSCRIBE: returns each update of a relation as a row, and optional progress rows."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from time import time_ns

from derive.algebra.relation import Get, GlobalId, Relation
from derive.algebra.rewrite import mentions
from derive.algebra.types import Row
from derive.compute.oneshot import size_of
from derive.compute.protocol.messages import Dataflow, Import, Tail, TailResponse, Update
from derive.errors import FencedError, FlowError, FrontierError, SqlError
from derive.event_loop import Handover, settled
from derive.sql.catalog.items import is_provisional
from derive.sql.execution.read_time import clock_of, time_of
from derive.sql.execution.state import State
from derive.sql.maintenance.view_state import Maintained
from derive.sql.parser.statement import AsOf, Subscribe
from derive.sql.planner.dependencies import ids_of, require_maintainable
from derive.sql.planner.plan import PlannedView
from derive.sql.planner.planned import is_read_time, of_read
from derive.sql.preparation import Plan, rows_of_view
from derive.sql.results import Result
from derive.sql.transactions.timeline import time_text
from derive.time import END_OF_TIME, FOREVER


class Subscription:
    """A subscription to a relation from a time on.

    The columns `mz_timestamp` (time of the update), `mz_progressed` (with progress) and `mz_diff` (change of the row's
    count) precede the relation's columns. A progress row states that all updates below its time were sent. A
    subscription without a snapshot, as of the timestamp before, continues at exactly this point. So no progress row
    precedes the snapshot; without a snapshot, the first progress row is sent at once.

    Args:
        width: number of the relation's columns.
        as_of: time of the snapshot, which contains all updates up to it.
        has_snapshot: whether the snapshot is sent.
        has_progress: whether progress rows are sent.
        up_to: time of the end, exclusive; None for no end.

    Attributes:
        frontier: time below which all updates were sent.
        up_to: time of the end, exclusive; None for no end.
    """

    def __init__(
        self, width: int, as_of: int, *, has_snapshot: bool, has_progress: bool, up_to: int | None = None
    ) -> None:
        self._has_snapshot, self._has_progress = has_snapshot, has_progress
        self.up_to = up_to
        self._nulls = (None,) * (1 + width)
        self.frontier = as_of

    @property
    def is_ended(self) -> bool:
        """Return whether the subscription is complete."""
        return self.up_to is not None and self.frontier >= self.up_to

    def begin(self) -> list[Row]:
        """Return the rows that precede all updates."""
        if self._has_snapshot or self.is_ended:
            return []
        self.frontier += 1
        return [self._progress()] if self._has_progress else []

    def rows(self, response: TailResponse) -> list[Row]:
        """Return the rows of a response."""
        rows = []
        for time, group in groupby(response.updates, key=itemgetter(0)):
            rows += [self._update(time, row, diff) for row, diff in _consolidated(group)]
        before, self.frontier = self.frontier, max(self.frontier, response.upper)
        if self._has_progress and self.frontier > before:
            rows.append(self._progress())
        return rows

    def _progress(self) -> Row:
        return self.frontier, 1, *self._nulls

    def _update(self, time: int, row: Row, diff: int) -> Row:
        return (time, 0, diff, *row) if self._has_progress else (time, diff, *row)


def _consolidated(updates: Iterator[Update]) -> list[tuple[Row, int]]:
    """Return the consolidated updates of one time, retractions first."""
    diffs: dict[Row, int] = {}
    for _, row, diff in updates:
        diffs[row] = diffs.get(row, 0) + diff
    is_added: Callable[[tuple[Row, int]], bool] = lambda change: change[1] > 0  # noqa: E731
    return sorted(((row, diff) for row, diff in diffs.items() if diff), key=is_added)


MOST_WAITING = 32 << 20
"""Approximate limit of buffered updates for a client, in bytes; a local replica waits earlier."""

_MOST_PROGRESS = 8
"""Number of buffered responses above which a response without updates is not buffered."""

_AGAIN = "SUBSCRIBE again: the new subscription begins with the present rows"

_LOOK_SECONDS = 0.25
"""Interval of checks for cancellation, in seconds; a cursor may take rows after its statement."""


async def subscribe(state: State, plan: Plan, statement: Subscribe) -> Result:
    """Execute a SUBSCRIBE."""
    assert plan.view is not None
    rows = await updates(state, plan.view, statement)
    return Result(lambda count: f"SUBSCRIBE {count}", plan.columns, rows, is_prompt=True)


async def updates(state: State, view: PlannedView, statement: Subscribe) -> AsyncIterator[Sequence[Row]]:
    """Return the rows of updates from the time of AS OF, or from the present on.

    Raises:
        SqlError: the time is compacted, the relation cannot be incrementally maintained, or no process maintains a view
            that it reads.
    """
    coordinator = state.coordinator
    relation = coordinator.maintained.expanded(of_read(view.relation), state.names)
    require_maintainable(relation, "subscription", statement.target)
    ids = ids_of(relation)
    if any(map(is_provisional, ids)):
        what = "a transaction cannot subscribe to a relation that it has defined"
        raise SqlError("0A000", what, hint="COMMIT first: the relation exists from the commit on")
    if state.transaction.has_changed(ids):
        what = "a transaction cannot subscribe to a table that it has written"
        raise SqlError("25001", what, hint="COMMIT first: a subscription sends committed rows")
    up_to = None
    if statement.up_to is not None:
        up_to = clock_of(state.objects, AsOf(statement.up_to, is_at_least=False))
    with state.interruptible():
        time = await time_of(state, ids, statement.as_of)
        if not time and mentions(relation, is_read_time):
            time = state.transaction.begun
        if up_to is not None and up_to < time:
            raise SqlError(
                "22023",
                f"the subscription is to begin at {time_text(time)}, after its end at {time_text(up_to)}",
                hint="UP TO takes a time that is not before the time of AS OF, or, without AS OF, before the present",
            )
        coordinator.storage_clock.require_maintained(ids, time, END_OF_TIME if up_to is None else up_to)
        subscription = Subscription(
            len(relation.types),
            time,
            has_snapshot=statement.has_snapshot,
            has_progress=statement.has_progress,
            up_to=up_to,
        )
        tail = Tail(statement.has_snapshot, await asyncio.to_thread(_place, state.coordinator.maintained, view), up_to)
        return await _Stream.open(state, relation, tail, time, subscription)


def _place(maintained: Maintained, view: PlannedView) -> GlobalId | None:
    """Return the dataflow that has the rows of a view; None if there is none."""
    query = rows_of_view(view)
    asked = maintained.query(query.relation, query.finishing)
    is_whole = asked is not None and isinstance(asked.relation, Get)
    return min(asked.reads) if asked is not None and is_whole else None


class _Foreseen:
    """Responses with updates of the future, each of which waits for the time of its updates.

    The rows of constants are known for all times, also where temporal filters compare them with the time of the read.

    Args:
        time: time of the snapshot, which is due at once.
    """

    def __init__(self, time: int) -> None:
        self._time = time
        self._responses: deque[TailResponse] = deque()

    def __bool__(self) -> bool:
        return bool(self._responses)

    def put(self, response: TailResponse) -> None:
        """Append a response."""
        self._responses.append(response)

    def get(self) -> TailResponse | None:
        """Remove and return what is due of the first response; return None if nothing is due."""
        present = self._present()
        if not self._responses or self._due() > present:
            return None
        first = self._responses.popleft()
        due = [update for update in first.updates if update[0] <= present]
        if len(due) == len(first.updates):
            return first
        rest = tuple(first.updates[len(due) :])
        self._responses.appendleft(replace(first, lower=present + 1, updates=rest))
        return TailResponse(first.id, first.lower, present + 1, tuple(due))

    def seconds(self) -> float:
        """Return the seconds until a response is due."""
        return max(0, self._due() - self._present()) / 1e6 if self._responses else _LOOK_SECONDS

    def _due(self) -> int:
        first = self._responses[0]
        return first.updates[0][0] if first.updates and first.failure is None else first.lower

    def _present(self) -> int:
        return max(self._time, time_ns() // 1000)


class _Stream:
    """The stream of a subscription's rows.

    Args:
        state: state of the session.
        subscription: format of the rows.
        ids: relations that are read from Storage.
        is_foreseen: whether updates are known before their times.
    """

    def __init__(
        self, state: State, subscription: Subscription, ids: frozenset[GlobalId], *, is_foreseen: bool
    ) -> None:
        self._state, self._subscription, self._ids = state, subscription, ids
        self._computing = state.coordinator.computing
        self._computing.begin_for_subscriptions()
        self._controller = self._computing.controller
        self._handover: Handover[TailResponse] = Handover(is_patient=self._controller.is_local)
        self._first: list[Row] = subscription.begin()
        self._known = {id_: item.known_from for id_ in ids if (item := state.names.items.get(id_)) is not None}
        self._end: SqlError | None = None
        self._is_closed = self._is_too_slow = False
        self._foreseen = _Foreseen(subscription.frontier) if is_foreseen else None
        self._handed = self._taken = 0
        self._identifier = self._controller.new_id()

    @staticmethod
    async def open(state: State, relation: Relation, tail: Tail, time: int, subscription: Subscription) -> _Stream:
        """Open a subscription to a relation.

        Raises:
            SqlError: a relation that the subscription reads is compacted at the time.
        """
        ids = ids_of(relation)
        uppers = [state.coordinator.storage_clock.frontiers_of(identifier)[1] for identifier in ids]
        is_foreseen = min(uppers) >= FOREVER if uppers else mentions(relation, is_read_time)
        stream = _Stream(state, subscription, ids, is_foreseen=is_foreseen)
        state.coordinator.maintenance.follow(ids)
        imports = tuple(
            Import.of(identifier, state.coordinator.source(identifier, state.names)) for identifier in sorted(ids)
        )
        dataflow = Dataflow(stream._identifier, relation, imports, tail, time, name="a subscription")
        try:
            await settled(asyncio.to_thread(stream._controller.subscribe, dataflow, stream._take))
        except FlowError as error:
            await stream.aclose()
            raise _as_sql(error) from error
        except BaseException:
            await stream.aclose()
            raise
        return stream

    def _take(self, response: TailResponse) -> None:
        """Buffer a response. Any thread may call it, one call at a time."""
        if self._is_too_slow:
            return
        is_last = response.failure is not None or response.upper >= (self._subscription.up_to or END_OF_TIME)
        if not response.updates and not is_last and len(self._handover) > _MOST_PROGRESS:
            return  # the next response includes the progress
        if self._handed - self._taken > MOST_WAITING and not self._controller.is_local():
            self._is_too_slow = True
            failure = FrontierError(
                f"more than {MOST_WAITING} bytes of updates wait, because the client reads too slowly"
            )
            response = TailResponse(response.id, response.lower, response.lower, (), failure)
        self._handed += _bytes_of(response)
        self._handover.put(response)

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> Sequence[Row]:
        first, self._first = self._first, []
        if first:
            return first
        try:
            while not self._is_closed:
                if self._subscription.is_ended:
                    break
                if self._end is not None:
                    raise self._end
                response = await self._next()
                self._state.check_stopped()
                if response is None:
                    self._require_sources()
                    continue
                if response.failure is not None:
                    raise _as_sql(response.failure)
                if response.updates:
                    self._state.coordinator.timeline.observe(response.updates[-1][0])
                if self._ids and response.upper >= END_OF_TIME:  # the end of the sources is not reported as progress
                    response = replace(
                        response, upper=max([response.lower, *(at + 1 for at, _, _ in response.updates)])
                    )
                rows = self._subscription.rows(await self._before_alteration(response))
                last = response.lower + 1 if self._foreseen is None else FOREVER
                if not self._ids and response.upper >= last:
                    await self.aclose()  # the rows do not change any more
                if rows:
                    return rows
        except BaseException:
            await self.aclose()
            raise
        await self.aclose()
        raise StopAsyncIteration

    async def _next(self) -> TailResponse | None:
        """Return the next response that is due; return None after a pause without one."""
        foreseen = self._foreseen
        response = await self._handover.get(min(_LOOK_SECONDS, foreseen.seconds()) if foreseen else _LOOK_SECONDS)
        if response is not None:
            self._taken += _bytes_of(response)
            if foreseen is None:
                return response
            foreseen.put(response)
        return foreseen.get() if foreseen is not None else None

    async def _before_alteration(self, response: TailResponse) -> TailResponse:
        """Return the part of a response in which the tables have the columns of the subscription.

        Storage finds columns by names, so later rows would have NULL for a column that was renamed, or the values of
        another column that has the name now. If a part is missing, the subscription ends after this part.
        """
        coordinator = self._state.coordinator
        if not self._known:
            return response
        if coordinator.commits.is_publishing:
            await coordinator.commits.published()
        items = coordinator.refresh().items
        altered = {
            id_: item for id_, known in self._known.items() if (item := items.get(id_)) and item.known_from != known
        }
        if not altered:
            return response
        first = min(altered.values(), key=lambda item: item.known_from)
        end = first.known_from
        if response.upper <= end:
            return response
        self._end = SqlError(
            "55000",
            f"the subscription ends, because table {first.name} was altered at {time_text(end)}",
            detail="ALTER TABLE has changed its rows, or the names of their columns; all earlier changes were sent",
            hint=_AGAIN,
        )
        updates = tuple(update for update in response.updates if update[0] < end)
        return replace(response, upper=max(response.lower, end), updates=updates)

    def _require_sources(self) -> None:
        """Check that the sources exist and are maintained; called after a pause without updates.

        Raises:
            SqlError: a source was dropped, or the server that maintained it has ended (55000).
        """
        objects = self._state.coordinator.refresh()
        if not self._ids <= objects.items.keys() | objects.collections.keys():
            raise _as_sql(
                FencedError("a relation that the subscription reads was dropped; all earlier changes were sent")
            )
        end = END_OF_TIME if self._subscription.up_to is None else self._subscription.up_to
        self._state.coordinator.storage_clock.require_maintained(self._ids, self._subscription.frontier, end)

    async def aclose(self) -> None:
        """Close the subscription."""
        if not self._is_closed:
            self._is_closed = True
            self._handover.close()
            self._state.coordinator.maintenance.unfollow(self._ids)
            await asyncio.to_thread(self._controller.drop, self._identifier)


def _bytes_of(response: TailResponse) -> int:
    """Return the approximate size of updates in bytes, estimated from the first update."""
    return len(response.updates) * size_of(response.updates[0][1]) if response.updates else 0


def _as_sql(failure: FlowError) -> SqlError:
    """Return an error as the subscriber receives it: a `SqlError`."""
    if isinstance(failure, FencedError | FrontierError):
        return SqlError(
            "55000",
            "the subscription cannot resume: its relation was reset or dropped, or the subscription is too far behind",
            detail=failure.message,
            hint=_AGAIN,
        )
    return failure if isinstance(failure, SqlError) else SqlError("XX000", failure.message, hint=failure.hint)
