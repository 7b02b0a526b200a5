"""Operators: each makes changes of its output from changes of its inputs, a tick at a time."""

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
from derive.compute.sqlite.block import names
from derive.errors import SqlError


@dataclass(slots=True)
class Tick:
    """One time at work.

    Attributes:
        connection: that writes.
        time: whose changes are made.
        is_first: whether new operators are given all that there is, rather than changes.
        errors: of operators, by operator, cause, SQLSTATE and message: how often they came, or went.
    """

    connection: apsw.Connection
    time: int
    is_first: bool = False
    errors: dict[tuple[int, str, str, str], int] = field(default_factory=dict)

    def fail(self, operator: int, error: SqlError, weight: int, cause: str = "") -> None:
        """An operator has no value where it should have."""
        key = (operator, cause, error.sqlstate, error.message)
        self.errors[key] = self.errors.get(key, 0) + weight


class Operator:
    """An operator of a dataflow. Its changes are in a temporary table.

    Attributes:
        number: identifies it in the database.
        plan: what it does.
        inputs: whose changes it reads.
        width: of its rows; at least 1, as one column stands for none.
        changes: the table of its changes, valid while it is dirty.
        count: how many rows of its output changed.
        is_dirty: whether its output has changed.
        is_new: whether it has nothing yet.
        is_applied: whether its arrangement has its changes already.
        arrangement: tables of its rows; None if nobody looks them up.
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
        self.arrangement: Arrangement | None = None
        self.keeps_history = False
        self.consolidates = True
        connection.execute(f"CREATE TEMP TABLE d{number}({self.columns}, w)")

    def update(self, tick: Tick) -> None:
        """Make changes from those of the inputs."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Make what is kept between ticks, before the first one."""

    def lookups(self) -> Iterator[tuple[Operator, Sequence[Expression]]]:
        """Inputs, and expressions about their rows by which they are looked up."""
        yield from ()

    def arranged_inputs(self) -> Sequence[Operator]:
        """Inputs whose rows it looks up."""
        return ()

    def arrange(self, lookups: Sequence[Sequence[Expression]]) -> None:
        """Have its rows looked up by expressions; it is new, and its first rows go where they are kept from here on."""
        self.arrangement = Arrangement(self.connection, self.number, self.plan)
        self.arrangement.create(lookups)

    def arranged(self, lookups: Sequence[Sequence[Expression]]) -> None:
        """All of its first rows are there."""
        assert self.arrangement is not None
        self.arrangement.complete()
        for key in lookups:
            self.arrangement.index(key)

    def drop(self) -> None:
        """Remove all tables."""
        self.connection.execute(f"DROP TABLE IF EXISTS {self.changes}")
        if self.arrangement is not None:
            self.arrangement.drop()

    def apply(self, time: int) -> None:
        """Have the arrangement, if there is one, take in the changes of a time, unless it has."""
        if self.is_dirty and self.arrangement is not None and not self.is_applied:
            self.arrangement.apply(time, self.count, keeps_history=self.keeps_history)
            self.is_applied = True

    def settle(self, select: str, bindings: Mapping[str, int] | None = None) -> None:
        """Take the rows of a SELECT of columns and `w` as changes; those that add up to nothing are left out."""
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
        """The table of changes of an input; to an operator that is new, all rows are changes."""
        if self.is_new and source.arrangement is not None:
            return source.arrangement.table
        return source.changes

    def take(self, counts: Mapping[Row, int]) -> None:
        """Take rows as changes, those that add up to nothing left out."""
        rows = [(*row, weight) for row, weight in counts.items() if weight]
        marks = ", ".join("?" * (self.width + 1))
        table = self.changed(self)
        self.connection.execute(f"DELETE FROM {table}")
        self.connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        self.count = len(rows)
        self.is_dirty = bool(rows)


class Fed(Operator):
    """An operator whose changes come from outside, or never change."""

    plan: Source | Fixed

    def feed(self, counts: Mapping[Row, int]) -> None:
        """Take the changes of a tick, with their weights."""
        if isinstance(self.plan, Source) and self.plan.columns is None and self.plan.types:
            self.take(counts)
            return
        kept: dict[Row, int] = {}
        for narrow, weight in zip(self._read(counts), counts.values(), strict=True):
            kept[narrow] = kept.get(narrow, 0) + weight
        self.take(kept)

    def _read(self, rows: Collection[Row]) -> Iterable[Row]:
        """What is kept of rows."""
        columns = self.plan.columns if isinstance(self.plan, Source) else None
        if not self.plan.types:
            return repeat((None,), len(rows))
        if columns is None:
            return rows
        if len(columns) == 1:
            return [(row[columns[0]],) for row in rows]
        return map(itemgetter(*columns), rows)

    def fill(self, batches: Iterable[Sequence[Row]], later: Iterable[tuple[Row, int]] = ()) -> None:
        """Take all rows that there are.

        Args:
            batches: rows, each as often as it is there.
            later: what has changed since.
        """
        execute = self.connection.executemany
        marks = ", ".join("?" * self.width)
        for rows in batches:
            execute(f"INSERT INTO {self.changes} VALUES ({marks}, 1)", self._read(rows))
        rest = list(later)
        weighed = zip(self._read([row for row, _ in rest]), rest, strict=True)
        execute(f"INSERT INTO {self.changes} VALUES ({marks}, ?)", ((*row, diff) for row, (_, diff) in weighed))

    def arranged(self, lookups: Sequence[Sequence[Expression]]) -> None:
        """All of its first rows are there, in any order and perhaps several times, and go where they are kept."""
        self.settle(f"SELECT {self.columns}, w FROM {self.changes}")
        super().arranged(lookups)
        self.connection.execute(f"DELETE FROM {self.changes}")

    def update(self, tick: Tick) -> None:
        """What is fixed is there from the beginning."""
        if isinstance(self.plan, Fixed):
            self.fill([self.plan.rows])


def weighted(rows: Iterable[Row]) -> Iterator[tuple[Row, int]]:
    """Rows whose last column is how often they are there, in two parts."""
    for row in rows:
        weight = row[-1]
        assert isinstance(weight, int)
        yield row[:-1], weight
