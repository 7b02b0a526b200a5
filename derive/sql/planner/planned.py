"""Planned queries and writes, and the binding of their parameters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import repeat
from operator import itemgetter
from typing import TypeAlias, final, overload

from derive.algebra.expression import Call, Column, Expression, Literal, Parameter
from derive.algebra.relation import Constant, Finishing, Get, GlobalId, Project, Relation
from derive.algebra.rewrite import Replacement, mentions, rewritten, rewritten_relation, with_gets
from derive.algebra.types import Datum, Row, Type, TypeModifier
from derive.errors import SqlError
from derive.functions.registry import PRESENT, READ_TIME, USER_FUNCTIONS, evaluate
from derive.functions.types.type_info import text_function
from derive.sql.planner.building import TRIM, among, is_membership
from derive.sql.planner.interfaces import STAGED, Constraint, NamedColumn, NamedRelation
from derive.sql.planner.origins import Origin

_OF_STATEMENT = "statement_timestamp"
_OF_SESSION = frozenset({*PRESENT, *USER_FUNCTIONS, READ_TIME})


_PASSING = frozenset({None, 1})
"""Values of a check that is not false; True equals 1."""


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """A result column; `modifier` is its type modifier, and `origin` the column that it shows unchanged."""

    name: str
    type: Type
    modifier: TypeModifier | None = None
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """A query as a relation, and the finishing of its rows.

    Attributes:
        relation: the rows, which may have more columns than the result.
        finishing: order, columns, and the limits that are known without parameters.
        columns: result columns.
        parameters: types of `$1` and so on.
        limit: a limit that depends on parameters, or is negative; a bigint.
        offset: an offset that depends on parameters, or is negative; a bigint.
        is_of_session: whether the query uses `now()`, `mz_now()`, `current_user` or another value of the session.
        needs_context: whether the query reads system relations, or calls functions of the session.
    """

    relation: Relation
    finishing: Finishing
    columns: tuple[PlannedColumn, ...]
    parameters: tuple[Type, ...] = ()
    limit: Expression | None = None
    offset: Expression | None = None
    is_of_session: bool = False
    needs_context: bool = False


def bind(
    query: PlannedQuery, arguments: Sequence[Datum], now: int | None = None, user: str | None = None
) -> PlannedQuery:
    """Bind the parameters and session values of a query, without `mz_now()`, which is the time of the read.

    Args:
        query: the query.
        arguments: a datum for each parameter.
        now: start of the transaction, in microseconds since 1970; None for the present.
        user: name of the user; None if unknown.

    Raises:
        SqlError: a limit is negative (2201W or 2201X).
    """
    relation = bind_relation(query.relation, arguments) if query.parameters else query.relation
    if query.is_of_session:
        relation = rewritten_relation(relation, _session_values(now, user))
    finishing = query.finishing
    if query.limit is not None:
        limit = _count(query.limit, arguments, "2201W", "LIMIT")
        finishing = replace(finishing, limit=limit)
    if query.offset is not None:
        offset = _count(query.offset, arguments, "2201X", "OFFSET")
        finishing = replace(finishing, offset=offset or 0)
    return replace(query, relation=relation, finishing=finishing, parameters=(), limit=None, offset=None)


def in_session(expression: Expression, now: int, user: str) -> Expression:
    """Bind `now()` and `mz_now()` to a time in microseconds since 1970, and `current_user` to a name."""
    values = _session_values(now, user)
    this = Literal(now, Type.TIMESTAMPTZ)
    return rewritten(expression, lambda part, depth: this if is_read_time(part) else values(part, depth))


def is_read_time(expression: Expression) -> bool:
    """Return whether an expression is the time of the read."""
    return isinstance(expression, Call) and expression.function == READ_TIME


def of_read(relation: Relation) -> Relation:
    """Return a relation in which `now()` is the time of the read, as in a view."""

    def replacement(part: Expression, _: int) -> Expression | None:
        is_present = isinstance(part, Call) and part.function in PRESENT
        return Call(READ_TIME, (), part.type) if is_present else None

    return rewritten_relation(relation, replacement) if mentions(relation, is_of_session) else relation


def _session_values(now: int | None, user: str | None) -> Replacement:
    this = time.time_ns() // 1000
    values = {name: Literal(this if now is None else now, Type.TIMESTAMPTZ) for name in PRESENT}
    values[_OF_STATEMENT] = Literal(this, Type.TIMESTAMPTZ)
    if user is not None:
        values |= {name: Literal(user, Type.TEXT) for name in USER_FUNCTIONS}
    return lambda part, _: values.get(part.function) if isinstance(part, Call) else None


def is_of_session(expression: Expression) -> bool:
    """Return whether an expression is the time of the transaction, statement or read, or the name of the user."""
    return isinstance(expression, Call) and expression.function in _OF_SESSION


def bind_relation(relation: Relation, arguments: Sequence[Datum]) -> Relation:
    """Return a relation whose parameters are literals."""
    return rewritten_relation(relation, _replacement(arguments))


def bind_expression(expression: Expression, arguments: Sequence[Datum]) -> Expression:
    """Return an expression whose parameters are literals."""
    return rewritten(expression, _replacement(arguments))


def _replacement(arguments: Sequence[Datum]) -> Replacement:
    def replacement(part: Expression, depth: int) -> Expression | None:
        if isinstance(part, Parameter):
            return Literal(arguments[part.index], part.type)
        if isinstance(part, Call) and is_membership(part) and isinstance(part.arguments[1], Parameter):
            return among(replace(part, arguments=tuple(rewritten(one, replacement, depth) for one in part.arguments)))
        if isinstance(part, Call) and part.function == TRIM and isinstance(part.arguments[0], Parameter):
            literal = Literal(arguments[part.arguments[0].index], Type.TEXT)
            return Literal(evaluate(replace(part, arguments=(literal, *part.arguments[1:]))), Type.TEXT)
        return None

    return replacement


def _count(count: Expression, arguments: Sequence[Datum], sqlstate: str, clause: str) -> int | None:
    value = evaluate(bind_expression(count, arguments))
    if isinstance(value, int) and value < 0:
        raise SqlError(sqlstate, f"{clause} must not be negative")
    return value if isinstance(value, int) else None


class WriteKind(Enum):
    """The kind of a write."""

    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    MERGE = "MERGE"


@dataclass(frozen=True, slots=True)
class PlannedConflict:
    """ON CONFLICT of an INSERT.

    Attributes:
        arbiters: keys whose violation leads to the action; empty for all keys.
        update: query of the updated rows for DO UPDATE; None for DO NOTHING. It reads the staged rows: the existing
            row, followed by the row proposed for insertion. Its columns are those of an UPDATE.
    """

    arbiters: tuple[Constraint, ...]
    update: PlannedQuery | None = None


Written: TypeAlias = tuple[Row | None, Row | None, Row]
"""A deleted row, an inserted row, and the RETURNING row."""


@final
@dataclass(frozen=True, slots=True)
class NewRows(Sequence[Written]):
    """Inserted rows without RETURNING, and without an object for each.

    Attributes:
        rows: the inserted rows.
    """

    rows: Sequence[Row]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Written: ...

    @overload
    def __getitem__(self, index: slice) -> NewRows: ...

    def __getitem__(self, index: int | slice) -> Written | NewRows:
        return NewRows(self.rows[index]) if isinstance(index, slice) else (None, self.rows[index], ())

    def __iter__(self) -> Iterator[Written]:
        return zip(repeat(None), self.rows, repeat(()), strict=False)


@dataclass(frozen=True, slots=True)
class PlannedWrite:
    """The rows that a statement deletes and inserts, with multiplicity.

    The columns of the rows are the columns of the deleted row (UPDATE and DELETE), of the inserted row (INSERT and
    UPDATE), of RETURNING, and a boolean for each check of the table. MERGE has the columns of UPDATE, and in front of
    RETURNING the kind of the row's action, as a text, and a number that tells equal rows of the table apart.

    Attributes:
        kind: kind of the statement.
        table: the table.
        query: query of the rows; with a completion, of the staged rows.
        returning: result columns; None without RETURNING.
        reads: relations that the queries read.
        completion: query of the rows over the staged rows; None if no column needs it.
        numbered: for each column that may get a number from a counter: indexes of the column in the table and in staged
            rows, and of a boolean in staged rows that is true if the column gets a number.
        conflict: ON CONFLICT clause.
    """

    kind: WriteKind
    table: NamedRelation
    query: PlannedQuery
    returning: tuple[PlannedColumn, ...] | None
    reads: frozenset[GlobalId]
    completion: PlannedQuery | None = None
    numbered: tuple[tuple[int, int, int], ...] = ()
    conflict: PlannedConflict | None = None

    def over_rows(self) -> PlannedWrite | None:
        """Return the write of one row of parameters as a write of staged rows of arguments; None for other writes."""
        types = self.query.parameters
        relation = _over_rows(self.query.relation, Get(STAGED, types))
        if relation is None:
            return None
        return replace(self, query=replace(self.query, relation=relation, parameters=()))

    def over(self, replacement: Callable[[Get], Relation]) -> PlannedWrite:
        """Return the write over other relations."""
        completion, conflict = with_gets((self.completion, self.conflict), replacement)
        return replace(self, query=with_gets(self.query, replacement), completion=completion, conflict=conflict)

    def parts(self, rows: Sequence[Row], kind: WriteKind | None = None) -> Sequence[Written]:
        """Split rows: the deleted row, the inserted row, and the RETURNING row of each."""
        width = len(self.table.columns)
        kind = kind or self.kind
        if kind is WriteKind.DELETE:
            return [(row[:width], None, row[width:]) for row in rows]
        checks = len(self.table.checks)
        if kind is WriteKind.MERGE:
            return [_merged(row, width, len(row) - checks) for row in rows]
        if kind is WriteKind.INSERT and rows and len(rows[0]) == width:
            return NewRows(rows)
        if kind is WriteKind.UPDATE:
            return [(row[:width], row[width : 2 * width], row[2 * width : len(row) - checks]) for row in rows]
        if self.returning is None:
            return NewRows([row[:width] for row in rows])
        return [(None, row[:width], row[width : len(row) - checks]) for row in rows]

    def check(self, rows: Sequence[Row], kind: WriteKind | None = None) -> None:
        """Check the inserted rows.

        Raises:
            SqlError: a value of a NOT NULL column is NULL (23502), a check is false (23514), or MERGE changes a row
                twice (21000).
        """
        kind = kind or self.kind
        if kind is WriteKind.DELETE:
            return
        if kind is WriteKind.MERGE:
            width = len(self.table.columns)
            _check_once(rows, width)
            self.check([row for row in rows if row[2 * width] != WriteKind.DELETE.value], WriteKind.UPDATE)
            return
        checks = self.table.checks
        first = len(self.table.columns) if kind is WriteKind.UPDATE else 0
        required = [index for index, column in enumerate(self.table.columns, first) if not column.is_nullable]
        if any(None in map(itemgetter(index), rows) for index in required):
            check_rows(self.table, (new for _, new, _ in self.parts(rows, kind) if new is not None))
        is_failing = any(not _PASSING.issuperset(map(itemgetter(-place), rows)) for place in range(1, len(checks) + 1))
        for row in rows if is_failing else ():
            for check, is_satisfied in zip(checks, row[-len(checks) :], strict=True):
                if is_satisfied is not None and not is_satisfied:
                    raise failed_check(self.table, check, self.parts([row], kind)[0][1] or ())


def _merged(row: Row, width: int, end: int) -> Written:
    """Return the deleted and the inserted row of a row of MERGE, and its RETURNING row, which ends at `end`."""
    kind = row[2 * width]
    old = None if kind == WriteKind.INSERT.value else row[:width]
    new = None if kind == WriteKind.DELETE.value else row[width : 2 * width]
    return old, new, row[2 * width + 2 : end]


def _check_once(rows: Sequence[Row], width: int) -> None:
    """Check that no row of a table of `width` columns is changed twice by MERGE."""
    changed = [(row[2 * width + 1], row[:width]) for row in rows if row[2 * width] != WriteKind.INSERT.value]
    if len(changed) > len(set(changed)):
        hint = "Ensure that not more than one source row matches any one target row."
        raise SqlError("21000", "MERGE command cannot affect row a second time", hint=hint)


def _over_rows(relation: Relation, arguments: Get) -> Relation | None:
    """Return a relation of one row of parameters as a relation of rows of arguments; None for other relations."""

    def replacement(part: Expression, _: int) -> Expression | None:
        return Column(part.index, part.type) if isinstance(part, Parameter) else None

    match relation:
        case Project(input=Constant(rows=((),)), expressions=expressions):
            return Project(arguments, tuple(rewritten(part, replacement) for part in expressions))
        case Project(input=source):
            below = _over_rows(source, arguments)
            return below and replace(relation, input=below)
    return None


@dataclass(frozen=True, slots=True)
class PlannedWithWrites:
    """A WITH clause with writes, and the main statement.

    Attributes:
        writes: the writes, in order; the RETURNING rows of number n are the relation `returned_id(n)` of later parts.
        main: the main statement.
        parameters: types of `$1` and so on.
    """

    writes: tuple[PlannedWrite, ...]
    main: PlannedWrite | PlannedQuery
    parameters: tuple[Type, ...]


def returned_id(number: int) -> GlobalId:
    """Return the identifier of the RETURNING rows of a write in WITH."""
    return STAGED - 1 - number


def check_rows(table: NamedRelation, rows: Iterable[Row]) -> None:
    """Check that inserted rows have values in all NOT NULL columns.

    Raises:
        SqlError: a value is NULL (23502).
    """
    required = [index for index, column in enumerate(table.columns) if not column.is_nullable]
    for row in rows if required else ():
        for index in required:
            if row[index] is None:
                column = f'column "{table.columns[index].name}" of relation "{table.name}"'
                message = f"null value in {column} violates not-null constraint"
                violation = table.violation(column=table.columns[index].name)
                raise SqlError("23502", message, detail=_failing(table, row), violation=violation)


def failed_check(table: NamedRelation, check: Constraint, row: Row) -> SqlError:
    """Return the error of a row for which a check is false."""
    if check.domain is not None:
        return check.domain.violation(check.name)
    message = f'new row for relation "{table.name}" violates check constraint "{check.name}"'
    return SqlError("23514", message, detail=_failing(table, row), violation=table.violation(check.name))


def _failing(table: NamedRelation, row: Row) -> str:
    return f"Failing row contains ({', '.join(texts_of(table.columns, row))})."


def texts_of(columns: Sequence[NamedColumn], values: Row) -> list[str]:
    """Return values of columns as messages show them."""
    return [
        "null" if value is None else text_function(column.type, column.modifier)(value)
        for column, value in zip(columns, values, strict=True)
    ]
