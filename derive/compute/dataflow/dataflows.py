"""The dataflows of an instance: which there are, in which cohorts, and how they begin and end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import apsw

from derive.compute.algebra.expression import Column
from derive.compute.algebra.relation import GlobalId, Relation
from derive.compute.algebra.types import Datum
from derive.compute.dataflow.chained import ChainedInput
from derive.compute.dataflow.cohort import Cohort, reachable
from derive.compute.dataflow.database import packed, unpacked
from derive.compute.dataflow.input import Input
from derive.compute.dataflow.peek import Kept
from derive.compute.lowering.expressions import gets_of
from derive.compute.lowering.plan import Plan
from derive.errors import FlowError, SqlError

MOST_UPDATES = 50_000
"""After about so many updates a transaction of a step ends."""


@dataclass(frozen=True, slots=True)
class Dataflow:
    """A dataflow that is maintained.

    Attributes:
        relation: what it has the rows of.
        cohort: in which it is.
        since: at times from this on it can be asked.
    """

    relation: Relation
    cohort: Cohort
    since: int


@dataclass(frozen=True, slots=True)
class Wish:
    """A dataflow that is not maintained yet."""

    relation: Relation
    plan: Plan
    as_of: int
    inputs: Mapping[GlobalId, Input]


class Dataflows:
    """All dataflows of an instance. Its methods are called by one thread at a time.

    Attributes:
        maintained: dataflows at work.
        wishes: those that have not begun.
        kept: where the rows of those at work are.
        failures: why dataflows could not begin.
        broken: why cohorts do not go on.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        """Take up what is in a database.

        Args:
            connection: that writes to it.
        """
        self._connection = connection
        self.maintained: dict[GlobalId, Dataflow] = {}
        self.wishes: dict[GlobalId, Wish] = {}
        self.kept: Mapping[GlobalId, Kept] = {}
        self.failures: dict[GlobalId, FlowError] = {}
        self.broken: dict[int, FlowError] = {}
        self._cohorts: dict[int, Cohort] = {}
        self._indexes: dict[GlobalId, list[tuple[int, ...]]] = {}
        self._restore()

    def close(self) -> None:
        """Give inputs back."""
        for cohort in self._cohorts.values():
            cohort.close()
        for wish in self.wishes.values():
            _close(wish.inputs)

    def step(self) -> bool:
        """Begin what can begin, and go on with what is complete; whether anything happened."""
        happened = False
        for identifier, wish in list(self.wishes.items()):
            happened |= self._fulfil(identifier, wish)
        for cohort in list(self._cohorts.values()):
            if cohort.id not in self.broken:
                happened |= self._advance(cohort)
        return happened

    def _advance(self, cohort: Cohort) -> bool:
        upper = cohort.upper
        try:
            cohort.poll()
            if cohort.complete() > upper:
                with self._connection:
                    cohort.advance(MOST_UPDATES)
                cohort.committed = cohort.upper
        except (FlowError, apsw.Error) as exc:
            self.broken[cohort.id] = _as_failure(exc)
            return True
        return cohort.upper > upper

    def _restore(self) -> None:
        execute = self._connection.execute
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
        """Know where rows are."""
        kept = {}
        for identifier, dataflow in self.maintained.items():
            kept[identifier] = Kept(
                dataflow.cohort.id, dataflow.cohort.roots[identifier].number, self._operators(identifier)
            )
        self.kept = kept

    def _operators(self, identifier: GlobalId) -> tuple[int, ...]:
        """All operators that a dataflow follows from, in other cohorts as well."""
        cohort = self.maintained[identifier].cohort
        operators = {operator.number for operator in reachable([cohort.roots[identifier]])}
        for get in gets_of(self.maintained[identifier].relation):
            if get.id in self.maintained and get.id != identifier:
                operators.update(self._operators(get.id))
        return tuple(sorted(operators))

    def wish(self, identifier: GlobalId, wish: Wish) -> None:
        """Maintain a relation: one that is there goes on, if it is the same."""
        dataflow = self.maintained.get(identifier)
        if dataflow is not None:
            is_kept = dataflow.relation == wish.relation and dataflow.since <= wish.as_of < dataflow.cohort.upper
            if is_kept and dataflow.cohort.id not in self.broken and self._resume(dataflow, wish):
                return
            self.drop(identifier)
        self.wishes[identifier] = wish

    def _resume(self, dataflow: Dataflow, wish: Wish) -> bool:
        """Have a dataflow that is there go on with inputs; whether that can be."""
        cohort = dataflow.cohort
        chained = self._chained(wish, cohort.upper - 1)
        if chained is None:
            return False
        for identifier, source in {**wish.inputs, **chained}.items():
            if identifier in cohort.wanted() and identifier not in cohort.feeds:
                cohort.feed(identifier, source, source.since + 1)
            else:
                source.close()
        return True

    def _chained(self, wish: Wish, time: int) -> dict[GlobalId, Input] | None:
        """What a wish reads of other cohorts, from a time on; None if that is not known."""
        sources = self._sources(wish)
        chained: dict[GlobalId, Input] = {}
        for get in gets_of(wish.relation):
            upstream = self.maintained.get(get.id)
            if get.id in wish.inputs or (upstream is not None and upstream.cohort.sources == sources):
                continue
            if upstream is None or not upstream.since <= time < upstream.cohort.upper:
                return None
            chained[get.id] = ChainedInput(self._connection, get.id, upstream.cohort, time)
        return chained

    def _sources(self, wish: Wish) -> frozenset[GlobalId]:
        """The collections that a wish follows from in the end."""
        sources: set[GlobalId] = set()
        for get in gets_of(wish.relation):
            if get.id in wish.inputs:
                sources.add(get.id)
            elif get.id in self.maintained:
                sources |= self.maintained[get.id].cohort.sources
        return frozenset(sources)

    def _fulfil(self, identifier: GlobalId, wish: Wish) -> bool:
        """Begin to maintain what is wished for, if it is time."""
        upstream = [get.id for get in gets_of(wish.relation) if get.id not in wish.inputs]
        if any(get not in self.maintained for get in upstream):
            return False
        sources = self._sources(wish)
        cohort = next((cohort for cohort in self._cohorts.values() if cohort.sources == sources), None)
        time = max([wish.as_of, *(self.maintained[get].since for get in upstream)])
        if cohort is not None:
            if cohort.upper <= time and cohort.id not in self.broken:
                return False
            time = cohort.upper - 1
        chained = self._chained(wish, time)
        if chained is None:
            return False
        del self.wishes[identifier]
        try:
            with self._connection:
                begun = self._begin(identifier, wish, cohort, time, {**wish.inputs, **chained})
        except (FlowError, apsw.Error) as exc:
            self.failures[identifier] = _as_failure(exc)
            _close(wish.inputs)
            return True
        # Others see it from here on, as it is committed.
        self._cohorts[begun.id] = begun
        self.maintained[identifier] = Dataflow(wish.relation, begun, time)
        self._place()
        with self._connection:
            for columns in self._indexes.pop(identifier, ()):
                self.index(identifier, columns)
        return True

    def _begin(
        self,
        identifier: GlobalId,
        wish: Wish,
        cohort: Cohort | None,
        time: int,
        inputs: Mapping[GlobalId, Input],
    ) -> Cohort:
        execute = self._connection.execute
        if cohort is None:
            number = integer(execute("SELECT ifnull(max(id), 0) + 1 FROM cohorts").get)
            cohort = Cohort(self._connection, number, self._sources(wish), time + 1)
            execute("INSERT INTO cohorts VALUES (?, ?, ?)", (number, packed(cohort.sources), time + 1))
        first = integer(execute("SELECT ifnull(max(number), 0) + 1 FROM operators").get)
        cohort.add(identifier, wish.plan, inputs, first)
        execute(
            "INSERT INTO dataflows VALUES (?, ?, ?, ?, ?)",
            (identifier, cohort.id, cohort.roots[identifier].number, packed(wish.relation), time),
        )
        return cohort

    def index(self, identifier: GlobalId, columns: Sequence[int]) -> None:
        """Have rows looked up fast by some of their columns."""
        dataflow = self.maintained.get(identifier)
        if dataflow is None:
            self._indexes.setdefault(identifier, []).append(tuple(columns))
            return
        arrangement = dataflow.cohort.roots[identifier].arrangement
        assert arrangement is not None
        arrangement.index([Column(index, dataflow.relation.types[index]) for index in columns])

    def drop(self, identifier: GlobalId) -> None:
        """Maintain a relation no more."""
        self.failures.pop(identifier, None)
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
            self.broken.pop(cohort.id, None)
            self._connection.execute("DELETE FROM cohorts WHERE id = ?", (cohort.id,))
        self._place()

    def allow_compaction(self, identifier: GlobalId, since: int) -> None:
        """Forget times before one, as far as nobody else needs them."""
        dataflow = self.maintained.get(identifier)
        if dataflow is None:
            return
        held = [other.upper - 1 for other in self._cohorts.values() if other.is_chained_to(identifier)]
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


def _as_failure(exc: FlowError | apsw.Error) -> FlowError:
    return exc if isinstance(exc, FlowError) else SqlError("XX000", f"SQLite does not maintain a view: {exc}")


def integer(value: Datum) -> int:
    """A datum that is known to be an integer."""
    assert isinstance(value, int)
    return value
