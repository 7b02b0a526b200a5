"""The third and fourth operator tiers: relations that are recomputed for changed keys, or as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import apsw

from derive.algebra.expression import Column, Expression
from derive.algebra.relation import Filter, Get, TopK
from derive.algebra.types import Row
from derive.compute.operators.arrangement import copies
from derive.compute.operators.operator import Operator, Tick
from derive.compute.plans.plan import Keyed, Plan, Recomputed, Source, inputs_of
from derive.compute.sqlite import names, select_of
from derive.errors import SqlError
from derive.functions.registry import sql_of


def _inputs_by_id(plan: Keyed | Recomputed) -> dict[int, int]:
    """Return, for each relation that a plan reads, the index of the plan's input."""
    by_id = {-1 - index: index for index in range(len(plan.inputs))}
    by_id |= {source.id: index for index, source in enumerate(plan.inputs) if isinstance(source, Source)}
    return by_id


class EvaluatedOperator(Operator):
    """The common part of keyed and recomputed operators: tables over which their relation is evaluated.

    Table `o`, followed by the index of an input, has the rows before the tick; table `p` has the rows after it.
    """

    plan: Keyed | Recomputed

    def __init__(
        self, connection: apsw.Connection, number: int, plan: Keyed | Recomputed, inputs: Sequence[Operator]
    ) -> None:
        super().__init__(connection, number, plan, inputs)
        by_plan: dict[Plan, Operator] = dict(zip(inputs_of(plan), inputs, strict=True))
        self._sources = [by_plan[source] for source in plan.inputs]
        self._by_id = _inputs_by_id(plan)
        for side in "op":
            for index, source in enumerate(self._sources):
                connection.execute(f"CREATE TEMP TABLE {side}{number}_{index}({source.columns}, w)")
        self._selects: dict[tuple[str, ...], str] = {}

    def arranged_inputs(self) -> Sequence[Operator]:
        """Return all inputs."""
        return self._sources

    def drop(self) -> None:
        """Drop all tables."""
        super().drop()
        for side in "op":
            for index in range(len(self._sources)):
                self.connection.execute(f"DROP TABLE IF EXISTS temp.{side}{self.number}_{index}")

    def _evaluation(self, tables: Sequence[str]) -> str:
        """Return the SQL of the relation over tables of rows with their counts."""
        key = tuple(tables) + tuple(self._copied(table) for table in tables)
        if key not in self._selects:
            self._selects[key] = select_of(self.plan.relation, self._table_form(tables, key[len(tables) :]))
        return self._selects[key]

    def _copied(self, table: str) -> str:
        """Return `copied` if a table has a row with a count other than one, and an empty text otherwise."""
        return "copied" if self.connection.execute(f"SELECT EXISTS(SELECT 1 FROM {table} WHERE w <> 1)").get else ""

    def _table_form(self, tables: Sequence[str], copied: Sequence[str]) -> Callable[[Get], str]:
        def table(get: Get) -> str:
            index = self._by_id[get.id]
            return copies(tables[index], self._sources[index].width) if copied[index] else tables[index]

        return table

    def _after(self, index: int, before: str) -> str:
        """Return the table of an input's rows after its changes, from the table of rows before the changes."""
        source = self._sources[index]
        if self.is_new:
            return self.changed(source)
        if not source.is_dirty or source.is_applied:
            return before
        table, columns = f"temp.p{self.number}_{index}", source.columns
        self.connection.execute(f"DELETE FROM {table}")
        self.connection.execute(
            f"INSERT INTO {table} SELECT {columns}, sum(w) FROM (SELECT {columns}, w FROM {before} UNION ALL"
            f" SELECT {columns}, w FROM {source.changes}) GROUP BY {columns} HAVING sum(w) <> 0"
        )
        return table

    def _recorded(self, causes: Sequence[str]) -> list[tuple[str, str, str, int]]:
        """Return recorded errors of this operator for some causes: cause, SQLSTATE, message, and count."""
        return [
            (cause, str(sqlstate), str(message), int(weight or 0))
            for cause in causes
            for sqlstate, message, weight in self.connection.execute(
                "SELECT sqlstate, message, w FROM errors WHERE operator = ? AND cause = ?", (self.number, cause)
            )
        ]


