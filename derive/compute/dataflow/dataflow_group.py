"""Groups of dataflows with the same sources, which share arrangements; a group may read another group's dataflows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import apsw

from derive.algebra.expression import Expression
from derive.algebra.relation import GlobalId, Relation
from derive.algebra.types import Row, Type
from derive.compute.dataflow.database import folder_of, open_reader, packed, record_errors, unpacked
from derive.compute.dataflow.input import Input, InputReader, StoredInput, Update
from derive.compute.dataflow.peek import history_of
from derive.compute.dataflow.watch import SECONDS_PER_CHANGE, SECONDS_PER_FIRST_ROW, Watch
from derive.compute.operators.arrangement import Arrangement, copies, rows_as_of
from derive.compute.operators.groups import GroupsOperator
from derive.compute.operators.joins import LinearOperator
from derive.compute.operators.operator import Operator, SourceOperator, Tick, weighted
from derive.compute.operators.recompute import KeyedOperator, RecomputedOperator
from derive.compute.operators.temporal import TemporalOperator
from derive.compute.plans.plan import (
    Counted,
    Fixed,
    Grouped,
    Keyed,
    Linear,
    Plan,
    Recomputed,
    Source,
    Temporal,
    inputs_of,
)
from derive.errors import InternalError
from derive.time import END_OF_TIME


def operator_of(connection: apsw.Connection, number: int, plan: Plan, inputs: Sequence[Operator]) -> Operator:
    """Return the operator of a plan."""
    match plan:
        case Source() | Fixed():
            return SourceOperator(connection, number, plan, inputs)
        case Linear():
            return LinearOperator(connection, number, plan, inputs)
        case Grouped() | Counted():
            return GroupsOperator(connection, number, plan, inputs)
        case Keyed():
            return KeyedOperator(connection, number, plan, inputs)
        case Temporal():
            return TemporalOperator(connection, number, plan, inputs)
        case Recomputed():
            return RecomputedOperator(connection, number, plan, inputs)


_UPDATES_PER_TICK = 20


class DataflowGroup:
    """A dataflow group: operators over some inputs, at one time.

    Attributes:
        id: its number in the database.
        sources: the collections from which all dataflows of the group derive.
        upper: time before which everything is complete.
        committed: the upper that readers see.
        partner: the group that this group will join, and must not overtake; None if missing.
        operators: operators, inputs before readers.
        roots: operator of each dataflow's rows.
        feeds: the readers of inputs, by identifier.
    """

    def __init__(
        self, connection: apsw.Connection, identifier: int, sources: frozenset[GlobalId], upper: int, watch: Watch
    ) -> None:
        self._connection = connection
        self._watch = watch
        self.id = identifier
        self.sources = sources
        self.upper = self.committed = upper
        self.operators: list[Operator] = []
        self.roots: dict[GlobalId, Operator] = {}
        self.feeds: dict[GlobalId, InputReader] = {}
        self.partner: DataflowGroup | None = None

    # -- Restoring

    def restore(self, dataflows: Iterable[tuple[GlobalId, int]]) -> None:
        """Restore the group from the database.

        Args:
            dataflows: identifier of each dataflow, and the number of its operator.
        """
        by_number: dict[int, Operator] = {}
        rows = self._connection.execute(
            "SELECT number, plan, inputs, is_arranged, keeps_history, consolidates FROM operators WHERE cohort = ?"
            " ORDER BY number",
            (self.id,),
        ).fetchall()
        for number, plan, inputs, is_arranged, keeps_history, consolidates in rows:
            assert isinstance(number, int)
            sources = [by_number[source] for source in unpacked(inputs)]
            operator = operator_of(self._connection, number, unpacked(plan), sources)
            operator.keeps_history = bool(keeps_history)
            operator.consolidates = bool(consolidates)
            if is_arranged:
                operator.arrangement = Arrangement(self._connection, number, operator.plan)
            by_number[number] = operator
        self._order(list(by_number.values()))
        self.roots = {identifier: by_number[number] for identifier, number in dataflows}

    def required(self) -> set[GlobalId]:
        """Return identifiers of the inputs that operators read."""
        return {operator.plan.id for operator in self.operators if isinstance(operator.plan, Source)}

    def has_all_inputs(self) -> bool:
        """Return whether all inputs are present."""
        return self.required() <= self.feeds.keys()

    def feed(self, identifier: GlobalId, source: Input, frontier: int) -> None:
        """Read updates of an input from now on; updates before `frontier` are already applied."""
        self.feeds[identifier] = InputReader(source, frontier)

    def _order(self, operators: Sequence[Operator]) -> None:
        """Set the execution order: inputs before readers, and recomputed operators last.

        A recomputed operator needs no former rows of its inputs, so its inputs may be updated before it.
        """
        late: set[Operator] = set()
        for operator in operators:
            if isinstance(operator, RecomputedOperator) or late.intersection(operator.inputs):
                late.add(operator)
        self.operators = [one for one in operators if one not in late] + [one for one in operators if one in late]
        for position, operator in enumerate(self.operators):
            if isinstance(operator, RecomputedOperator):
                needed = {one for reader in self.operators[position + 1 :] for one in reader.arranged_inputs()}
                operator.read_last = frozenset(operator.inputs) - needed

    def is_chained_to(self, upstream: GlobalId) -> bool:
        """Return whether the group reads a dataflow of another group."""
        return upstream in self.feeds and upstream not in self.sources

    def starve(self, upstream: GlobalId) -> None:
        """Remove the input from a dropped dataflow of another group; the readers of the input stop advancing."""
        if self.is_chained_to(upstream):
            del self.feeds[upstream]

    # -- New dataflows

    def record(self) -> None:
        """Record the group in the database."""
        entry = (self.id, packed(self.sources), self.upper)
        self._connection.execute("INSERT INTO cohorts VALUES (?, ?, ?)", entry)

    def begin(
        self,
        identifier: GlobalId,
        relation: Relation,
        plan: Plan,
        inputs: Mapping[GlobalId, Input],
        number: int,
        indexes: Sequence[Sequence[Expression]] = (),
        others: Sequence[DataflowGroup] = (),
    ) -> None:
        """Add a dataflow, and record it in the database.

        Args:
            identifier: identifier of the dataflow.
            relation: its relation.
            plan: its plan.
            inputs: as for `add`.
            number: as for `add`.
            indexes: as for `add`.
            others: as for `add`.
        """
        self.add(identifier, plan, inputs, number, indexes, others)
        entry = (identifier, self.id, self.roots[identifier].number, packed(relation), self.upper - 1)
        self._connection.execute("INSERT INTO dataflows VALUES (?, ?, ?, ?, ?)", entry)

    def index(self, identifier: GlobalId, key: Sequence[Expression]) -> None:
        """Create an index of a dataflow's rows by expressions over them."""
        root = self.roots[identifier]
        assert root.arrangement is not None
        root.arrangement.index(key)

    def join(self, other: DataflowGroup) -> None:
        """Move all dataflows of another group, with the same sources and time, into this group.

        The other group ends.
        """
        assert (self.sources, self.upper) == (other.sources, other.upper)
        for table in ("operators", "dataflows"):
            self._connection.execute(f"UPDATE {table} SET cohort = ? WHERE cohort = ?", (self.id, other.id))
        self._connection.execute("DELETE FROM cohorts WHERE id = ?", (other.id,))
        self._order([*self.operators, *other.operators])
        self.roots |= other.roots
        for identifier, feed in other.feeds.items():
            if identifier in self.feeds:
                feed.input.close()
            else:
                self.feeds[identifier] = feed
        other.feeds = {}

    def add(
        self,
        identifier: GlobalId,
        plan: Plan,
        inputs: Mapping[GlobalId, Input],
        number: int,
        indexes: Sequence[Sequence[Expression]] = (),
        others: Sequence[DataflowGroup] = (),
    ) -> None:
        """Add a dataflow, and compute its rows at the group's latest time.

        Args:
            identifier: identifier of the dataflow.
            plan: its plan.
            inputs: inputs, whose first times are not after the latest time; closed if the group has them already.
            number: a number above the numbers of all operators.
            indexes: expressions by which its rows are looked up.
            others: groups at the same time in the same database, whose arranged inputs are copied.
        """
        new: list[Operator] = []
        root = self._built(plan, new, number)
        arranged = {root, *(source for operator in new for source in operator.arranged_inputs())}
        arranged |= {operator for operator in new if isinstance(operator.plan, Recomputed)}
        lookups = _lookups(new, [(root, key) for key in indexes])
        tick = Tick(self.upper - 1)
        feeds: dict[GlobalId, InputReader] = {}
        _begin_all(new, arranged)
        for operator in new:
            keys = lookups.get(operator, ()) if operator in arranged else None
            twin = None if keys is None else _twin(operator, others)
            if isinstance(operator, SourceOperator) and twin is not None:
                operator.copy(twin, keys or ())
                continue
            if not isinstance(operator, SourceOperator):
                self._watch.begin(lambda: (identifier,), SECONDS_PER_FIRST_ROW * sum(map(_size, operator.inputs)))
            self._compute(operator, keys, inputs, tick, feeds)
            self._watch.end()
        record_errors(self._connection, tick.time, tick.errors.items())
        for operator in new:
            operator.end_first_rows()
            self._connection.execute(f"DELETE FROM {operator.changes}")
            self._record(operator)
        if not root.keeps_history:
            assert root.arrangement is not None
            root.arrangement.keep_history()
            root.keeps_history = True
            self._connection.execute("UPDATE operators SET keeps_history = 1 WHERE number = ?", (root.number,))
        self._order([*self.operators, *new])
        self.roots[identifier] = root
        self.feeds = feeds | self.feeds
        for unfed in self.required() & inputs.keys() - self.feeds.keys():  # of restored dataflows
            self.feed(unfed, inputs[unfed], inputs[unfed].since + 1)
        for unread in inputs.values():
            if all(feed.input is not unread for feed in self.feeds.values()):
                unread.close()

    def _built(self, plan: Plan, new: list[Operator], number: int) -> Operator:
        """Return the operator of a plan: a new operator, or an existing operator that has an arrangement."""
        if isinstance(plan, Source) and plan.id in self.roots and plan.columns is None:
            return self.roots[plan.id]
        for operator in (*new, *(operator for operator in self.operators if operator.arrangement is not None)):
            if operator.plan == plan:
                return operator
        inputs = [self._built(source, new, number) for source in inputs_of(plan)]
        operator = operator_of(self._connection, number + len(new), plan, inputs)
        new.append(operator)
        return operator

    def _compute(
        self,
        operator: Operator,
        keys: Sequence[Sequence[Expression]] | None,
        inputs: Mapping[GlobalId, Input],
        tick: Tick,
        feeds: dict[GlobalId, InputReader],
    ) -> None:
        """Compute the first rows of an operator, in an arrangement with lookups by `keys` unless they are None."""
        if keys is not None:
            operator.arrange(keys)
        operator.prepare()
        self._fill(operator, inputs, tick, feeds)
        if keys is not None:
            operator.arranged(keys)

    def _fill(
        self, operator: Operator, inputs: Mapping[GlobalId, Input], tick: Tick, feeds: dict[GlobalId, InputReader]
    ) -> None:
        """Pass all rows of a plan to its new operator as insertions."""
        if not isinstance(operator, SourceOperator) or not isinstance(operator.plan, Source):
            operator.update(tick)
            return
        identifier = operator.plan.id
        source = inputs[identifier]
        if isinstance(source, StoredInput):
            operator.read(*source.stored())
            feeds[identifier] = InputReader(source, tick.time + 1)
            return
        operator.fill(source.snapshot(source.since))
        feed = InputReader(source, source.since + 1)
        while feed.frontier <= tick.time:
            before = feed.frontier
            feed.frontier, updates = source.poll()
            if feed.frontier <= before:
                raise InternalError(
                    f"input {identifier} has returned no frontier for a time that other inputs have reached"
                )
            operator.fill((), ((row, diff) for time, row, diff in updates if time <= tick.time))
            feed.updates.extend(update for update in updates if update[0] > tick.time)
        feeds[identifier] = feed

    def _record(self, operator: Operator) -> None:
        self._connection.execute(
            "INSERT INTO operators VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                operator.number,
                self.id,
                packed(operator.plan),
                packed([source.number for source in operator.inputs]),
                operator.arrangement is not None,
                operator.keeps_history,
                operator.consolidates,
            ),
        )

    def remove(self, identifier: GlobalId) -> None:
        """Drop a dataflow, and all operators that no other dataflow needs."""
        del self.roots[identifier]
        self.drop_unread()

    def drop_unread(self) -> None:
        """Drop all operators that no dataflow needs, and close the inputs that no operator reads."""
        kept = reachable(self.roots.values())
        for operator in [operator for operator in self.operators if operator not in kept]:
            operator.drop()
            self._connection.execute("DELETE FROM operators WHERE number = ?", (operator.number,))
            self._connection.execute("DELETE FROM errors WHERE operator = ?", (operator.number,))
            self._connection.execute("DELETE FROM errors_history WHERE operator = ?", (operator.number,))
        self._order([operator for operator in self.operators if operator in kept])
        for unread in self.feeds.keys() - self.required():
            self.feeds.pop(unread).input.close()

    # -- Time

    def poll(self) -> None:
        """Poll the inputs."""
        for feed in self.feeds.values():
            feed.poll(self.upper)

    def complete(self) -> int:
        """Return the time before which all inputs are known."""
        if not self.has_all_inputs():
            return self.upper
        frontiers = [feed.frontier for feed in self.feeds.values()]
        if self.partner is not None:
            frontiers.append(self.partner.upper)
        return max(self.upper, min(frontiers, default=END_OF_TIME))

    def advance(self, most_updates: int) -> bool:
        """Process complete times, one after the other.

        Args:
            most_updates: number of updates after which to stop; a time counts as several updates.

        Returns:
            Whether more updates wait.
        """
        complete = self.complete()
        upper, ticks = self.upper, 0
        while sum(len(feed.used) for feed in self.feeds.values()) + ticks * _UPDATES_PER_TICK < most_updates:
            ticks += 1
            heads = [feed.updates[0][0] for feed in self.feeds.values() if feed.updates]
            time = min([*heads, *self._due(complete)], default=complete)
            if time >= complete:
                upper = complete
                break
            changes = {identifier: feed.take(time) for identifier, feed in self.feeds.items()}
            self._tick(time, changes)
            upper = time + 1
        if upper > self.upper:
            self._connection.execute("UPDATE cohorts SET upper = ? WHERE id = ?", (upper, self.id))
            self.upper = upper
        return upper < complete

    def _due(self, complete: int) -> list[int]:
        """Return the next time of each temporal filter; none if all sources have ended: time has no meaning then.

        The rows of constants have no sources, and are known for all times.
        """
        if complete >= END_OF_TIME and self.sources:
            return []
        times = (operator.due() for operator in self.operators if isinstance(operator, TemporalOperator))
        return [time for time in times if time is not None]

    def keep(self) -> None:
        """Publish the new upper after the transaction is committed."""
        self.committed = self.upper
        for feed in self.feeds.values():
            feed.keep()

    def go_back(self) -> None:
        """Undo `advance` after its transaction was rolled back."""
        self.upper = self.committed
        for feed in self.feeds.values():
            feed.go_back()
        for operator in self.operators:
            operator.go_back()

    def _tick(self, time: int, changes: Mapping[GlobalId, Mapping[Row, int]]) -> None:
        tick = Tick(time)
        for operator in self.operators:
            operator.is_applied = False
        for operator in self.operators:
            if isinstance(operator, SourceOperator):
                plan = operator.plan
                counts = changes.get(plan.id) if isinstance(plan, Source) else None
                operator.is_dirty = False
                if counts:
                    operator.feed(counts)
            elif operator.is_due(time) or any(source.is_dirty for source in operator.inputs):
                rows = sum(source.count for source in operator.inputs if source.is_dirty)
                self._watch.begin(partial(self._readers_of, operator), SECONDS_PER_CHANGE * rows)
                operator.update(tick)
                self._watch.end()
            else:
                operator.is_dirty = False
        for operator in self.operators:
            operator.apply(time)
        if tick.errors:
            record_errors(self._connection, time, tick.errors.items())

    def _readers_of(self, operator: Operator) -> list[GlobalId]:
        """Return the dataflows that derive from an operator."""
        return [identifier for identifier, root in self.roots.items() if operator in reachable([root])]

    def close(self) -> None:
        """Close all inputs."""
        for feed in self.feeds.values():
            feed.input.close()
        self.feeds.clear()


