"""The dataflows of an instance: requests for them, their cohorts, and how they begin and end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import apsw

from derive.algebra.expression_parts import gets_of
from derive.algebra.relation import GlobalId, Relation
from derive.algebra.types import Datum
from derive.compute.dataflow.adoption import drop_unnamed
from derive.compute.dataflow.cohort import Cohort, reachable
from derive.compute.dataflow.cross_group_input import ChainedInput
from derive.compute.dataflow.database import unpacked
from derive.compute.dataflow.failures import Halts
from derive.compute.dataflow.hydration import (
    MOST_HERE,
    Hydration,
    Hydrations,
    Progress,
    clear,
    operators_of,
    sources_of,
)
from derive.compute.dataflow.input import Input, MovableInput
from derive.compute.dataflow.peek import Kept
from derive.compute.dataflow.staging import FirstDataflow, Stage, Staging, as_failure
from derive.compute.plans.plan import Plan
from derive.errors import FlowError, FrontierError


@dataclass(frozen=True, slots=True)
class Dataflow:
    """A maintained dataflow.

    Attributes:
        relation: its relation.
        cohort: its group.
        since: the earliest time at which it can be read.
    """

    relation: Relation
    cohort: Cohort
    since: int


@dataclass(frozen=True, slots=True)
class Wish:
    """A requested dataflow that is not maintained yet."""

    relation: Relation
    plan: Plan
    as_of: int
    inputs: Mapping[GlobalId, Input]


class Dataflows:
    """All dataflows of an instance. Its methods are called by one thread at a time.

    Attributes:
        maintained: running dataflows.
        wishes: requested dataflows that have not started.
        kept: places of the rows of running dataflows.
        failures: errors of dataflows that could not start.
        broken: errors of groups that have stopped.
    """

    def __init__(self, connection: apsw.Connection, most_here: int = MOST_HERE, stage: Stage = Staging) -> None:
        """Restore the dataflows of a database.

        Args:
            connection: writing connection.
            most_here: maximum number of rows computed while others wait.
            stage: computes larger dataflows in another process.
        """
        self._hydrations = Hydrations(connection, most_here, stage)
        self._connection = connection
        self.maintained: dict[GlobalId, Dataflow] = {}
        self.wishes: dict[GlobalId, Wish] = {}
        self.kept: Mapping[GlobalId, Kept] = {}
        self.failures: dict[GlobalId, FlowError] = {}
        self._halts = Halts(connection)
        self.broken: Mapping[int, FlowError] = self._halts.failures
        self._cohorts: dict[int, Cohort] = {}
        self._indexes: dict[GlobalId, list[tuple[int, ...]]] = {}
        self._restore()

    def close(self) -> None:
        """Close all inputs."""
        self._hydrations.close()
        for cohort in self._cohorts.values():
            cohort.close()
        for wish in self.wishes.values():
            _close(wish.inputs)

    def step(self) -> bool:
        """Start requested dataflows, and advance groups; return whether there may be more work at once."""
        happened = self._hydrations.step(
            self._hydrated, lambda first, failure: self._fail(first.identifier, failure), self._refilled
        )
        for identifier, wish in list(self.wishes.items()):
            happened |= self._fulfil(identifier, wish)
        went_on = False
        for cohort in list(self._cohorts.values()):
            went_on |= self._halts.advance(cohort)
            if cohort.partner is not None:
                self._join(cohort, cohort.partner)
        has_more = bool(self.wishes) or any(map(self._halts.has_more, self._cohorts.values()))
        return happened or (went_on and has_more)

    def can_go_on(self, identifier: GlobalId) -> bool:
        """Return whether a failed dataflow could resume."""
        dataflow = self.maintained.get(identifier)
        return dataflow is not None and self._halts.can_go_on(dataflow.cohort)

    def go_on(self, identifier: GlobalId) -> None:
        """Resume a failed dataflow with its whole group, if possible."""
        if dataflow := self.maintained.get(identifier):
            self._halts.go_on(dataflow.cohort)

    def _restore(self) -> None:
        execute = self._connection.execute
        clear(self._connection)
        drop_unnamed(self._connection)
        self._next_cohort = integer(execute("SELECT ifnull(max(id), 0) + 1 FROM cohorts").get)
        self._next_operator = integer(execute("SELECT ifnull(max(number), 0) + 1 FROM operators").get)
        for identifier, sources, upper in execute("SELECT id, sources, upper FROM cohorts").fetchall():
            cohort = Cohort(self._connection, integer(identifier), unpacked(sources), integer(upper))
            rows = execute(
                "SELECT id, operator, relation, since FROM dataflows WHERE cohort = ?", (cohort.id,)
            ).fetchall()
            cohort.restore((integer(row[0]), integer(row[1])) for row in rows)
            self._cohorts[cohort.id] = cohort
            for number, _, relation, since in rows:
                self.maintained[integer(number)] = Dataflow(unpacked(relation), cohort, integer(since))
        self._place()

    def _place(self) -> None:
        """Update the places of rows."""
        kept = {}
        for identifier, dataflow in self.maintained.items():
            kept[identifier] = Kept(
                dataflow.cohort.id, dataflow.cohort.roots[identifier].number, self._operators(identifier)
            )
        self.kept = kept

    def _operators(self, identifier: GlobalId) -> tuple[int, ...]:
        """Return the numbers of all operators that a dataflow derives from, in other groups as well."""
        cohort = self.maintained[identifier].cohort
        operators = {operator.number for operator in reachable([cohort.roots[identifier]])}
        for get in gets_of(self.maintained[identifier].relation):
            if get.id in self.maintained and get.id != identifier:
                operators.update(self._operators(get.id))
        return tuple(sorted(operators))

    def wish(self, identifier: GlobalId, wish: Wish) -> None:
        """Request to maintain a relation; an existing dataflow of the same relation continues."""
        self.go_on(identifier)
        dataflow = self.maintained.get(identifier)
        if dataflow is not None:
            is_kept = dataflow.relation == wish.relation and dataflow.since <= wish.as_of < dataflow.cohort.upper
            if is_kept and dataflow.cohort.id not in self.broken and self._resume(dataflow, wish):
                return
        if dataflow is not None or identifier in self.wishes:
            self.drop(identifier)
        self.wishes[identifier] = wish

    def _resume(self, dataflow: Dataflow, wish: Wish) -> bool:
        """Reattach inputs to an existing dataflow; return False if that is impossible."""
        cohort = dataflow.cohort
        chained = self._chained(wish, cohort.upper - 1, cohort)
        if chained is None:
            return False
        for identifier, source in {**wish.inputs, **chained}.items():
            if identifier not in cohort.wanted() or identifier in cohort.feeds:
                source.close()
            elif not self._hydrations.refill(cohort, identifier, source):
                cohort.feed(identifier, source, source.since + 1)
        return True

    def _chained(self, wish: Wish, time: int, cohort: Cohort | None) -> dict[GlobalId, Input] | None:
        """Return inputs from other groups at a time; None if one is unknown at that time."""
        chained: dict[GlobalId, Input] = {}
        for get in gets_of(wish.relation):
            upstream = self.maintained.get(get.id)
            if get.id in wish.inputs or (upstream is not None and upstream.cohort is cohort):
                continue
            if upstream is None or not upstream.since <= time < upstream.cohort.upper:
                return None
            chained[get.id] = ChainedInput(self._connection, get.id, self._cohort_of, time)
        return chained

    def _cohort_of(self, identifier: GlobalId) -> Cohort:
        return self.maintained[identifier].cohort

    def _sources(self, wish: Wish) -> frozenset[GlobalId]:
        """Return the collections that a request derives from, directly or indirectly."""
        sources: set[GlobalId] = set()
        for get in gets_of(wish.relation):
            if get.id in wish.inputs:
                sources.add(get.id)
            elif get.id in self.maintained:
                sources |= self.maintained[get.id].cohort.sources
        return frozenset(sources)

    def _fulfil(self, identifier: GlobalId, wish: Wish) -> bool:
        """Start a requested dataflow, if its inputs are ready; return whether something happened."""
        upstream = [self.maintained.get(get.id) for get in gets_of(wish.relation) if get.id not in wish.inputs]
        if None in upstream or self._hydrations.begins(identifier):
            return False
        known = [dataflow for dataflow in upstream if dataflow is not None]
        sources = self._sources(wish)
        time = max([wish.as_of, *(dataflow.since for dataflow in known)])
        is_large = None
        try:
            is_large = self._is_large(identifier, wish, time)
        except FlowError as failure:  # perhaps a collection was reset
            self._fail(identifier, failure)
        if is_large or is_large is None:
            return bool(is_large) and self._hydrations.is_free() and self._hydrate(identifier, wish, time)
        cohort = self._cohort_for(sources, known)
        if cohort is not None:
            # A group that resumes later would process times that are in the first rows of the new dataflow
            # already.
            is_over = cohort.id in self.broken and not self._halts.can_go_on(cohort)
            if cohort.upper <= time and not is_over:
                return False
            time = cohort.upper - 1
        chained = self._chained(wish, time, cohort)
        if chained is None:
            return False
        del self.wishes[identifier]
        try:
            with self._connection:
                begun = self._begin(identifier, wish, cohort, time, {**wish.inputs, **chained})
        except Exception as exc:
            self.failures[identifier] = as_failure(exc)
            _close(wish.inputs)
            return True
        self._show(identifier, wish, begun, time)
        return True

    def _cohort_for(self, sources: frozenset[GlobalId], upstream: Sequence[Dataflow]) -> Cohort | None:
        """Return the group for a new dataflow; None to create one.

        A group reads other groups of the same sources from its start or never, so no group waits for itself.
        """
        among = {dataflow.cohort.id for dataflow in upstream if dataflow.cohort.sources == sources}
        if len(among) > 1:
            return None
        cohorts = [cohort for cohort in self._cohorts.values() if cohort.sources == sources]
        return next((cohort for cohort in cohorts if not among or cohort.id in among), None)

    def _begin(
        self,
        identifier: GlobalId,
        wish: Wish,
        cohort: Cohort | None,
        time: int,
        inputs: Mapping[GlobalId, Input],
    ) -> Cohort:
        if cohort is None:
            cohort = Cohort(self._connection, self._next_cohort, self._sources(wish), time + 1)
            cohort.record()
            self._next_cohort += 1
        indexes = self._indexes.get(identifier, ())
        cohort.begin(identifier, wish.relation, wish.plan, inputs, self._next_operator, indexes)
        self._next_operator += operators_of(wish.plan)
        return cohort

    def _show(self, identifier: GlobalId, wish: Wish, cohort: Cohort, time: int) -> None:
        """Make a started dataflow visible."""
        self._hydrations.forget(identifier)
        self._cohorts[cohort.id] = cohort
        self.maintained[identifier] = Dataflow(wish.relation, cohort, time)
        self._place()
        with self._connection:
            for columns in self._indexes.pop(identifier, ()):
                cohort.index(identifier, columns)

    # -- Hydration

    def progress(self) -> Iterator[Progress]:
        """Return the progress of large dataflows that have not started yet."""
        return self._hydrations.progress()

    def _is_large(self, identifier: GlobalId, wish: Wish, time: int) -> bool | None:
        """Return whether a dataflow is too large to compute while others wait; None if unknown yet."""
        chained = self._chained(wish, time, None)
        try:
            inputs = [*wish.inputs.values(), *(chained or {}).values()]
            return None if chained is None else self._hydrations.is_large(identifier, inputs, time)
        except FrontierError:
            return None

    def _hydrate(self, identifier: GlobalId, wish: Wish, time: int) -> bool:
        """Start the hydration of a dataflow in another process; return False if that is impossible."""
        chained = self._chained(wish, time, None)
        if chained is None:
            return False
        read = sources_of(wish.plan)
        inputs = {**wish.inputs, **chained}
        movable = {one: source for one, source in inputs.items() if one in read and isinstance(source, MovableInput)}
        indexes = tuple(self._indexes.get(identifier, ()))
        first = FirstDataflow(
            identifier, wish.relation, wish.plan, self._sources(wish), self._next_cohort, self._next_operator, indexes
        )
        self._next_cohort += 1
        self._next_operator += operators_of(wish.plan)
        self._hydrations.begin(time, movable, first)
        return True

    def _hydrated(self, first: FirstDataflow, hydration: Hydration) -> None:
        """Continue a hydrated dataflow from its time."""
        cohort = Cohort(self._connection, first.cohort, first.sources, hydration.time + 1)
        root = integer(self._connection.execute("SELECT operator FROM dataflows WHERE id = ?", (first.identifier,)).get)
        cohort.restore([(first.identifier, root)])
        for identifier, movable in hydration.inputs.items():
            cohort.feed(identifier, movable, movable.since + 1)
        wish = self.wishes.pop(first.identifier)
        _close({one: source for one, source in wish.inputs.items() if one not in hydration.inputs})
        cohort.partner = next((other for other in self._cohorts.values() if self._may_join(cohort, other)), None)
        self._show(first.identifier, wish, cohort, hydration.time)

    def _fail(self, identifier: GlobalId, failure: FlowError) -> None:
        self._hydrations.forget(identifier)
        self.failures[identifier] = failure
        _close(self.wishes.pop(identifier).inputs)

    def _refilled(self, cohort: Cohort, identifier: GlobalId, source: Input, failure: FlowError | None) -> None:
        if failure is not None:
            self._halts.halt(cohort, failure)
        if failure is None and identifier in cohort.wanted():
            cohort.feed(identifier, source, source.since + 1)
        else:
            source.close()

    def _may_join(self, cohort: Cohort, other: Cohort) -> bool:
        """Return whether two groups can be joined: their sources are the same, and neither reads other groups."""
        sources = cohort.sources
        if other.sources != sources or other.id in self.broken or not other.is_fed() or other.partner is not None:
            return False
        read = {*cohort.feeds, *other.feeds} & self.maintained.keys() - sources
        return all(self.maintained[identifier].cohort.sources != sources for identifier in read)

    def _join(self, cohort: Cohort, other: Cohort) -> None:
        """Join two groups, once they are at the same time."""
        if cohort.id in self.broken or not self._may_join(cohort, other) or other.id not in self._cohorts:
            cohort.partner = None
        elif cohort.upper == other.upper:
            with self._connection:
                other.join(cohort)
            for identifier in cohort.roots:
                self.maintained[identifier] = replace(self.maintained[identifier], cohort=other)
            del self._cohorts[cohort.id]
            self._place()

    def index(self, identifier: GlobalId, columns: Sequence[int]) -> None:
        """Create an index of a dataflow's rows by some of their columns."""
        dataflow = self.maintained.get(identifier)
        if dataflow is None:
            self._indexes.setdefault(identifier, []).append(tuple(columns))
            return
        dataflow.cohort.index(identifier, columns)

    def drop(self, identifier: GlobalId) -> None:
        """Drop a dataflow; its dependents stop advancing."""
        self.failures.pop(identifier, None)
        self._hydrations.forget(identifier)
        self._indexes.pop(identifier, None)
        wish = self.wishes.pop(identifier, None)
        if wish is not None:
            _close(wish.inputs)
        dataflow = self.maintained.pop(identifier, None)
        if dataflow is None:
            return
        cohort = dataflow.cohort
        for other in self._cohorts.values():
            other.starve(identifier)
        cohort.remove(identifier)
        self._connection.execute("DELETE FROM dataflows WHERE id = ?", (identifier,))
        if not cohort.roots:
            cohort.close()
            del self._cohorts[cohort.id]
            self._halts.forget(cohort)
            self._connection.execute("DELETE FROM cohorts WHERE id = ?", (cohort.id,))
        self._place()

    def allow_compaction(self, identifier: GlobalId, since: int) -> None:
        """Compact times before `since`, as far as no reader needs them."""
        dataflow = self.maintained.get(identifier)
        if dataflow is None:
            return
        held = [other.upper - 1 for other in self._cohorts.values() if other.is_chained_to(identifier)]
        if (time := self._hydrations.time_held(identifier)) is not None:
            held.append(time)
        since = min([since, dataflow.cohort.upper - 1, *held])
        if since <= dataflow.since:
            return
        execute = self._connection.execute
        self.maintained[identifier] = replace(dataflow, since=since)
        execute("UPDATE dataflows SET since = ? WHERE id = ?", (since, identifier))
        root = dataflow.cohort.roots[identifier]
        sharing = [other for other, operator in dataflow.cohort.roots.items() if operator is root]
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