def retract(tick: Tick, number: int, recorded: Sequence[tuple[str, str, str, int]]) -> None:
    """Retract recorded errors of an operator."""
    for cause, sqlstate, message, weight in recorded:
        key = (number, cause, sqlstate, message)
        tick.errors[key] = tick.errors.get(key, 0) - weight


class KeyedOperator(EvaluatedOperator):
    """For each key with changed rows, retracts the former output rows and inserts the new output rows."""

    plan: Keyed

    def __init__(self, connection: apsw.Connection, number: int, plan: Keyed, inputs: Sequence[Operator]) -> None:
        super().__init__(connection, number, plan, inputs)
        self._keys = [[sql_of(part, lambda column: f"x.c{column.index}") for part in key] for key in plan.keys]
        width = len(plan.keys[0])
        self._key_columns = ", ".join(f"k{index}" for index in range(width))
        connection.execute(f"CREATE TEMP TABLE k{number}({self._key_columns})")
        for index, key in list(enumerate(plan.keys))[1:]:  # a subquery looks up rows of the later inputs
            columns = ", ".join(f"({sql_of(part, lambda column: f'c{column.index}')})" for part in key)
            for side in "op":
                name = f"{side}{number}_{index}"
                connection.execute(f"CREATE INDEX temp.{name}_key ON {name}({columns})")

    def drop(self) -> None:
        """Drop all tables."""
        super().drop()
        self.connection.execute(f"DROP TABLE IF EXISTS temp.k{self.number}")

    def lookups(self) -> Iterator[tuple[Operator, Sequence[Expression]]]:
        """Return the key of each input."""
        return zip(self._sources, self.plan.keys, strict=True)

    def update(self, tick: Tick) -> None:
        """Compute changes for changed keys; after an error in the relation, key by key."""
        if self.is_new:
            try:
                self.settle(f"SELECT *, 1 AS w FROM ({self._evaluation([self.changed(one) for one in self._sources])})")
                return
            except SqlError:
                pass
        self._choose_keys()
        try:
            self.settle(self._difference())
        except SqlError:
            self._settle_singly(tick)
        else:
            self._retract_chosen(tick)

    def _choose_keys(self) -> None:
        keys = [
            f"SELECT {', '.join(key)} FROM {self.changed(source)} x{self._having_rows(index)}"
            for index, (source, key) in enumerate(zip(self._sources, self._keys, strict=True))
            if self.is_new or source.is_dirty
        ]
        self.connection.execute(f"DELETE FROM temp.k{self.number}")
        self.connection.execute(f"INSERT INTO temp.k{self.number} {' UNION '.join([*keys, keys[0]])}")

    def _having_rows(self, index: int) -> str:
        """Return a condition for changed keys of an input: rows of a subquery matter only if the filter has rows."""
        arrangement = self._sources[0].arrangement
        if index == 0 or self.is_new or arrangement is None or not isinstance(self.plan.relation, Filter):
            return ""
        outer = [sql_of(part, lambda column: f"y.c{column.index}") for part in self.plan.keys[0]]
        match = " AND ".join(f"{left} IS {right}" for left, right in zip(outer, self._keys[index], strict=True))
        return f" WHERE EXISTS (SELECT 1 FROM {arrangement.table} y WHERE {match})"

    def _difference(self) -> str:
        """Return SQL of the difference between output rows after and before, for the chosen keys."""
        before, after = [], []
        for index, source in enumerate(self._sources):
            rows = "" if self.is_new or source.arrangement is None else source.arrangement.table
            changes = self.changed(source) if self.is_new or source.is_dirty else ""
            before.append(self._chosen("o", index, [rows]))
            after.append(self._chosen("p", index, [rows, changes]))
        return (
            f"SELECT *, -1 AS w FROM ({self._evaluation(before)})"
            f" UNION ALL SELECT *, 1 AS w FROM ({self._evaluation(after)})"
        )

    def _chosen(self, side: str, index: int, tables: Sequence[str]) -> str:
        """Fill a table with the rows of an input that have a chosen key, from several tables."""
        source, table = self._sources[index], f"temp.{side}{self.number}_{index}"
        match = " AND ".join(f"{part} IS k.k{number}" for number, part in enumerate(self._keys[index]))
        parts = [
            f"SELECT {names(source.width, 'x.')}, x.w FROM temp.k{self.number} k CROSS JOIN {one} x ON {match}"
            for one in tables
            if one
        ]
        self.connection.execute(f"DELETE FROM {table}")
        if parts:
            self.connection.execute(
                f"INSERT INTO {table} SELECT {source.columns}, sum(w) FROM ({' UNION ALL '.join(parts)})"
                f" GROUP BY {source.columns} HAVING sum(w) <> 0"
            )
        return table

    def _settle_singly(self, tick: Tick) -> None:
        """Compute changes of the keys that have a value, and errors of the other keys."""
        execute = self.connection.execute
        keys = execute(f"SELECT {self._key_columns} FROM temp.k{self.number}").fetchall()
        counts: dict[Row, int] = {}
        for key in keys:
            execute(f"DELETE FROM temp.k{self.number}")
            execute(f"INSERT INTO temp.k{self.number} VALUES ({', '.join('?' * len(key))})", key)
            self._difference()
            retract(tick, self.number, self._recorded([repr(key)]))
            for side, weight in (("o", -1), ("p", 1)):
                tables = [f"temp.{side}{self.number}_{index}" for index in range(len(self._sources))]
                try:
                    for row in execute(self._evaluation(tables)).fetchall():
                        counts[row] = counts.get(row, 0) + weight
                except SqlError as exc:
                    if weight > 0:
                        tick.fail(self.number, exc, 1, repr(key))
        self.take(counts)

    def _retract_chosen(self, tick: Tick) -> None:
        """Retract the errors of the chosen keys."""
        if self.connection.execute("SELECT 1 FROM errors WHERE operator = ? LIMIT 1", (self.number,)).get is None:
            return
        keys = self.connection.execute(f"SELECT {self._key_columns} FROM temp.k{self.number}").fetchall()
        retract(tick, self.number, self._recorded([repr(key) for key in keys]))