def _twin(operator: Operator, others: Iterable[DataflowGroup]) -> SourceOperator | None:
    """Return an operator of another group that has the rows of a new operator in an arrangement; None if missing."""
    for group in others:
        for other in group.operators:
            if isinstance(other, SourceOperator) and other.arrangement is not None and other.plan == operator.plan:
                return other
    return None


def _begin_all(new: Sequence[Operator], arranged: Collection[Operator]) -> None:
    """Mark operators as new, and choose how they compute their first rows."""
    for operator in new:
        operator.is_new = True
        readers = [reader for reader in new if operator in reader.inputs]
        operator.consolidates = operator in arranged or any(not isinstance(one, GroupsOperator) for one in readers)
        if isinstance(operator, LinearOperator) and operator not in arranged:
            operator.is_deferred = _is_read_at_once(operator, readers)


def _is_read_at_once(operator: LinearOperator, readers: Sequence[Operator]) -> bool:
    """Return whether a join need not store its first rows, because its only reader is a group that computes them."""
    reader = readers[0] if len(readers) == 1 else None
    return isinstance(reader, GroupsOperator) and reader.reads_join and operator.outputs is not None


def _size(operator: Operator) -> int:
    """Return the number of rows of an operator that has its first rows."""
    return operator.count if operator.arrangement is None else operator.arrangement.rows


