"""A query that is evaluated once, over rows that are fetched for it and forgotten afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from operator import itemgetter
from typing import TypeAlias

import apsw

from derive.algebra.expression import Literal
from derive.algebra.expression_parts import has_subquery
from derive.algebra.relation import Constant, Filter, Finishing, Get, GlobalId, Project, Relation
from derive.algebra.types import Datum, Row
from derive.compute.recursion import loop_of, table_of, unrolled
from derive.compute.sqlite.block import names
from derive.compute.sqlite.connection import connect, translated
from derive.compute.sqlite.query import finished_select
from derive.errors import SqlError
from derive.functions.cancellation import cancellation, running

Contents: TypeAlias = Callable[[GlobalId, Collection[int]], Iterator[list[Row]]]
"""Rows of what is known under an identifier, in batches; of columns other than those asked for, anything will do."""

BATCH_ROWS = 1000
"""So many rows a batch of a result has at most."""

_RESTING: list[apsw.Connection] = []
"""Connections without any tables, which nobody uses now."""
_MOST_RESTING, _MOST_PAGES = 4, 1000
"""How many they are, and how large what was in one of them may have been, since its memory is not given back."""

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
    written = _written(relation, finishing)
    if written is not None:
        yield from limited(
            (written[begin : begin + BATCH_ROWS] for begin in range(0, len(written), BATCH_ROWS)), most_bytes
        )
        return
    source = None if finishing.order else _only_source(relation)
    with _evaluating() as connection, translated():
        connection.set_progress_handler(cancelled, 20_000)
        if source is None:
            batches = _evaluate_kept(connection, relation, finishing, contents, most_bytes, cancelled)
        else:
            batches = _evaluate_passing(connection, relation, finishing, source, contents, cancelled)
        yield from limited(interrupted(batches, cancelled), most_bytes)


def interrupted(batches: Iterator[list[Row]], cancelled: Callable[[], bool] | None) -> Iterator[list[Row]]:
    """The same batches; functions that work for long on one value ask now and then whether to end."""
    while True:
        with running(cancelled):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _written(relation: Relation, finishing: Finishing) -> list[Row] | None:
    """The rows of a query that says them all, as that of an INSERT mostly does; None if there is more to do."""
    if finishing.order or finishing.limit is not None or finishing.offset:
        return None
    rows: Sequence[Row]
    match relation:
        case Constant(rows=rows):
            pass
        case Project(input=Constant(rows=before), expressions=expressions):
            values = tuple(part.value for part in expressions if isinstance(part, Literal))
            if len(values) < len(expressions):
                return None
            rows = (values,) * len(before)
        case _:
            return None
    return [tuple([row[index] for index in finishing.columns]) for row in rows]


@contextmanager
def _evaluating() -> Iterator[apsw.Connection]:
    """A connection to evaluate a query with; one that was used before, if there is one, as to make one costs much."""
    try:
        connection = _RESTING.pop()
    except IndexError:
        connection = connect("")
    yield connection
    # Whoever ends early may have statements under way: such a connection is not used again.
    connection.set_progress_handler(None)
    for (name,) in connection.execute("SELECT name FROM temp.sqlite_schema WHERE type = 'table'").fetchall():
        connection.execute(f"DROP TABLE temp.{name}")
    pages: int = connection.execute("PRAGMA temp.page_count").get
    if pages <= _MOST_PAGES and len(_RESTING) < _MOST_RESTING:
        _RESTING.append(connection)


def limited(batches: Iterator[list[Row]], most_bytes: int | None) -> Iterator[list[Row]]:
    """The same batches, as long as they are not too large together.

    Raises:
        SqlError: 54000, they are.
    """
    return batches if most_bytes is None else _limited(batches, most_bytes)


def _limited(batches: Iterator[list[Row]], most_bytes: int) -> Iterator[list[Row]]:
    size = 0
    for batch in batches:
        size += sum(map(size_of, batch))
        if size > most_bytes:
            hint = "Ask for fewer rows or columns, or raise the limit with --max-result-bytes."
            raise SqlError("54000", f"the result has more than {most_bytes} bytes", hint=hint)
        yield batch


def size_of(row: Row) -> int:
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
        if get.id < 0:
            return table_of(get)
        self._gets[get.id] = get
        return f"temp.g{get.id}"

    def create(
        self, statements: Sequence[str]
    ) -> Iterator[tuple[GlobalId, Sequence[int], Callable[[list[Row]], None]]]:
        """Make the tables that statements read.

        Yields:
            For each, its identifier, the columns that are read, and what inserts rows.
        """
        columns: dict[GlobalId, set[int]] = {identifier: set() for identifier in self._gets}
        for sql in statements:
            ids = {alias: int(get) for get, alias in re.findall(r"\btemp\.g(\d+) AS (t\d+)\b", sql)}
            for alias, column in re.findall(r"\b(t\d+)\.c(\d+)\b", sql):
                if alias in ids:
                    columns[ids[alias]].add(int(column))
        for identifier, get in self._gets.items():
            read = sorted(columns[identifier])
            table = self.name(get)
            self._connection.execute(f"CREATE TABLE {table}({names(len(get.types))})")
            yield identifier, read, self._inserter(table, read)

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
    most_bytes: int | None,
    cancelled: Callable[[], bool],
) -> Iterator[list[Row]]:
    tables = _Tables(connection)
    (relation, finishing), loops = unrolled((relation, finishing))
    statements = [loop.statements(tables.name) for loop in loops]
    source = None if finishing.order else _only_source(relation)
    last = source and loop_of(loops, source)
    sql = finished_select(relation, finishing, tables.name)
    if last:
        every = Finishing((), None, 0, finishing.columns)
        sql = finished_select(relation, every, lambda _: last.latest)
    for identifier, read, insert in tables.create([sql, *(text for pair in statements for text in pair)]):
        for batch in contents(identifier, read):
            _check(cancelled)
            insert(batch)
    for loop, pair in zip(loops, statements, strict=True):
        steps = loop.fill(connection, pair, most_bytes, lambda: _check(cancelled))
        if loop is last:
            batches = (rows for mark in steps for rows in fetched(connection.execute(sql, {"mark": mark})))
            yield from _within(batches, finishing)
            return
        for _ in steps:
            pass
    yield from fetched(connection.execute(sql))


def fetched(cursor: apsw.Cursor) -> Iterator[list[Row]]:
    """The rows of a cursor in batches."""
    while batch := list(islice(cursor, BATCH_ROWS)):
        yield batch
        if len(batch) < BATCH_ROWS:
            return


def _within(batches: Iterator[list[Row]], finishing: Finishing) -> Iterator[list[Row]]:
    """Those rows that a limit is for; others are not waited for."""
    skipped, wanted = finishing.offset, finishing.limit
    if wanted == 0:
        return
    for rows in batches:
        kept = rows[skipped:]
        skipped = max(0, skipped - len(rows))
        if wanted is not None:
            kept = kept[:wanted]
            wanted -= len(kept)
        if kept:
            yield kept
        if wanted == 0:
            return


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
    ((identifier, read, insert),) = tables.create([sql])

    def batches() -> Iterator[list[Row]]:
        for batch in contents(identifier, read):
            _check(cancelled)
            insert(batch)
            yield from fetched(connection.execute(sql))
            connection.execute(f"DELETE FROM {tables.name(source)}")

    yield from _within(batches(), finishing)


def _check(cancelled: Callable[[], bool]) -> None:
    if cancelled():
        raise cancellation()