class RecomputedOperator(EvaluatedOperator):
    """Inserts all present rows and retracts all former rows."""

    plan: Recomputed
    read_last: frozenset[Operator] = frozenset()
    """Inputs whose former rows no later operator needs."""

    def lookups(self) -> Iterator[tuple[Operator, Sequence[Expression]]]:
        """Return the first sort key of a `LIMIT`, by which the first rows are looked up."""
        relation = self.plan.relation
        if isinstance(relation, TopK) and relation.order and isinstance(relation.order[0].expression, Column):
            yield self._sources[0], [relation.order[0].expression]

    def update(self, tick: Tick) -> None:
        """Compute changes; if the relation fails, retract all rows and record an error."""
        tables = []
        for index, source in enumerate(self._sources):
            arranged = source.arrangement.table if source.arrangement is not None else ""
            if source in self.read_last:
                source.apply(tick.time)
            tables.append(self._after(index, arranged))
        retract(tick, self.number, self._recorded([""]))
        before = ""
        if not self.is_new:
            assert self.arrangement is not None
            before = f"SELECT {self.columns}, -w AS w FROM {self.arrangement.table}"
        try:
            now = f"SELECT *, 1 AS w FROM ({self._evaluation(tables)})"
            self.settle(f"{now} UNION ALL {before}" if before else now)
        except SqlError as exc:
            tick.fail(self.number, exc, 1)
            self.settle(before or f"SELECT {self.columns}, w FROM {self.changes} WHERE 0")
