"""One-time evaluation of queries, also recursive ones, over rows that are fetched for the query."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import count, islice
from operator import is_, itemgetter
from typing import Any, TypeAlias, TypeVar

import apsw

from derive.algebra.expression import Call, Column, Expression, Literal, OuterColumn
from derive.algebra.relation import Constant, Filter, Finishing, Get, GlobalId, Project, Recurring, Recursion, Relation
from derive.algebra.rewrite import has_subquery, rewritten_relation
from derive.algebra.types import Datum, Row
from derive.compute.sqlite import connect, finished_select, names, select_of, translated
from derive.errors import SqlError
from derive.functions.registry import READ_TIME
from derive.functions.statement_context import cancellation, running

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Loop:
    """A recursion whose rows are collected in a table.

    Attributes:
        id: negative identifier; in `recursion.step`, the identifier stands for the rows of the last round; in all other
            places, for all rows.
        recursion: the recursion, with inner recursions replaced by tables.
    """

    id: GlobalId
    recursion: Recursion

    @property
    def table(self) -> str:
        """Return the table of its rows."""
        return table_of(Get(self.id, self.recursion.types))

    @property
    def latest(self) -> str:
        """Return a SELECT in parentheses of the rows after number `:mark`."""
        return f"(SELECT {names(len(self.recursion.types))} FROM {self.table} WHERE rowid > :mark)"

    def statements(self, table: Callable[[Get], str]) -> tuple[str, str]:
        """Return SELECTs of the first rows, and of a step's rows from the rows after number `:mark`."""
        step = select_of(self.recursion.step, lambda get: self.latest if get.id == self.id else table(get))
        return select_of(self.recursion.base, table), step

    def fill(
        self,
        connection: apsw.Connection,
        statements: tuple[str, str],
        most_bytes: int | None,
        cancelled: Callable[[], None],
    ) -> Iterator[int]:
        """Create the table, and insert rows step by step.

        Args:
            connection: connection with the tables that the statements read.
            statements: statements of this loop.
            most_bytes: maximum size of all tables together; None for no limit.
            cancelled: called before each step; raises to end.

        Yields:
            The number after which the newest rows are.
        """
        width = len(self.recursion.types) or 1
        connection.execute(f"CREATE TABLE {self.table}({names(width)})")
        if self.recursion.is_distinct:
            # A unique index treats NULLs as distinct.
            columns = ", ".join(f"c{index} IS NULL, ifnull(c{index}, 0)" for index in range(width))
            name = self.table.removeprefix("temp.")
            connection.execute(f"CREATE UNIQUE INDEX temp.{name}_once ON {name}({columns})")
        mark, (statement, step) = 0, statements
        while True:
            cancelled()
            before = _last(connection, self.table)
            connection.execute(f"INSERT OR IGNORE INTO {self.table} {statement}", {"mark": mark})
            if _last(connection, self.table) == before:
                return
            if most_bytes is not None and _bytes(connection) > most_bytes:
                hint = (
                    "Give WITH RECURSIVE a condition under which it ends, or raise the limit with --max-result-bytes."
                )
                raise SqlError("54000", f"a recursive query has more than {most_bytes} bytes", hint=hint)
            yield before
            mark, statement = before, step


def table_of(get: Get) -> str:
    """Return the table of a recursion's rows."""
    return f"temp.recursion{-get.id}"


def _last(connection: apsw.Connection, table: str) -> int:
    number: int | None = connection.execute(f"SELECT max(rowid) FROM {table}").get
    return number or 0


def _bytes(connection: apsw.Connection) -> int:
    pages: int = connection.execute("PRAGMA temp.page_count").get
    size: int = connection.execute("PRAGMA temp.page_size").get
    return pages * size


_LEAVES = (Get, Constant, Column, OuterColumn, Literal)
"""Parts of relations that contain no relation."""


_FIELDS: dict[type[Any], tuple[str, ...]] = {}
"""Names of the fields of each class that may contain relations."""


