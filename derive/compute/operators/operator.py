"""Operators: compute changes of their output from changes of their inputs, one tick at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import itemgetter

import apsw

from derive.algebra.expression import Expression
from derive.algebra.types import Row
from derive.compute.operators.arrangement import Arrangement
from derive.compute.plans.plan import Fixed, Plan, Source
from derive.compute.sqlite import names
from derive.errors import SqlError


@dataclass(slots=True)
class Tick:
    """The processing of one time.

    Attributes:
        time: time of the changes.
        errors: changes of the counts of errors, by operator, cause, SQLSTATE and message.
    """

    time: int
    errors: dict[tuple[int, str, str, str], int] = field(default_factory=dict)

    def fail(self, operator: int, error: SqlError, weight: int, cause: str = "") -> None:
        """Record a row error of an operator."""
        key = (operator, cause, error.sqlstate, error.message)
        self.errors[key] = self.errors.get(key, 0) + weight


class Operator:
    """An operator of a dataflow, which writes its changes into a temporary table.

    Attributes:
        number: its number in the database.
        plan: its plan.
        inputs: operators whose changes it reads.
        width: number of columns of its rows; at least 1, as rows without columns have a placeholder.
        changes: table of its changes; valid while `is_dirty`.
        count: number of changed rows of its output.
        is_dirty: whether its output has changed.
        is_new: whether it has no rows yet.
        is_applied: whether its changes are in its arrangement already.
        first_rows: query of the rows of a new operator that has no rows of its own; empty if it has.
        arrangement: tables of its rows; None without lookups.
        keeps_history: whether its changes are kept.
    """

    def __init__(self, connection: apsw.Connection, number: int, plan: Plan, inputs: Sequence[Operator]) -> None:
        self.connection = connection
        self.number = number
        self.plan = plan
        self.inputs = tuple(inputs)
        self.width = len(plan.types) or 1
        self.columns = names(self.width)
        self.changes = f"temp.d{number}"
        self.count = 0
        self.is_dirty = False
        self.is_new = False
        self.is_applied = False
        self.first_rows = ""
        self.arrangement: Arrangement | None = None
        self.keeps_history = False
        self.consolidates = True
        connection.execute(f"CREATE TEMP TABLE d{number}({self.columns}, w)")

    def update(self, tick: Tick) -> None:
        """Compute changes from the changes of the inputs."""
        raise NotImplementedError

    def is_due(self, time: int) -> bool:
        """Return whether the output changes at a time, even if the inputs do not."""
        return False

    def prepare(self) -> None:
        """Create the state that is kept between ticks, before the first tick."""

    def lookups(self) -> Iterator[tuple[Operator, Sequence[Expression]]]:
        """Return each input whose rows this operator looks up, with the expressions of the lookup."""
        yield from ()

    def arranged_inputs(self) -> Sequence[Operator]:
        """Return the inputs whose rows this operator looks up."""
        return ()

    def arrange(self, lookups: Sequence[Sequence[Expression]]) -> None:
        """Create the arrangement of a new operator, which gets its first rows."""
        self.arrangement = Arrangement(self.connection, self.number, self.plan)
        self.arrangement.create(lookups)

    def arranged(self, lookups: Sequence[Sequence[Expression]]) -> None:
        """Complete the arrangement after the first rows are inserted."""
        assert self.arrangement is not None
        self.arrangement.complete()
        for key in lookups:
            self.arrangement.index(key)

    def end_first_rows(self) -> None:
        """Note that the operator has its first rows, and discard all that only they needed."""
        self.is_new, self.is_dirty, self.first_rows = False, False, ""

    def drop(self) -> None:
        """Drop all tables."""
        self.connection.execute(f"DROP TABLE IF EXISTS {self.changes}")
        if self.arrangement is not None:
            self.arrangement.drop()

    def apply(self, time: int) -> None:
        """Apply the changes of a time to the arrangement once, if there is one."""
        if self.is_dirty and self.arrangement is not None and not self.is_applied:
            self.arrangement.apply(time, self.count, keeps_history=self.keeps_history)
            self.is_applied = True

    def go_back(self) -> None:
        """Discard cached facts about tables, because a rollback has undone the changes of the tables."""

    def settle(self, select: str, bindings: Mapping[str, int] | None = None) -> None:
        """Set the rows of a SELECT (columns and `w`) as changes, without rows that cancel out."""
        table, columns = self.changes, self.columns
        if self.is_new and self.arrangement is not None:
            table, columns = self.arrangement.table, self.arrangement.order
        self.connection.execute(f"DELETE FROM {table}")
        if self.consolidates:
            select = f"SELECT {self.columns}, sum(w) FROM ({select}) GROUP BY {columns} HAVING sum(w) <> 0"
        self.connection.execute(f"INSERT INTO {table} {select}", bindings)
        self.count = self.connection.changes()
        self.is_dirty = self.count > 0

    def changed(self, source: Operator) -> str:
        """Return the table of an input's changes; for a new operator, all rows are changes."""
        if not self.is_new:
            return source.changes
        return source.arrangement.table if source.arrangement is not None else source.first_rows or source.changes

    def take(self, counts: Mapping[Row, int]) -> None:
        """Set rows with counts as changes, without rows that cancel out."""
        rows = [(*row, weight) for row, weight in counts.items() if weight]
        marks = ", ".join("?" * (self.width + 1))
        table = self.changed(self)
        self.connection.execute(f"DELETE FROM {table}")
        self.connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        self.count = len(rows)
        self.is_dirty = bool(rows)


