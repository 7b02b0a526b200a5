"""Reports of the trading company as maintained views, whose rows DuckDB and one-time evaluation compute too."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
from changing import Changing
from trade_reports import REPORTS
from trade_rows import COLUMNS, Trade
from trade_rows import Row as TradeRow
from typing_extensions import override

from derive.algebra.expression_parts import gets_of
from derive.algebra.relation import Finishing, Get, GlobalId
from derive.algebra.types import Row, Type
from derive.compute.instance import Instance
from derive.compute.oneshot import evaluate
from derive.functions.types.type_info import datum_of_text, text_function
from derive.sql.parser.parse import parse
from derive.sql.parser.statement import SelectStatement
from derive.sql.planner.interfaces import NamedColumn, NamedRelation, Names, RelationKind
from derive.sql.planner.plan import PlannedView, plan_view

_TYPES = {"integer": Type.INTEGER, "text": Type.TEXT, "date": Type.DATE}


def columns_of(table: str) -> list[tuple[str, Type]]:
    """Return names and types of a table's columns."""
    pairs = [part.split() for part in re.split(r",(?!\d)", COLUMNS[table])]
    return [(name, _TYPES.get(kind, Type.NUMERIC)) for name, kind in pairs]


class TradeNames(Names):
    """The tables of the trading company; a table's identifier is its number."""

    @override
    def lookup(self, schema: str | None, name: str) -> NamedRelation | None:
        if name not in COLUMNS:
            return None
        columns = tuple(NamedColumn(column, kind) for column, kind in columns_of(name))
        return NamedRelation(1 + [*COLUMNS].index(name), name, columns, RelationKind.TABLE)

    @override
    def candidates(self) -> Iterable[str]:
        return COLUMNS


@cache
def report(number: int) -> PlannedView:
    """Return a report as a view."""
    statement = parse(REPORTS[number])
    assert isinstance(statement, SelectStatement)
    return plan_view(statement.query, TradeNames())


def data_of(table: str, row: TradeRow) -> Row:
    """Return a row as the engine keeps it."""
    pairs = zip(row, columns_of(table), strict=True)
    return tuple(value if isinstance(value, int) else datum_of_text(kind, str(value)) for value, (_, kind) in pairs)


class TradeViews:
    """An instance that maintains reports, and a DuckDB with the same tables.

    Attributes:
        trade: the rows.
        collections: the tables over time, by identifier.
        instance: the instance.
        time: the latest time.
    """

    def __init__(self, scale: float) -> None:
        self.trade = Trade(scale)
        self.time = 1
        self.instance = Instance()
        self.collections: dict[GlobalId, Changing] = {}
        self._duckdb = duckdb.connect()
        for number, table in enumerate(COLUMNS, start=1):
            rows = self.trade.tables[table]
            collection = self.collections[number] = Changing([kind for _, kind in columns_of(table)])
            collection.change(1, [(data_of(table, row), 1) for row in rows])
            collection.seal(2)
            self._duckdb.execute(f"CREATE TABLE {table} ({COLUMNS[table]})")
            self._load(table, rows)

    def _load(self, table: str, rows: Sequence[TradeRow]) -> None:
        names = [name for name, _ in columns_of(table)]
        loaded = pa.table(dict(zip(names, map(pa.array, zip(*rows, strict=True)), strict=True)))
        self._duckdb.register("loaded", loaded)
        self._duckdb.execute(f"INSERT INTO {table} SELECT * FROM loaded")

    def close(self) -> None:
        """Close both databases."""
        self.instance.close()
        self._duckdb.close()

    def maintain(self, number: int) -> None:
        """Maintain a report."""
        relation = report(number).relation
        inputs = {get.id: self.collections[get.id].since(self.time) for get in gets_of(relation)}
        self.instance.maintain(100 + number, relation, self.time, inputs)

    def settle(self) -> None:
        """Work until there is no more work."""
        while self.instance.step():
            pass

    def change(self, count: int) -> None:
        """Change the rows at a new time, without work of the instance."""
        self.time += 1
        for table, removed, added in self.trade.change(count):
            changes = [(data_of(table, row), -1) for row in removed] + [(data_of(table, row), 1) for row in added]
            self.collections[1 + [*COLUMNS].index(table)].change(self.time, changes)
            keys = [name for name, _ in columns_of(table)]
            match = " AND ".join(f"{name} = ?" for name in keys)
            if removed and table in {"orders", "lines"}:
                gone = ", ".join({str(row[0]) for row in removed})
                self._duckdb.execute(f"DELETE FROM {table} WHERE {keys[0]} IN ({gone})")
            else:
                self._duckdb.executemany(f"DELETE FROM {table} WHERE {match}", [list(row) for row in removed])
            if added:
                self._load(table, added)
        for collection in self.collections.values():
            collection.seal(self.time + 1)

    def maintained(self, number: int) -> Counter[Row]:
        """Return the rows of a view at the latest time."""
        view = Get(100 + number, report(number).relation.types)
        return Counter(row for batch in self.instance.peek(view, as_of=self.time) for row in batch)

    def evaluated(self, number: int) -> Counter[Row]:
        """Return the rows of a one-time evaluation at the latest time."""
        relation = report(number).relation
        finishing = Finishing((), None, 0, tuple(range(len(relation.types))))
        return Counter(
            row
            for batch in evaluate(relation, finishing, lambda one, _: self.collections[one].at(self.time))
            for row in batch
        )

    def of_duckdb(self, number: int) -> list[tuple[Any, ...]]:
        """Return the rows according to DuckDB, in a comparable form."""
        return sorted(tuple(map(_comparable, row)) for row in self._duckdb.execute(REPORTS[number]).fetchall())

    def comparable(self, number: int, rows: Mapping[Row, int]) -> list[tuple[Any, ...]]:
        """Return rows of the engine in the form of `of_duckdb`."""
        kinds = report(number).relation.types
        return sorted(
            tuple(
                _comparable(None if datum is None else text_function(kind)(datum))
                for datum, kind in zip(row, kinds, strict=True)
            )
            for row, count in rows.items()
            for _ in range(count)
        )


def _comparable(value: object) -> Any:
    """Return a text; numbers are rounded, because quotients have other digits."""
    try:
        return f"{float(str(value)):.6g}"
    except ValueError:
        return str(value)
