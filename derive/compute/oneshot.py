"""A query that is evaluated once, over rows that are fetched for it and forgotten afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import TypeAlias

import apsw

from derive.compute.algebra.relation import Filter, Finishing, Get, GlobalId, Project, Relation
from derive.compute.algebra.types import Datum, Row
from derive.compute.lowering.block import names
from derive.compute.lowering.connection import cancellation, connect, translated
from derive.compute.lowering.expressions import has_subquery
from derive.compute.lowering.query import finished_select
from derive.errors import SqlError

Contents: TypeAlias = Callable[[GlobalId], Iterator[list[Row]]]
"""Rows of what is known under an identifier, in batches."""

BATCH_ROWS = 1000
"""So many rows a batch of a result has at most."""

_ROW_BYTES = 24
_DATUM_BYTES = 8


def evaluate(
    relation: Relation,
    finishing: Finishing,
    contents: Contents,
    most_bytes: int | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[list[Row]]:
    """The rows of a query.

    Where each row of the result comes of one row of one collection, and no order is asked for, rows come while others
    are still fetched, and nothing is kept. Else the columns that the query reads are kept while it is evaluated, on
    disk if they are many.

    Args:
        relation: without parameters.
        finishing: what becomes of its rows.
        contents: rows of what it is about.
        most_bytes: so much may be in the result; None for any amount.
        cancelled: asked now and then whether to end; from the thread that consumes the rows.

    Yields:
        Rows in batches.

    Raises:
        SqlError: 57014, it was cancelled; 54000, the result is too large; or what evaluating its expressions raises.
    """
    source = None if finishing.order else _only_source(relation)
    with connect("") as connection, translated():
        connection.set_progress_handler(cancelled, 20_000)
        if source is None:
            batches = _evaluate_kept(connection, relation, finishing, contents, cancelled)
        else:
            batches = _evaluate_passing(connection, relation, finishing, source, contents, cancelled)
        yield from limited(batches, most_bytes)


def limited(batches: Iterator[list[Row]], most_bytes: int | None) -> Iterator[list[Row]]:
    """The same batches, as long as they are not too large together.

    Raises:
        SqlError: 54000, they are.
    """
    size = 0
    for batch in batches:
        if most_bytes is not None:
            size += sum(map(_size, batch))
            if size > most_bytes:
                hint = "Ask for fewer rows or columns, or raise the limit with --max-result-bytes."
                raise SqlError("54000", f"the result has more than {most_bytes} bytes", hint=hint)
        yield batch


def _size(row: Row) -> int:
    """Roughly how many bytes a row takes."""
    return _ROW_BYTES + sum(len(datum) if isinstance(datum, str | bytes) else _DATUM_BYTES for datum in row)


def _only_source(relation: Relation) -> Get | None:
    """What is read, if every row of the result comes of one row of it, and expressions have no subqueries."""
    match relation:
        case Get():
            return relation
        case Project(input=source, expressions=expressions):
            return None if any(map(has_subquery, expressions)) else _only_source(source)
        case Filter(input=source, predicate=predicate):
            return None if has_subquery(predicate) else _only_source(source)
        case _:
            return None


class _Tables:
    """Temporary tables for what a query reads: named as it is lowered, with the columns that it then mentions."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._gets: dict[GlobalId, Get] = {}

    def name(self, get: Get) -> str:
        """The table for something."""
        self._gets[get.id] = get
        return f"temp.g{get.id}"

    def create(self, sql: str) -> Iterator[tuple[GlobalId, Callable[[list[Row]], None]]]:
        """Make the tables that a statement reads.

        Yields:
            For each, its identifier and what inserts rows.
        """
        mentioned = {(int(get), f"t{alias}") for get, alias in re.findall(r"\btemp\.g(\d+) AS t(\d+)\b", sql)}
        for identifier, get in self._gets.items():
            aliases = {alias for other, alias in mentioned if other == identifier}
            read = sorted({int(column) for alias, column in re.findall(r"\b(t\d+)\.c(\d+)\b", sql) if alias in aliases})
            table = self.name(get)
            self._connection.execute(f"CREATE TABLE {table}({names(len(get.types))})")
            yield identifier, self._inserter(table, read)

    def _inserter(self, table: str, read: Sequence[int]) -> Callable[[list[Row]], None]:
        columns = ", ".join(f"c{index}" for index in read) or "c0"
        insert = f"INSERT INTO {table}({columns}) VALUES ({', '.join('?' * max(1, len(read)))})"
        choose: Callable[[Row], Sequence[Datum]]
        if len(read) > 1:
            choose = itemgetter(*read)
        elif read:
            choose = lambda row: row[read[0] : read[0] + 1]  # noqa: E731
        else:
            choose = lambda row: (None,)  # noqa: E731

        def insert_rows(rows: list[Row]) -> None:
            with self._connection:
                self._connection.executemany(insert, map(choose, rows))

        return insert_rows


def _evaluate_kept(
    connection: apsw.Connection,
    relation: Relation,
    finishing: Finishing,
    contents: Contents,
    cancelled: Callable[[], bool],
) -> Iterator[list[Row]]:
    tables = _Tables(connection)
    sql = finished_select(relation, finishing, tables.name)
    for identifier, insert in tables.create(sql):
        for batch in contents(identifier):
            _check(cancelled)
            insert(batch)
    yield from fetched(connection.execute(sql))


def fetched(cursor: apsw.Cursor) -> Iterator[list[Row]]:
    """The rows of a cursor in batches."""
    batch: list[Row] = []
    for row in cursor:
        batch.append(row)
        if len(batch) >= BATCH_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def _evaluate_passing(
    connection: apsw.Connection,
    relation: Relation,
    finishing: Finishing,
    source: Get,
    contents: Contents,
    cancelled: Callable[[], bool],
) -> Iterator[list[Row]]:
    tables = _Tables(connection)
    every = Finishing((), None, 0, finishing.columns)
    sql = finished_select(relation, every, tables.name)
    ((identifier, insert),) = tables.create(sql)
    skipped, wanted = finishing.offset, finishing.limit
    if wanted == 0:
        return
    for batch in contents(identifier):
        _check(cancelled)
        insert(batch)
        for rows in fetched(connection.execute(sql)):
            kept = rows[skipped:]
            skipped = max(0, skipped - len(rows))
            if wanted is not None:
                kept = kept[:wanted]
                wanted -= len(kept)
            if kept:
                yield kept
            if wanted == 0:
                return
        connection.execute(f"DELETE FROM {tables.name(source)}")


def _check(cancelled: Callable[[], bool]) -> None:
    if cancelled():
        raise cancellation()