class SourceOperator(Operator):
    """An operator that gets its changes from an input, or that has constant rows."""

    plan: Source | Fixed

    def feed(self, counts: Mapping[Row, int]) -> None:
        """Set the changes of a tick, with their counts."""
        if isinstance(self.plan, Source) and self.plan.columns is None and self.plan.types:
            self.take(counts)
            return
        kept: dict[Row, int] = {}
        for narrow, weight in zip(self._read(counts), counts.values(), strict=True):
            kept[narrow] = kept.get(narrow, 0) + weight
        self.take(kept)

    def _read(self, rows: Collection[Row]) -> Iterable[Row]:
        """Return the columns of rows that the plan reads."""
        if not self.plan.types:
            return repeat((None,), len(rows))
        return narrowed(rows, self.plan.columns if isinstance(self.plan, Source) else None)

    def fill(self, batches: Iterable[Sequence[Row]], later: Iterable[tuple[Row, int]] = ()) -> None:
        """Insert all present rows.

        Args:
            batches: rows, each repeated by its count.
            later: changes after these rows.
        """
        execute = self.connection.executemany
        marks = ", ".join("?" * self.width)
        for rows in batches:
            execute(f"INSERT INTO {self.changes} VALUES ({marks}, 1)", self._read(rows))
            self.count += len(rows)
        rest = list(later)
        weighed = zip(self._read([row for row, _ in rest]), rest, strict=True)
        execute(f"INSERT INTO {self.changes} VALUES ({marks}, ?)", ((*row, diff) for row, (_, diff) in weighed))

    def read(self, table: str, count: int) -> None:
        """Take the first rows from a table, which stays as it is until the dataflow has begun.

        Args:
            table: a table with all columns of the input, and `w`.
            count: its number of rows.
        """
        columns = self.plan.columns if isinstance(self.plan, Source) else None
        chosen = range(len(self.plan.types)) if columns is None else columns
        shown = ", ".join(f"c{place} AS c{index}" for index, place in enumerate(chosen)) or "NULL AS c0"
        self.first_rows, self.count = f"(SELECT {shown}, w FROM {table})", count

    def arranged(self, lookups: Sequence[Sequence[Expression]]) -> None:
        """Move the first rows, which may be unordered and repeated, to the arrangement."""
        self.settle(f"SELECT {self.columns}, w FROM {self.first_rows or self.changes}")
        super().arranged(lookups)
        self.connection.execute(f"DELETE FROM {self.changes}")

    def copy(self, twin: SourceOperator, lookups: Sequence[Sequence[Expression]]) -> None:
        """Take the first rows, in an arrangement, from an operator that has the same rows in an arrangement."""
        assert twin.arrangement is not None
        self.arrangement = Arrangement(self.connection, self.number, self.plan)
        self.arrangement.copy(twin.arrangement)
        self.count = twin.count
        for key in lookups:
            self.arrangement.index(key)

    def update(self, tick: Tick) -> None:
        """Insert the constant rows."""
        if isinstance(self.plan, Fixed):
            self.fill([self.plan.rows])


def narrowed(rows: Collection[Row], columns: Sequence[int] | None) -> Iterable[Row]:
    """Return rows with some columns; None for all columns."""
    if columns is None:
        return rows
    if len(columns) <= 1:
        return [tuple([row[index] for index in columns]) for row in rows]
    return map(itemgetter(*columns), rows)


def weighted(rows: Iterable[Row]) -> Iterator[tuple[Row, int]]:
    """Yield rows split from their last column, the count."""
    for row in rows:
        weight = row[-1]
        assert isinstance(weight, int)
        yield row[:-1], weight