def _names_of_fields(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of the fields of parts of a class that may contain relations; none for other classes."""
    if kind not in _FIELDS:
        is_part = is_dataclass(kind) and kind not in _LEAVES
        _FIELDS[kind] = tuple(item.name for item in fields(kind)) if is_part else ()
    return _FIELDS[kind]


def unrolled(node: T) -> tuple[T, list[Loop]]:
    """Replace recursions in a node by tables; return the node, and the loops that fill the tables, in order."""
    loops: list[Loop] = []
    ids = count(-1, -1)
    known: dict[Recursion, Get] = {}

    def of(part: Any, around: Mapping[int, Get]) -> Any:
        if isinstance(part, Recurring):
            return around[part.id]
        if isinstance(part, Recursion):
            if part not in known:
                get = Get(next(ids), part.types)
                base, step = of(part.base, around), of(part.step, {**around, part.id: get})
                loops.append(Loop(get.id, replace(part, base=base, step=step)))
                known[part] = get
            return known[part]
        if isinstance(part, tuple):
            others = [of(one, around) for one in part]
            return part if all(map(is_, others, part)) else tuple(others)
        changed = {}
        for name in _names_of_fields(type(part)):
            one = getattr(part, name)
            other = of(one, around)
            if other is not one:
                changed[name] = other
        return replace(part, **changed) if changed else part

    rewritten: T = of(node, {})
    return rewritten, loops


def loop_of(loops: Collection[Loop], get: Get) -> Loop | None:
    """Return the loop of a node; None if the node is not a recursion."""
    return next((loop for loop in loops if loop.id == get.id), None)


def at_time(relation: Relation, time: int) -> Relation:
    """Return a relation in which the time of the read is a literal.

    Args:
        relation: the relation.
        time: the time, in microseconds since 1970.
    """

    def replacement(part: Expression, _: int) -> Expression | None:
        return Literal(time, part.type) if isinstance(part, Call) and part.function == READ_TIME else None

    return rewritten_relation(relation, replacement)


Contents: TypeAlias = Callable[[GlobalId, Collection[int]], Iterator[list[Row]]]
"""A function that returns the rows of a collection in batches; columns without a request may have any value."""

BATCH_ROWS = 1000
"""Maximum number of rows in a batch of a result."""

_RESTING: list[apsw.Connection] = []
"""Idle connections without tables."""
_MOST_RESTING, _MOST_PAGES = 4, 1000
"""Maximum number of idle connections, and of pages in one of them, because SQLite does not release the memory."""

_ROW_BYTES = 24
_DATUM_BYTES = 8


def evaluate(
    relation: Relation,
    finishing: Finishing,
    contents: Contents,
    most_bytes: int | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[list[Row]]:
    """Yield the rows of a query.

    If each row of the result depends on one row of one collection, and no order is requested, result rows are yielded
    while later rows are fetched, and no rows are stored. For other queries, the columns that the query reads are stored
    during the evaluation, on disk if they are large.

    Args:
        relation: a relation without parameters.
        finishing: the final processing of its rows.
        contents: returns the rows of collections.
        most_bytes: maximum size of the result; None for no limit.
        cancelled: called from time to time in the thread that consumes the rows; True ends the query.

    Yields:
        Rows in batches.

    Raises:
        SqlError: the query was cancelled (57014), the result is too large (54000), or an expression fails.
    """
    written = _written(relation, finishing)
    if written is not None:
        yield from limited(
            (written[begin : begin + BATCH_ROWS] for begin in range(0, len(written), BATCH_ROWS)), most_bytes
        )
        return
    picked = None if finishing.order else _picked(relation)
    if picked is not None:
        with translated():
            rows = _evaluate_picked(*picked, finishing, contents, cancelled)
            yield from limited(interrupted(rows, cancelled), most_bytes)
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
    """Yield the same batches; functions that work long on one value check for cancellation."""
    while True:
        with running(cancelled):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _written(relation: Relation, finishing: Finishing) -> list[Row] | None:
    """Return the rows of a query that consists of literals, as most INSERTs do; None for other queries."""
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
    """Yield a connection that evaluates a query. Idle connections are reused, because creating one is slow."""
    try:
        connection = _RESTING.pop()
    except IndexError:
        connection = connect("")
    yield connection
    # A query that ends early may have open statements: then the connection is not reused.
    connection.set_progress_handler(None)
    for (name,) in connection.execute("SELECT name FROM temp.sqlite_schema WHERE type = 'table'").fetchall():
        connection.execute(f"DROP TABLE temp.{name}")
    pages: int = connection.execute("PRAGMA temp.page_count").get
    if pages <= _MOST_PAGES and len(_RESTING) < _MOST_RESTING:
        _RESTING.append(connection)


def limited(batches: Iterator[list[Row]], most_bytes: int | None) -> Iterator[list[Row]]:
    """Yield the same batches while their total size is within the limit.

    Raises:
        SqlError: the limit is exceeded (54000).
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
    """Return the approximate size of a row in bytes."""
    return _ROW_BYTES + sum(len(datum) if isinstance(datum, str | bytes) else _DATUM_BYTES for datum in row)


def _only_source(relation: Relation) -> Get | None:
    """Return the only source if every row of the result depends on one row of this source; None otherwise."""
    match relation:
        case Get():
            return relation
        case Project(input=source, expressions=expressions):
            return None if any(map(has_subquery, expressions)) else _only_source(source)
        case Filter(input=source, predicate=predicate):
            return None if has_subquery(predicate) else _only_source(source)
        case _:
            return None


def _picked(relation: Relation) -> tuple[Get, list[int]] | None:
    """Return the source of a relation that consists of columns of one source, and these columns; otherwise None."""
    match relation:
        case Get(id=identifier) if identifier >= 0:
            return relation, list(range(len(relation.types)))
        case Project(input=source, expressions=expressions):
            below = _picked(source)
            columns = [part.index for part in expressions if isinstance(part, Column) and part.index >= 0]
            if below is not None and len(columns) == len(expressions):
                return below[0], [below[1][index] for index in columns]
    return None


def _evaluate_picked(
    source: Get, columns: Sequence[int], finishing: Finishing, contents: Contents, cancelled: Callable[[], bool]
) -> Iterator[list[Row]]:
    """Yield columns of the rows of a source."""
    read = [columns[index] for index in finishing.columns]
    pick = itemgetter(*read) if len(read) > 1 else None

    def batches() -> Iterator[list[Row]]:
        for batch in contents(source.id, sorted(set(read))):
            _check(cancelled)
            if pick is not None:
                yield list(map(pick, batch))
            else:
                yield [tuple([row[index] for index in read]) or (None,) for row in batch]

    yield from _within(batches(), finishing)


class _Tables:
    """Temporary tables for the sources of a query, with the columns that the SQL mentions.

    Lowering names the tables.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._gets: dict[GlobalId, Get] = {}

    def name(self, get: Get) -> str:
        """Return the table of a source."""
        if get.id < 0:
            return table_of(get)
        self._gets[get.id] = get
        return f"temp.g{get.id}"

    def create(
        self, statements: Sequence[str]
    ) -> Iterator[tuple[GlobalId, Sequence[int], Callable[[list[Row]], None]]]:
        """Create the tables that statements read.

        Yields:
            For each source, its identifier, the columns that are read, and a function that inserts rows.
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
            named = ", ".join(f"c{index}" for index in read) or "c0"
            self._connection.execute(f"CREATE TABLE {table}({named})")
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
    """Yield the rows of a cursor in batches."""
    while batch := list(islice(cursor, BATCH_ROWS)):
        yield batch
        if len(batch) < BATCH_ROWS:
            return


def _within(batches: Iterator[list[Row]], finishing: Finishing) -> Iterator[list[Row]]:
    """Yield the rows within the limit and the offset as soon as each row is fetched."""
    skipped, required = finishing.offset, finishing.limit
    if required == 0:
        return
    for rows in batches:
        kept = rows[skipped:]
        skipped = max(0, skipped - len(rows))
        if required is not None:
            kept = kept[:required]
            required -= len(kept)
        if kept:
            yield kept
        if required == 0:
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