def _lookups(
    new: Sequence[Operator], others: Iterable[tuple[Operator, Sequence[Expression]]]
) -> dict[Operator, list[Sequence[Expression]]]:
    """Return the lookups into new operators; create indexes for lookups into existing operators."""
    lookups: dict[Operator, list[Sequence[Expression]]] = {}
    for source, key in (*others, *(lookup for operator in new for lookup in operator.lookups())):
        if source.arrangement is not None:
            source.arrangement.index(key)
        else:
            lookups.setdefault(source, []).append(key)
    return lookups


def reachable(roots: Iterable[Operator]) -> set[Operator]:
    """Return operators, and all operators that they read."""
    reached: set[Operator] = set()
    rest = list(roots)
    while rest:
        operator = rest.pop()
        if operator not in reached:
            reached.add(operator)
            rest += operator.inputs
    return reached


_BATCH = 10_000


class ArrangedInput:
    """The rows of a dataflow at one time, in an instance of another process.

    Attributes:
        types: types of its columns.
        since: the time.
        has_more: False: there are no later updates.
    """

    has_more = False

    def __init__(self, reader: apsw.Connection, number: int, types: tuple[Type, ...], since: int) -> None:
        """Describe the rows.

        Args:
            reader: connection that reads the instance's database.
            number: number of the operator that has the rows.
            types: types of its columns.
            since: the time, which must not be compacted.
        """
        self.types = types
        self.since = since
        self._reader = reader
        self._number = number

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        """Yield the rows at `since`."""
        assert as_of == self.since
        return _rows_at(self._reader, self._number, self.types, as_of)

    def poll(self) -> tuple[int, list[Update]]:
        """Return no updates: the instance itself reads them."""
        return self.since + 1, []

    def close(self) -> None:
        """Close the database connection."""
        self._reader.close()


