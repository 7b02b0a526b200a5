"""The dataflows of an instance: requests, groups, and the start, end and failure of dataflows."""

from __future__ import annotations

import time as clock
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import apsw

from derive.algebra.expression import Expression
from derive.algebra.relation import GlobalId, Relation
from derive.algebra.rewrite import gets_of
from derive.algebra.types import Datum
from derive.compute.dataflow.database import unpacked
from derive.compute.dataflow.dataflow_group import ChainedInput, DataflowGroup, reachable
from derive.compute.dataflow.hydration import (
    MOST_HERE,
    Candidate,
    Hydration,
    Hydrations,
    Progress,
    clear,
    operators_of,
)
from derive.compute.dataflow.input import Input, MovableInput
from derive.compute.dataflow.peek import DataflowPlace
from derive.compute.dataflow.staging import Stage, Staging, as_failure, drop_unnamed, sources_of
from derive.compute.dataflow.watch import Watch
from derive.compute.plans.plan import Plan
from derive.compute.plans.planning import pruned
from derive.errors import FlowError, FrontierError, SlowViewError
from derive.failpoint import reach
from derive.time import END_OF_TIME

MOST_UPDATES = 20_000
"""Approximate number of updates after which a transaction ends."""
_BEGINNING_SECONDS = 0.05
"""Seconds after which no further dataflow begins before other dataflows advance."""


class GroupFailures:
    """Failures of dataflow groups.

    Args:
        connection: writing connection of the database of the groups.
        watch: watch over the operators.

    Attributes:
        failures: errors by the group's number.
        slow: dataflows whose operators took too long.
    """

    def __init__(self, connection: apsw.Connection, watch: Watch) -> None:
        self._connection = connection
        self._watch = watch
        self.slow: set[GlobalId] = set()
        self.failures: dict[int, FlowError] = {}
        self._waiting: set[int] = set()

    def advance(self, group: DataflowGroup) -> bool:
        """Advance a group by a transaction, unless the group has failed; return whether the group has changed."""
        if group.id in self.failures:
            return False
        try:
            group.poll()
        except Exception as exc:  # after any error, updates taken from inputs may be lost
            self.fail(group, as_failure(exc))
            return True
        upper = group.upper
        if group.complete() <= upper:
            return False
        try:
            with self._connection:
                group.advance(MOST_UPDATES)
                reach("dataflow.committing")
        except Exception as exc:  # any error, such as a full disk, may be transient
            group.go_back()
            if not self.is_interrupted():
                self.fail(group, as_failure(exc))
                self._waiting.add(group.id)
            return True
        reach("dataflow.committed")
        group.keep()
        return group.upper > upper

    def is_interrupted(self) -> bool:
        """Return whether the watch has interrupted the last statement; record slow dataflows."""
        interruption = self._watch.take()
        if interruption is not None and interruption.is_slow:
            self.slow.update(interruption.dataflows)
        return interruption is not None

    def has_more(self, group: DataflowGroup) -> bool:
        """Return whether a group can advance now, without new input."""
        if group.id in self.failures:
            return False
        return group.complete() > group.upper or any(feed.input.has_more for feed in group.feeds.values())

    def fail(self, group: DataflowGroup, failure: FlowError) -> None:
        """Record the failure of a group."""
        self.failures[group.id] = failure

    def can_resume(self, group: DataflowGroup) -> bool:
        """Return whether a failed group can resume."""
        return group.id in self._waiting

    def resume(self, group: DataflowGroup) -> None:
        """Resume a failed group if possible: the cause of the failure may be gone."""
        if group.id in self._waiting:
            self.forget(group)

    def forget(self, group: DataflowGroup) -> None:
        """Remove the failure of a group that resumes or ends."""
        self.failures.pop(group.id, None)
        self._waiting.discard(group.id)


@dataclass(frozen=True, slots=True)
class Dataflow:
    """A maintained dataflow.

    Attributes:
        relation: its relation.
        group: its group.
        since: the earliest time at which it can be read.
    """

    relation: Relation
    group: DataflowGroup
    since: int


