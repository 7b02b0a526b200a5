"""The second tier: groups with an incrementally updated state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import apsw

from derive.algebra.expression import Column
from derive.algebra.relation import Aggregate, SetOperator
from derive.algebra.types import Row
from derive.compute.operators.arrangement import names_of
from derive.compute.operators.multiset import Multiset, same
from derive.compute.operators.operator import Operator, Tick, weighted
from derive.compute.plans.plan import Counted, Grouped
from derive.errors import SqlError
from derive.functions.registry import accumulator_of


@dataclass(frozen=True, slots=True)
class _State:
    """State columns of an aggregate, as SQL: initial values, changes by rows, and their merge."""

    names: tuple[str, ...]
    empty: tuple[str, ...]
    delta: tuple[str, ...]
    merged: tuple[str, ...]


class GroupsOperator(Operator):
    """Groups: for each group with changed rows, retracts the former output row and inserts the new one.

    Tables: `g` has the keys `k0`, …, the number of rows `n` and the states `s0`, … of groups; `u` the same of changes.
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
        values = self._aggregates(plan.aggregates) if isinstance(plan, Grouped) else []
        weight = "1" if isinstance(plan, Grouped) else self._sides(plan)
        self._write(values, weight)
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
            condition = aggregate.condition
            weight = f"iif(c{condition.index}, w, 0)" if isinstance(condition, Column) else "w"
            arguments = [f"c{part.index}" for part in aggregate.arguments if isinstance(part, Column)]
            names = self._names(len(accumulator.empty))
            own, added = [f"g{self.number}.{name}" for name in names], [f"excluded.{name}" for name in names]
            delta = accumulator.delta(arguments, weight)
            self._states.append(_State(names, accumulator.empty, delta, accumulator.merged(own, added)))
            values.append(accumulator.result([f"g.{name}" for name in names]))
        return values

    def _sides(self, plan: Counted) -> str:
        """Return SQL of the count of a row in a set operation."""
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
        table = self.changed(source)
        execute(f"DELETE FROM temp.u{self.number}")
        execute(self._fill.replace("{source}", table))
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

    def _show(self, statement: str, tick: Tick, weight: int) -> None:
        """Add rows of the changed groups; if a value fails, group by group."""
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