class ChainedInput:
    """The rows of a dataflow from a time on; the time must not be compacted.

    Attributes:
        upstream: identifier of the dataflow.
        types: types of its columns.
        since: the time.
        keeps: False: the snapshot is not stored.
    """

    keeps = False

    def __init__(
        self, connection: apsw.Connection, upstream: GlobalId, group_of: Callable[[GlobalId], DataflowGroup], since: int
    ) -> None:
        """Describe the input.

        Args:
            connection: writing connection of the database of both groups.
            upstream: identifier of the dataflow.
            group_of: returns the dataflow's group.
            since: the time.
        """
        self.upstream = upstream
        self.since = since
        self._connection = connection
        self._group_of = group_of
        self._operator = group_of(upstream).roots[upstream]
        self.types: tuple[Type, ...] = self._operator.plan.types
        self._frontier = since + 1

    def count(self, as_of: int) -> int:
        """Return an approximate number of rows."""
        count = self._connection.execute(f"SELECT ifnull(max(rowid), 0) FROM a{self._operator.number}").get
        return int(count)

    def opener(self, as_of: int, required: Collection[int] | None, place: Path) -> Callable[[], ArrangedInput]:
        """Return a function that opens the rows at a time in another process."""
        return partial(_opened, folder_of(self._connection), self._operator.number, self.types, as_of)

    def adopt(self, as_of: int, place: Path) -> None:
        """Continue from a time."""
        self.since = as_of
        self._frontier = as_of + 1

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        """Yield the rows at `since`."""
        return _rows_at(self._connection, self._operator.number, self.types, self.since)

    @property
    def has_more(self) -> bool:
        """Return whether the other group has advanced since the last poll."""
        return self._group_of(self.upstream).upper > self._frontier

    def poll(self) -> tuple[int, list[Update]]:
        """Return the frontier and the updates since the last poll."""
        begin, self._frontier = self._frontier, self._group_of(self.upstream).upper
        if begin == self._frontier:
            return self._frontier, []
        history = history_of(self._operator.number, self._operator.width)
        rows = self._connection.execute(history, {"begin": begin, "end": self._frontier}).fetchall()
        return self._frontier, [(_time(row), row[1 : 1 + len(self.types)], diff) for row, diff in weighted(rows)]

    def close(self) -> None:
        """Do nothing: callers hold the resources."""


def _opened(folder: Path, number: int, types: tuple[Type, ...], since: int) -> ArrangedInput:
    return ArrangedInput(open_reader(folder), number, types, since)


def _rows_at(connection: apsw.Connection, number: int, types: tuple[Type, ...], time: int) -> Iterator[list[Row]]:
    """Yield the rows that an operator had at a time, in batches."""
    width = len(types) or 1
    cursor = connection.execute(
        f"SELECT * FROM {copies(rows_as_of(f'a{number}', f'h{number}', width, str(time)), width)}"
    )
    while batch := [row[: len(types)] for row in islice(cursor, _BATCH)]:
        yield batch


def _time(row: Row) -> int:
    time = row[0]
    assert isinstance(time, int)
    return time