@dataclass(frozen=True, slots=True)
class DataflowRequest:
    """A requested dataflow that is not maintained yet.

    Attributes:
        relation: its relation.
        plan: its plan.
        as_of: the time from which on it is requested.
        inputs: inputs by identifier.
        reads: identifiers of the relations that it reads.
    """

    relation: Relation
    plan: Plan
    as_of: int
    inputs: Mapping[GlobalId, Input]
    reads: tuple[GlobalId, ...]


class Dataflows:
    """All dataflows of an instance. Its methods are called by one thread at a time.

    Attributes:
        maintained: running dataflows.
        requests: requested dataflows that have not started.
        kept: for each running dataflow, the place of its rows.
        failures: errors of dataflows that could not start.
        broken: errors of groups that have stopped.
    """

    def __init__(
        self, connection: apsw.Connection, watch: Watch, most_here: int = MOST_HERE, stage: Stage = Staging
    ) -> None:
        """Restore the dataflows of a database.

        Args:
            connection: writing connection.
            watch: watch over the operators.
            most_here: maximum number of rows computed in this process, while other dataflows wait.
            stage: computes the rows of larger dataflows in another process.
        """
        self._hydrations = Hydrations(connection, most_here, stage, is_limited=watch.is_limited)
        self._connection = connection
        self._watch = watch
        self.maintained: dict[GlobalId, Dataflow] = {}
        self.requests: dict[GlobalId, DataflowRequest] = {}
        self.kept: Mapping[GlobalId, DataflowPlace] = {}
        self.failures: dict[GlobalId, FlowError] = {}
        self._failures = GroupFailures(connection, watch)
        self.broken: Mapping[int, FlowError] = self._failures.failures
        self._groups: dict[int, DataflowGroup] = {}
        self._indexes: dict[GlobalId, list[tuple[Expression, ...]]] = {}
        self._restore()

    def close(self) -> None:
        """Close all inputs."""
        self._hydrations.close()
        for group in self._groups.values():
            group.close()
        for request in self.requests.values():
            _close(request.inputs)

    def step(self) -> bool:
        """Start requested dataflows, and advance groups; return whether more work can be done now."""
        happened = self._hydrations.step(self._hydrated, self._fail, self._refilled)
        large = self._large()
        while large and self._hydrations.is_free() and self._hydrate(large):
            happened = True
        has_begun, untried = self._begin_small()
        happened |= has_begun
        went_on = False
        joined = self._joined_exactly(untried) if has_begun else frozenset()
        for group in list(self._groups.values()):
            if group.id not in joined:
                went_on |= self._failures.advance(group)
            if group.partner is not None:
                self._join(group, group.partner)
        has_more = bool(self.requests) or any(map(self._failures.has_more, self._groups.values()))
        return happened or (went_on and has_more)

    def take_slow(self) -> set[GlobalId]:
        """Return the dataflows that are too slow beside others, once; they must be dropped."""
        slow, self._failures.slow = self._failures.slow, set()
        return slow

    def can_resume(self, identifier: GlobalId) -> bool:
        """Return whether a failed dataflow can resume."""
        dataflow = self.maintained.get(identifier)
        return dataflow is not None and self._failures.can_resume(dataflow.group)

    def resume(self, identifier: GlobalId) -> None:
        """Resume a failed dataflow with its whole group, if possible."""
        if dataflow := self.maintained.get(identifier):
            self._failures.resume(dataflow.group)

    def _restore(self) -> None:
        execute = self._connection.execute
        clear(self._connection)
        drop_unnamed(self._connection)
        self._next_group = integer(execute("SELECT ifnull(max(id), 0) + 1 FROM cohorts").get)
        self._next_operator = integer(execute("SELECT ifnull(max(number), 0) + 1 FROM operators").get)
        for identifier, sources, upper in execute("SELECT id, sources, upper FROM cohorts").fetchall():
            group = DataflowGroup(self._connection, integer(identifier), unpacked(sources), integer(upper), self._watch)
            rows = execute(
                "SELECT id, operator, relation, since FROM dataflows WHERE cohort = ?", (group.id,)
            ).fetchall()
            group.restore((integer(row[0]), integer(row[1])) for row in rows)
            if not rows:  # all were dropped while they hydrated
                self._end(group)
                continue
            group.drop_unread()
            self._groups[group.id] = group
            for number, _, relation, since in rows:
                self.maintained[integer(number)] = Dataflow(unpacked(relation), group, integer(since))
        self._place()

    def _place(self) -> None:
        """Update the published places of rows."""
        kept = {}
        for identifier, dataflow in self.maintained.items():
            kept[identifier] = DataflowPlace(dataflow.group.roots[identifier].number, self._operators(identifier))
        self.kept = kept

    def _operators(self, identifier: GlobalId) -> tuple[int, ...]:
        """Return the numbers of all operators from which a dataflow derives, in all groups."""
        group = self.maintained[identifier].group
        operators = {operator.number for operator in reachable([group.roots[identifier]])}
        for get in gets_of(self.maintained[identifier].relation):
            if get.id in self.maintained and get.id != identifier:
                operators.update(self._operators(get.id))
        return tuple(sorted(operators))

    def request(self, identifier: GlobalId, request: DataflowRequest) -> None:
        """Request to maintain a relation; an existing dataflow of the same relation continues."""
        self.resume(identifier)
        dataflow = self.maintained.get(identifier)
        if dataflow is not None:
            is_kept = dataflow.relation == request.relation and dataflow.since <= request.as_of < dataflow.group.upper
            if is_kept and dataflow.group.id not in self.broken and self._resume(dataflow, request):
                return
        if dataflow is not None or identifier in self.requests:
            self.drop(identifier)
        self.requests[identifier] = self._pruned(request)

    def _pruned(self, request: DataflowRequest) -> DataflowRequest:
        """Return a request whose plan reads fewer columns: only its own, if it is the only one over its sources."""
        sources = self._sources(request)
        others = {group.sources for group in self._groups.values()} | {*map(self._sources, self.requests.values())}
        return replace(request, plan=pruned(request.plan, set(request.inputs), is_shared=sources in others))

    def _resume(self, dataflow: Dataflow, request: DataflowRequest) -> bool:
        """Attach inputs to an existing dataflow again; return False if that is impossible."""
        group = dataflow.group
        chained = self._chained(request, group.upper - 1, group)
        if chained is None:
            return False
        for identifier, source in {**request.inputs, **chained}.items():
            if identifier not in group.required() or identifier in group.feeds:
                source.close()
            elif not self._hydrations.refill(group, identifier, source):
                group.feed(identifier, source, source.since + 1)
        return True

    def _chained(
        self, request: DataflowRequest, time: int, group: DataflowGroup | None
    ) -> dict[GlobalId, Input] | None:
        """Return inputs from other groups at a time; None if the rows of an input are unknown at that time."""
        chained: dict[GlobalId, Input] = {}
        for identifier in request.reads:
            upstream = self.maintained.get(identifier)
            if identifier in request.inputs or (upstream is not None and upstream.group is group):
                continue
            if upstream is None or not upstream.since <= time < upstream.group.upper:
                return None
            chained[identifier] = ChainedInput(self._connection, identifier, self._group_of, time)
        return chained

    def _group_of(self, identifier: GlobalId) -> DataflowGroup:
        return self.maintained[identifier].group

    def _sources(self, request: DataflowRequest) -> frozenset[GlobalId]:
        """Return the collections from which a requested dataflow derives, directly or indirectly."""
        sources: set[GlobalId] = set()
        for identifier in request.reads:
            if identifier in request.inputs:
                sources.add(identifier)
            elif identifier in self.maintained:
                sources |= self.maintained[identifier].group.sources
        return frozenset(sources)

    def _large(self) -> dict[GlobalId, int]:
        """Return the large dataflows whose inputs are ready, with the times of their first rows."""
        times = ((identifier, self._time_of(identifier, is_large=True)) for identifier in list(self.requests))
        return {identifier: time for identifier, time in times if time is not None}

    def _time_of(self, identifier: GlobalId, *, is_large: bool) -> int | None:
        """Return the time of a dataflow's first rows; None if it is not ready, or not as large as asked for."""
        request = self.requests[identifier]
        upstream = self._upstream(request)
        if upstream is None or self._hydrations.begins(identifier):
            return None
        time = max([request.as_of, *(dataflow.since for dataflow in upstream)])
        try:
            return time if self._is_large(identifier, request, time) is is_large else None
        except FlowError as failure:  # perhaps a collection was reset
            self._fail(identifier, failure)
        return None

    def _upstream(self, request: DataflowRequest) -> list[Dataflow] | None:
        """Return the dataflows that a requested dataflow reads; None if one of them has not begun."""
        upstream = [self.maintained.get(read) for read in request.reads if read not in request.inputs]
        known = [dataflow for dataflow in upstream if dataflow is not None]
        return known if len(known) == len(upstream) else None

    def _begin_small(self) -> tuple[bool, list[GlobalId]]:
        """Start dataflows of few rows, as long as other dataflows can wait.

        A dataflow may read one that has just started.

        Returns:
            Whether one has started or failed; and the requested dataflows that were not tried.
        """
        happened, deadline = False, clock.monotonic() + _BEGINNING_SECONDS
        untried = list(self.requests)
        while untried:
            identifier = untried.pop(0)
            time = self._time_of(identifier, is_large=False)
            if time is None:
                continue
            happened |= self._fulfil(identifier, self.requests[identifier], time)
            if clock.monotonic() > deadline:
                break
        return happened, untried

    def _joined_exactly(self, identifiers: Sequence[GlobalId]) -> frozenset[int]:
        """Return the groups that dataflows can join at the requested time, unless the group advances.

        A view that begins later than requested lacks the history since then.
        """
        joined: set[int] = set()
        for request in map(self.requests.__getitem__, identifiers):
            upstream = self._upstream(request)
            group = None if upstream is None else self._group_for(self._sources(request), upstream)
            if group is not None and group.upper - 1 == request.as_of:
                joined.add(group.id)
        return frozenset(joined)

    def _fulfil(self, identifier: GlobalId, request: DataflowRequest, time: int) -> bool:
        """Start a dataflow of few rows; return whether it has started or failed."""
        known = self._upstream(request)
        assert known is not None
        sources = self._sources(request)
        group = self._group_for(sources, known)
        if group is not None:
            # A failed group that resumes later would process times again that the first rows of the new dataflow
            # include.
            is_over = group.id in self.broken and not self._failures.can_resume(group)
            if group.upper <= time and not is_over:
                return False
            time = group.upper - 1
        chained = self._chained(request, time, group)
        if chained is None:
            return False
        del self.requests[identifier]
        try:
            with self._connection:
                begun = self._begin(identifier, request, group, time, {**request.inputs, **chained})
        except Exception as exc:
            if group is not None:
                group.go_back()
            if not self._failures.is_interrupted():
                self.failures[identifier] = as_failure(exc)
            _close(request.inputs)
            return True
        self._show(identifier, request, begun, time)
        return True

    def _group_for(self, sources: frozenset[GlobalId], upstream: Sequence[Dataflow]) -> DataflowGroup | None:
        """Return the group for a new dataflow; None if a new group is needed.

        A group that reads other groups of the same sources does so from its start, so no group waits for itself. A
        group of constants is at the end of time, where a new dataflow would not be readable at the present.
        """
        among = {dataflow.group.id for dataflow in upstream if dataflow.group.sources == sources}
        if len(among) > 1:
            return None
        groups = [group for group in self._groups.values() if group.sources == sources and group.upper < END_OF_TIME]
        return next((group for group in groups if not among or group.id in among), None)

    def _begin(
        self,
        identifier: GlobalId,
        request: DataflowRequest,
        group: DataflowGroup | None,
        time: int,
        inputs: Mapping[GlobalId, Input],
    ) -> DataflowGroup:
        if group is None:
            group = DataflowGroup(self._connection, self._next_group, self._sources(request), time + 1, self._watch)
            group.record()
            self._next_group += 1
        indexes = self._indexes.get(identifier, ())
        group.begin(identifier, request.relation, request.plan, inputs, self._next_operator, indexes)
        self._next_operator += operators_of(request.plan)
        return group

    def _show(self, identifier: GlobalId, request: DataflowRequest, group: DataflowGroup, time: int) -> None:
        """Make the rows of a started dataflow visible to readers."""
        self._hydrations.forget(identifier)
        self._groups[group.id] = group
        self.maintained[identifier] = Dataflow(request.relation, group, time)
        self._place()
        with self._connection:
            for key in self._indexes.pop(identifier, ()):
                group.index(identifier, key)

    # -- Hydration

    @property
    def is_hydrating(self) -> bool:
        """Return whether another process computes first rows, which may end at any moment."""
        return self._hydrations.is_running

    def progress(self) -> Iterator[Progress]:
        """Return the progress of large dataflows that have not started yet."""
        return self._hydrations.progress()

    def _is_large(self, identifier: GlobalId, request: DataflowRequest, time: int) -> bool | None:
        """Return whether a dataflow is too large to compute while other dataflows wait; None if unknown yet."""
        chained = self._chained(request, time, None)
        try:
            inputs = [*request.inputs.values(), *(chained or {}).values()]
            return None if chained is None else self._hydrations.is_large(identifier, inputs, time)
        except FrontierError:
            return None

    def _hydrate(self, large: dict[GlobalId, int]) -> bool:
        """Start the hydration of some large dataflows in another process, and remove them from `large`.

        Args:
            large: dataflows that do not hydrate, with the times from which on their rows are requested.

        Returns:
            Whether a hydration has started.
        """
        for time in sorted(set(large.values()), reverse=True):
            known = [self._candidate(identifier, time, large[identifier]) for identifier in large]
            candidates = [candidate for candidate in known if candidate is not None]
            if candidates:
                break
        else:
            return False
        self._next_group, self._next_operator = self._hydrations.begin(
            time, candidates, self._next_group, self._next_operator
        )
        for identifier in [identifier for identifier in large if self._hydrations.begins(identifier)]:
            del large[identifier]
        return True

    def _candidate(self, identifier: GlobalId, time: int, since: int) -> Candidate | None:
        """Return a dataflow that is requested from `since` on as a candidate; None if it cannot begin at a time."""
        request = self.requests[identifier]
        inputs = self._inputs_at(request, time)
        if inputs is None or time < since:
            return None
        read = sources_of([request.plan])
        movable = {one: source for one, source in inputs.items() if one in read and isinstance(source, MovableInput)}
        try:
            counts = {one: source.count(time) for one, source in movable.items()}
        except FlowError:
            if time > since:
                return None
            counts = {}  # a collection was reset meanwhile: the hydration reports the error
        indexes = tuple(self._indexes.get(identifier, ()))
        return Candidate(identifier, request.relation, request.plan, self._sources(request), movable, counts, indexes)

    def _inputs_at(self, request: DataflowRequest, time: int) -> dict[GlobalId, Input] | None:
        """Return all inputs of a dataflow that begins a group at a time; None if rows of an input are unknown then."""
        chained = self._chained(request, time, None)
        return None if chained is None else {**request.inputs, **chained}

    def _hydrated(self, hydration: Hydration) -> None:
        """Continue hydrated dataflows from their time."""
        for number, sources in {first.group: first.sources for first in hydration.order.dataflows}.items():
            upper = hydration.order.time + 1
            self._take_over(DataflowGroup(self._connection, number, sources, upper, self._watch), hydration)
        for identifier, failure in hydration.failures.items():
            if identifier not in hydration.remaining:
                continue
            is_alone = len(hydration.order.dataflows) == 1
            if is_alone or not isinstance(failure, SlowViewError) or not self._hydrations.try_alone(identifier):
                self._fail(identifier, failure)

    def _take_over(self, group: DataflowGroup, hydration: Hydration) -> None:
        """Continue the hydrated dataflows of a new group."""
        rows = self._connection.execute("SELECT id, operator FROM dataflows WHERE cohort = ?", (group.id,)).fetchall()
        group.restore((integer(row[0]), integer(row[1])) for row in rows)
        if not group.roots:  # all failed, or were dropped
            self._end(group)
            return
        group.drop_unread()
        requests = {identifier: self.requests.pop(identifier) for identifier in group.roots}
        for request in requests.values():
            inputs = self._inputs_at(request, hydration.order.time)
            assert inputs is not None, "the hydration holds the time of its inputs"
            for one, source in inputs.items():
                if one in group.required() - group.feeds.keys() and isinstance(source, MovableInput):
                    source.adopt(hydration.order.time, hydration.place(one))
                    group.feed(one, source, source.since + 1)
                else:
                    source.close()
        group.partner = next((other for other in self._groups.values() if self._may_join(group, other)), None)
        for identifier, request in requests.items():
            self._show(identifier, request, group, hydration.order.time)

    def _fail(self, identifier: GlobalId, failure: FlowError) -> None:
        self._hydrations.forget(identifier)
        if isinstance(failure, SlowViewError):
            self._failures.slow.add(identifier)
        else:
            self.failures[identifier] = failure
        _close(self.requests.pop(identifier).inputs)

    def _refilled(
        self, group: DataflowGroup, identifier: GlobalId, source: MovableInput, place: Path, failure: FlowError | None
    ) -> None:
        if failure is not None:
            self._failures.fail(group, failure)
        if failure is None and identifier in group.required():
            source.adopt(source.since, place)
            group.feed(identifier, source, source.since + 1)
        else:
            source.close()

    def _may_join(self, group: DataflowGroup, other: DataflowGroup) -> bool:
        """Return whether two groups can be joined: they have the same sources, and read no other groups."""
        sources = group.sources
        if (
            other.sources != sources
            or other.id in self.broken
            or not other.has_all_inputs()
            or other.partner is not None
        ):
            return False
        read = {*group.feeds, *other.feeds} & self.maintained.keys() - sources
        return all(self.maintained[identifier].group.sources != sources for identifier in read)

    def _join(self, group: DataflowGroup, other: DataflowGroup) -> None:
        """Join two groups, once they are at the same time."""
        if group.id in self.broken or not self._may_join(group, other) or other.id not in self._groups:
            group.partner = None
        elif group.upper == other.upper:
            with self._connection:
                other.join(group)
            for identifier in group.roots:
                self.maintained[identifier] = replace(self.maintained[identifier], group=other)
            del self._groups[group.id]
            self._place()

    def index(self, identifier: GlobalId, key: Sequence[Expression]) -> None:
        """Create an index of a dataflow's rows by expressions over them."""
        dataflow = self.maintained.get(identifier)
        if dataflow is None:
            self._indexes.setdefault(identifier, []).append(tuple(key))
            return
        dataflow.group.index(identifier, key)

    def drop(self, identifier: GlobalId) -> None:
        """Drop a dataflow; its dependents stop advancing."""
        self.failures.pop(identifier, None)
        self._failures.slow.discard(identifier)
        self._watch.forget(identifier)
        self._hydrations.forget(identifier)
        self._indexes.pop(identifier, None)
        request = self.requests.pop(identifier, None)
        if request is not None:
            _close(request.inputs)
        dataflow = self.maintained.pop(identifier, None)
        if dataflow is None:
            return
        group = dataflow.group
        for other in self._groups.values():
            other.starve(identifier)
        group.remove(identifier)
        self._connection.execute("DELETE FROM dataflows WHERE id = ?", (identifier,))
        if not group.roots:
            self._end(group)
        self._place()

    def _end(self, group: DataflowGroup) -> None:
        """End a group without dataflows."""
        group.drop_unread()
        group.close()
        self._groups.pop(group.id, None)
        self._failures.forget(group)
        self._connection.execute("DELETE FROM cohorts WHERE id = ?", (group.id,))

    def allow_compaction(self, identifier: GlobalId, since: int) -> None:
        """Compact times before `since`, as far as no reader needs them."""
        dataflow = self.maintained.get(identifier)
        if dataflow is None:
            return
        held = [other.upper - 1 for other in self._groups.values() if other.is_chained_to(identifier)]
        since = min([since, dataflow.group.upper - 1, *held, *self._hydrations.times_held(identifier)])
        if since <= dataflow.since:
            return
        execute = self._connection.execute
        self.maintained[identifier] = replace(dataflow, since=since)
        execute("UPDATE dataflows SET since = ? WHERE id = ?", (since, identifier))
        root = dataflow.group.roots[identifier]
        sharing = [other for other, operator in dataflow.group.roots.items() if operator is root]
        oldest = min(self.maintained[other].since for other in sharing)
        execute(f"DELETE FROM h{root.number} WHERE t <= ?", (oldest,))
        everyone = min(other.since for other in self.maintained.values())
        execute("DELETE FROM errors_history WHERE t <= ?", (everyone,))


def _close(inputs: Mapping[GlobalId, Input]) -> None:
    for source in inputs.values():
        source.close()


def integer(value: Datum) -> int:
    """Return a datum that is known to be an integer."""
    assert isinstance(value, int)
    return value
