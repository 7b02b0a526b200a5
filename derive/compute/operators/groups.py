"""The second operator tier: groups, each with a state that changes as rows are inserted and deleted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import apsw

from derive.algebra.expression import Column
from derive.algebra.relation import Aggregate, SetOperator
from derive.algebra.types import OF_BYTES, Row, Type
from derive.compute.operators.arrangement import names_of
from derive.compute.operators.bulk_groups import BulkGroups, Contribution
from derive.compute.operators.joins import LinearOperator
from derive.compute.operators.operator import Operator, Tick, weighted
from derive.compute.plans.plan import Counted, Grouped
from derive.compute.sqlite import order_term
from derive.errors import SqlError
from derive.functions.registry import Accumulator, accumulator_of, aggregate_sql

_MANY = 1_000
"""Number of changed rows from which on their contribution is computed by columns."""
_EXTREMES = {"min": "", "max": " DESC"}


def stand_in(kind: Type) -> str:
    """Return SQL of a value that replaces NULL where NULLs must be equal; no value of the type equals it."""
    return "''" if kind in OF_BYTES else "x''"


def same(column: str, kind: Type) -> str:
    """Return SQL of a column in which NULLs are equal."""
    return f"ifnull({column}, {stand_in(kind)})"


class Multiset:
    """For each group, the arguments of one aggregate, with their counts.

    The table's columns are the keys `k0`, … of groups, values `x0`, … and `w`; none is NULL.
    """

    def __init__(self, connection: apsw.Connection, table: str, kinds: Sequence[Type], aggregate: Aggregate) -> None:
        """Describe the group key and the aggregate.

        Args:
            connection: writing connection.
            table: name of the table.
            kinds: types of the keys, which are the first columns of changes.
            aggregate: the aggregate, over columns of changes.
        """
        self._connection = connection
        self._table = table
        self._kinds = kinds
        self._aggregate = aggregate
        order = [part.expression for part in aggregate.order]
        read = [part for part in (*aggregate.arguments, *order) if isinstance(part, Column)]
        self._read = list(dict.fromkeys(read))
        self._keys = [f"k{index}" for index in range(len(kinds))]
        self._values = [f"x{index}" for index in range(len(self._read))]

    def create(self) -> None:
        """Create the table."""
        key = ", ".join([*self._keys, *self._values])
        self._connection.execute(
            f"CREATE TABLE {self._table}({key}, w INTEGER NOT NULL, PRIMARY KEY ({key})) WITHOUT ROWID"
        )
        self._connection.execute(f"CREATE INDEX {self._table}_none ON {self._table}(w) WHERE w = 0")

    def drop(self) -> None:
        """Drop the table."""
        self._connection.execute(f"DROP TABLE IF EXISTS {self._table}")

    def merge(self, changes: str) -> None:
        """Apply changes.

        Args:
            changes: table of the changes.
        """
        read = [*enumerate(self._kinds), *((column.index, column.type) for column in self._read)]
        values = ", ".join(same(f"c{index}", kind) for index, kind in read)
        grouping = ", ".join(str(position + 1) for position in range(len(read)))
        conditions = []
        if self._is_extreme:
            conditions.append(f"c{self._read[0].index} IS NOT NULL")
        if isinstance(self._aggregate.condition, Column):
            conditions.append(f"c{self._aggregate.condition.index}")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        self._connection.execute(
            f"INSERT INTO {self._table} SELECT {values}, sum(w) FROM {changes}{where} GROUP BY {grouping}"
            f" HAVING sum(w) <> 0 ON CONFLICT DO UPDATE SET w = w + excluded.w"
        )
        self._connection.execute(f"DELETE FROM {self._table} WHERE w = 0")

    def value(self) -> str:
        """Return SQL of the aggregate, for the group whose keys are `g.k0`, …."""
        pairs = zip(self._keys, self._kinds, strict=True)
        match = " AND ".join(f"m.{key} = {same(f'g.{key}', kind)}" for key, kind in pairs) or "1"
        if self._is_extreme:
            order = f"m.x0{_EXTREMES[self._aggregate.function]}"
            return f"(SELECT m.x0 FROM {self._table} m WHERE {match} ORDER BY {order} LIMIT 1)"
        values = ", ".join(self._values)
        arguments = [f"e.{self._name(part)}" for part in self._aggregate.arguments if isinstance(part, Column)]
        terms = [
            order_term(part, f"e.{self._name(part.expression)}")
            for part in self._aggregate.order
            if isinstance(part.expression, Column)
        ]
        form = aggregate_sql(self._aggregate, arguments, None, terms)
        known = ", ".join(
            f"nullif(m.{name}, {stand_in(column.type)}) AS {name}"
            for name, column in zip(self._values, self._read, strict=True)
        )
        rows = f"SELECT {known}, m.w FROM {self._table} m WHERE {match}"
        if self._aggregate.is_distinct:
            return f"(SELECT {form} FROM ({rows}) e)"
        return (
            f"(WITH RECURSIVE e({values}, w) AS ({rows} UNION ALL SELECT {values}, w - 1 FROM e WHERE w > 1)"
            f" SELECT {form} FROM e)"
        )

    @property
    def _is_extreme(self) -> bool:
        return self._aggregate.function in _EXTREMES

    def _name(self, column: Column) -> str:
        return self._values[self._read.index(column)]


@dataclass(frozen=True, slots=True)
class _State:
    """State columns of an aggregate, as SQL: initial values, changes by rows, and the merge of changes."""

    names: tuple[str, ...]
    empty: tuple[str, ...]
    delta: tuple[str, ...]
    merged: tuple[str, ...]


class GroupsOperator(Operator):
    """Groups: for each group with changed rows, retracts the former output row and inserts the new one.

    Table `g` has, for each group, the keys `k0`, …, the number of rows `n` and the states `s0`, …; table `u` has
    changes.
    """

    def __init__(
        self, connection: apsw.Connection, number: int, plan: Grouped | Counted, inputs: Sequence[Operator]
    ) -> None:
        super().__init__(connection, number, plan, inputs)
        kinds = plan.types[: plan.keys] if isinstance(plan, Grouped) else plan.types
        self._kinds = kinds
        self._keys = [f"k{index}" for index in range(len(kinds))]
        self._multisets: list[Multiset] = []
        self._states: list[_State] = []
        self._contributions: list[Contribution | None] = []
        values = self._aggregates(plan.aggregates) if isinstance(plan, Grouped) else []
        weight = "1" if isinstance(plan, Grouped) else self._sides(plan)
        self._write(values, weight)
        contributions = [one for one in self._contributions if one is not None]
        self._bulk = None
        if len(contributions) == len(self._states) and any(one.bulk.is_costly for one in contributions):
            self._bulk = BulkGroups(plan.input.types, len(kinds), contributions)
        connection.execute(f"CREATE TEMP TABLE u{number}({self._table_columns()})")
        connection.execute(f"CREATE TEMP TABLE r{number}({self.columns}, w)")

    def _aggregates(self, aggregates: Sequence[Aggregate]) -> list[str]:
        """Return SQL of the values of aggregates, for a group in `g`."""
        values = []
        for aggregate in aggregates:
            accumulator = accumulator_of(aggregate)
            if accumulator is None:
                multiset = Multiset(self.connection, f"m{self.number}_{len(self._multisets)}", self._kinds, aggregate)
                self._multisets.append(multiset)
                values.append(multiset.value())
                continue
            names = self._state_of(aggregate, accumulator)
            values.append(accumulator.result([f"g.{name}" for name in names]))
        return values

    def _state_of(self, aggregate: Aggregate, accumulator: Accumulator) -> tuple[str, ...]:
        """Return names of the columns of an aggregate's state, which aggregates of the same values share."""
        condition = aggregate.condition.index if isinstance(aggregate.condition, Column) else None
        arguments = tuple(part.index for part in aggregate.arguments if isinstance(part, Column))
        weight = "w" if condition is None else f"iif(c{condition}, w, 0)"
        delta = accumulator.delta([f"c{index}" for index in arguments], weight)
        for state in self._states:
            if (state.empty, state.delta) == (accumulator.empty, delta):
                return state.names
        names = self._names(len(delta))
        own, added = [f"g{self.number}.{name}" for name in names], [f"excluded.{name}" for name in names]
        self._states.append(_State(names, accumulator.empty, delta, accumulator.merged(own, added)))
        bulk = accumulator.bulk
        self._contributions.append(None if bulk is None else Contribution(arguments, condition, bulk))
        return names

    def _sides(self, plan: Counted) -> str:
        """Return SQL of the count of a row in `EXCEPT` or `INTERSECT`."""
        left, right = self._names(2)
        side = f"c{len(plan.types)}"
        delta = (f"sum(iif({side} = 0, w, 0))", f"sum(iif({side} = 1, w, 0))")
        own = tuple(f"g{self.number}.{name} + excluded.{name}" for name in (left, right))
        self._states.append(_State((left, right), ("0", "0"), delta, own))
        if plan.operator is SetOperator.EXCEPT:
            return f"max(g.{left} - g.{right}, 0)" if plan.is_all else f"(g.{left} > 0 AND g.{right} = 0)"
        return f"min(g.{left}, g.{right})" if plan.is_all else f"(g.{left} > 0 AND g.{right} > 0)"

    def _names(self, count: int) -> tuple[str, ...]:
        begin = sum(len(state.names) for state in self._states)
        return tuple(f"s{begin + index}" for index in range(count))

    def _table_columns(self) -> str:
        return ", ".join([*(self._keys or ["one"]), "n", *(name for state in self._states for name in state.names)])

    def _write(self, values: Sequence[str], weight: str) -> None:
        """Build the statements of a tick."""
        group, changes = f"g{self.number}", f"temp.u{self.number}"
        keys = names_of(range(len(self._keys)))
        deltas = ", ".join(["sum(w)", *(part for state in self._states for part in state.delta)])
        grouping = f"GROUP BY {keys}" if keys else "HAVING count(*) > 0"
        self._fill = f"INSERT INTO {changes} SELECT {keys or '0'}, {deltas} FROM {{source}} {grouping}"
        kinds = zip(self._keys, self._kinds, strict=True)
        self._target = ", ".join(same(key, kind) for key, kind in kinds) or "one"
        merged = [
            f"{name} = {part}" for state in self._states for name, part in zip(state.names, state.merged, strict=True)
        ]
        self._merge = (
            f"INSERT INTO {group} SELECT * FROM {changes} WHERE true ON CONFLICT({self._target})"
            f" DO UPDATE SET {', '.join([f'n = {group}.n + excluded.n', *merged])}"
        )
        pairs = [
            (same(f"g.{key}", kind), same(f"u.{key}", kind)) for key, kind in zip(self._keys, self._kinds, strict=True)
        ]
        match = " AND ".join(f"{own} = {other}" for own, other in pairs) or "g.one = u.one"
        outputs = [*(f"g.{key}" for key in self._keys), *values] or ["NULL"]
        shown = ", ".join(f"{text} AS c{index}" for index, text in enumerate(outputs))
        source = f"{changes} u CROSS JOIN {group} g ON {match}"
        some = f" WHERE {weight} > 0" if weight != "1" else ""
        self._before = f"INSERT INTO temp.r{self.number} SELECT {shown}, -{weight} FROM {source}{some}"
        self._after = f"INSERT INTO temp.r{self.number} SELECT {shown}, {weight} FROM {source}{some}"
        self._rowids = f"SELECT g.rowid FROM {source}"
        self._one = f"SELECT {shown}, {weight} FROM {group} g WHERE g.rowid = ?"

    def prepare(self) -> None:
        """Create the tables of groups."""
        group = f"g{self.number}"
        self.connection.execute(f"CREATE TABLE {group}({self._table_columns()})")
        self.connection.execute(f"CREATE UNIQUE INDEX {group}_key ON {group}({self._target})")
        self.connection.execute(f"CREATE INDEX {group}_none ON {group}(n) WHERE n = 0")
        if not self._keys:
            empty = ", ".join(["0", "0", *(part for state in self._states for part in state.empty)])
            self.connection.execute(f"INSERT INTO {group} SELECT {empty}")
        for multiset in self._multisets:
            multiset.create()

    def drop(self) -> None:
        """Drop all tables."""
        super().drop()
        for table in (f"g{self.number}", f"temp.u{self.number}", f"temp.r{self.number}"):
            self.connection.execute(f"DROP TABLE IF EXISTS {table}")
        for multiset in self._multisets:
            multiset.drop()

    def update(self, tick: Tick) -> None:
        """Compute changes of groups."""
        execute = self.connection.execute
        (source,) = self.inputs
        execute(f"DELETE FROM temp.u{self.number}")
        if not self._read_join(source, tick):
            self._contribute(self.changed(source), source.count)
        table = self.changed(source)
        execute(f"DELETE FROM temp.r{self.number}")
        if not self.is_new:
            self._show(self._before, tick, -1)
        execute(self._merge)
        for multiset in self._multisets:
            multiset.merge(table)
        if self._keys:
            execute(f"DELETE FROM g{self.number} WHERE n = 0")
        elif self.is_new:
            execute(f"DELETE FROM temp.u{self.number}")
            execute(f"INSERT INTO temp.u{self.number} SELECT * FROM g{self.number}")
        self._show(self._after, tick, 1)
        self.settle(f"SELECT {self.columns}, w FROM temp.r{self.number}")

    @property
    def reads_join(self) -> bool:
        """Return whether first rows may be those of a join that does not store its rows."""
        return self._bulk is not None and not self._multisets

    def _read_join(self, source: Operator, tick: Tick) -> bool:
        """Compute the contribution of a join that does not store its rows; return False if its rows are stored."""
        if self._bulk is None or not isinstance(source, LinearOperator) or not source.is_deferred:
            return False
        rows = None
        with suppress(SqlError):  # each row with an error is found below
            rows = self._bulk.rows_of_join(self.connection, source.outputs or (), source.first_values)
        if rows is None:
            source.store(tick)
            self.connection.execute(self._fill.replace("{source}", self.changed(source)))
        else:
            self._add(rows)
        return True

    def _contribute(self, source: str, count: int) -> None:
        """Compute the contribution of changes to groups."""
        rows = None
        if self._bulk is not None and count >= _MANY:
            rows = self._bulk.rows(self.connection, source)
        if rows is None:
            self.connection.execute(self._fill.replace("{source}", source))
        else:
            self._add(rows)

    def _add(self, rows: Sequence[Row]) -> None:
        """Insert the contributions of changes to groups: keys, number of rows, and states."""
        first = "" if self._keys else "0, "
        marks = ", ".join("?" * (len(self._keys) + 1 + sum(len(state.names) for state in self._states)))
        self.connection.executemany(f"INSERT INTO temp.u{self.number} VALUES ({first}{marks})", rows)

    def _show(self, statement: str, tick: Tick, weight: int) -> None:
        """Add rows of the changed groups; after an error in a value, group by group."""
        execute = self.connection.execute
        try:
            execute(statement)
            return
        except SqlError:
            pass
        execute(f"DELETE FROM temp.r{self.number} WHERE w {'<' if weight < 0 else '>'} 0")
        rows: list[Row] = []
        for (rowid,) in execute(self._rowids).fetchall():
            try:
                rows += [(*row, weight * times) for row, times in weighted(execute(self._one, (rowid,)).fetchall())]
            except SqlError as exc:
                tick.fail(self.number, exc, weight)
        marks = ", ".join("?" * (self.width + 1))
        self.connection.executemany(f"INSERT INTO temp.r{self.number} VALUES ({marks})", rows)
