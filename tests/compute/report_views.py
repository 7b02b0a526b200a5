"""Reports as maintained views, whose rows DuckDB and one-time evaluation compute too."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import duckdb
import psycopg
import pyarrow as pa
from auction_reports import AUCTION_REPORTS
from auction_rows import AUCTION_COLUMNS
from changing import Changing
from trade_reports import REPORTS
from trade_rows import COLUMNS, TableChange
from trade_rows import Row as TableRow
from typing_extensions import override

from derive.algebra.relation import Finishing, Get, GlobalId, Relation
from derive.algebra.rewrite import gets_of
from derive.algebra.types import Row, Type
from derive.compute.instance import Instance
from derive.compute.oneshot import evaluate
from derive.functions.types.type_info import datum_of_text, text_function
from derive.sql.parser.parse import parse
from derive.sql.parser.statement import SelectStatement
from derive.sql.planner.interfaces import NamedColumn, NamedRelation, Names, RelationKind
from derive.sql.planner.plan import plan_view
from derive.sql.planner.planned import of_read

_TYPES = {"integer": Type.INTEGER, "text": Type.TEXT, "date": Type.DATE, "timestamp": Type.TIMESTAMP}


def columns_of(declared: str) -> list[tuple[str, Type]]:
    """Return names and types of columns, as CREATE TABLE declares them."""
    pairs = [part.split() for part in re.split(r",(?!\d)", declared)]
    return [(name, _TYPES.get(kind, Type.NUMERIC)) for name, kind in pairs]


class DeclaredNames(Names):
    """Declared tables; the identifier of a table is its number, from 1."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._columns = columns

    @override
    def lookup(self, schema: str | None, name: str) -> NamedRelation | None:
        if name not in self._columns:
            return None
        columns = tuple(NamedColumn(column, kind) for column, kind in columns_of(self._columns[name]))
        return NamedRelation(1 + [*self._columns].index(name), name, columns, RelationKind.TABLE)

    @override
    def candidates(self) -> Iterable[str]:
        return self._columns


def relation_of(text: str, names: Names) -> Relation:
    """Return a query as the relation of a view."""
    statement = parse(text)
    assert isinstance(statement, SelectStatement)
    return of_read(plan_view(statement.query, names).relation)


class Company(Protocol):
    """Tables whose rows change."""

    tables: dict[str, list[TableRow]]

    def change(self, count: int) -> list[TableChange]:
        """Change the rows; return the removed and the added rows of each changed table."""


@dataclass(frozen=True)
class Dataset:
    """Declared tables, and reports over them.

    Attributes:
        columns: columns of each table.
        reports: queries, by number.
    """

    columns: Mapping[str, str]
    reports: Mapping[int, str]


TRADE = Dataset(COLUMNS, REPORTS)
AUCTIONS = Dataset(AUCTION_COLUMNS, AUCTION_REPORTS)


class ReportViews:
    """An instance that maintains reports, and a DuckDB with the same tables.

    Args:
        dataset: tables and reports.
        company: the rows.
        instance: the instance; None for a new one.

    Attributes:
        collections: the tables over time, by identifier.
        instance: the instance.
        time: the latest time.
    """

    def __init__(self, dataset: Dataset, company: Company, instance: Instance | None = None) -> None:
        self._dataset, self._company = dataset, company
        self._kinds = {table: columns_of(text) for table, text in dataset.columns.items()}
        names = DeclaredNames(dataset.columns)
        self._relations = {number: relation_of(text, names) for number, text in dataset.reports.items()}
        self.time = 1
        self.instance = instance or Instance()
        self.collections: dict[GlobalId, Changing] = {}
        self._duckdb = duckdb.connect()
        for number, (table, kinds) in enumerate(self._kinds.items(), start=1):
            rows = company.tables[table]
            collection = self.collections[number] = Changing([kind for _, kind in kinds])
            collection.change(1, [(self._data_of(table, row), 1) for row in rows])
            collection.seal(2)
            self._duckdb.execute(f"CREATE TABLE {table} ({dataset.columns[table]})")
            self._load(table, rows)

    def _data_of(self, table: str, row: TableRow) -> Row:
        """Return a row as the engine keeps it."""
        pairs = zip(row, self._kinds[table], strict=True)
        return tuple(value if isinstance(value, int) else datum_of_text(kind, str(value)) for value, (_, kind) in pairs)

    def _load(self, table: str, rows: Sequence[TableRow]) -> None:
        names = [name for name, _ in self._kinds[table]]
        loaded = pa.table(dict(zip(names, map(pa.array, zip(*rows, strict=True)), strict=True)))
        self._duckdb.register("loaded", loaded)
        self._duckdb.execute(f"INSERT INTO {table} SELECT * FROM loaded")

    def close(self) -> None:
        """Close both databases."""
        self.instance.close()
        self._duckdb.close()

    def maintain(self, number: int) -> None:
        """Maintain a report."""
        relation = self._relations[number]
        inputs = {get.id: self.collections[get.id].movable(self.time) for get in gets_of(relation)}
        self.instance.maintain(100 + number, relation, self.time, inputs)

    def settle(self) -> None:
        """Work until there is no more work."""
        while self.instance.step():
            pass

    def change(self, count: int) -> None:
        """Change the rows at a new time, without work of the instance."""
        self.time += 1
        for table, removed, added in self._company.change(count):
            changes = [(self._data_of(table, row), -1) for row in removed] + [
                (self._data_of(table, row), 1) for row in added
            ]
            self.collections[1 + [*self._kinds].index(table)].change(self.time, changes)
            names = [name for name, _ in self._kinds[table]]
            match = " AND ".join(f"{name} = ?" for name in names)
            if removed and table in {"orders", "lines"}:
                gone = ", ".join({str(row[0]) for row in removed})
                self._duckdb.execute(f"DELETE FROM {table} WHERE {names[0]} IN ({gone})")
            elif removed:
                self._duckdb.executemany(f"DELETE FROM {table} WHERE {match}", [list(row) for row in removed])
            if added:
                self._load(table, added)
        for collection in self.collections.values():
            collection.seal(self.time + 1)

    def maintained(self, number: int) -> Counter[Row]:
        """Return the rows of a view at the latest time."""
        view = Get(100 + number, self._relations[number].types)
        return Counter(row for batch in self.instance.peek(view, as_of=self.time) for row in batch)

    def evaluated(self, number: int) -> Counter[Row]:
        """Return the rows of a one-time evaluation at the latest time."""
        relation = self._relations[number]
        finishing = Finishing((), None, 0, tuple(range(len(relation.types))))
        return Counter(
            row
            for batch in evaluate(relation, finishing, lambda one, _: self.collections[one].at(self.time))
            for row in batch
        )

    def of_duckdb(self, number: int) -> list[tuple[Any, ...]]:
        """Return the rows according to DuckDB, in a comparable form."""
        return sorted(
            tuple(map(_comparable, row)) for row in self._duckdb.execute(self._dataset.reports[number]).fetchall()
        )

    def of_postgres(self, number: int, connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
        """Return the rows according to PostgreSQL, in the form of `of_duckdb`."""
        with connection.transaction(force_rollback=True):
            for table, declared in self._dataset.columns.items():
                connection.execute(f"CREATE TEMP TABLE {table} ({declared})")
                with connection.cursor().copy(f"COPY {table} FROM STDIN") as copy:
                    for row in self._company.tables[table]:
                        copy.write_row(row)
            rows = connection.execute(self._dataset.reports[number].replace("%", "%%"), ()).fetchall()
        return sorted(tuple(map(_comparable, row)) for row in rows)

    def comparable(self, number: int, rows: Mapping[Row, int]) -> list[tuple[Any, ...]]:
        """Return rows of the engine in the form of `of_duckdb`."""
        kinds = self._relations[number].types
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
