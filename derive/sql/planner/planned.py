"""Planned queries and writes, and values for their parameters."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from derive.algebra.expression import Call, Expression, Literal, Parameter
from derive.algebra.form import Form
from derive.algebra.relation import Finishing, GlobalId, Relation
from derive.algebra.rewrite import Replacement, rewritten, rewritten_relation
from derive.algebra.types import Datum, Row, Type
from derive.errors import SqlError
from derive.functions.registry import evaluate
from derive.functions.scalar.session import USER_FUNCTIONS
from derive.sql.planner.building import among, is_membership
from derive.sql.planner.names import NamedRelation

_OF_TRANSACTION = ("now", "transaction_timestamp")
_OF_STATEMENT = "statement_timestamp"


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """A column of a result; `form` is what is known of it beyond its type."""

    name: str
    type: Type
    form: Form | None = None


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """A query as a relation, and what is done to its rows on their way.

    Attributes:
        relation: its rows, which may have more columns than are shown.
        finishing: order and columns, and limits if they are known without parameters.
        columns: of the result.
        parameters: types of `$1` and so on.
        limit: if it is not known without parameters, or negative; a bigint.
        offset: likewise.
        is_of_session: whether `now()`, `current_user` or another value that the session gives is asked for.
    """

    relation: Relation
    finishing: Finishing
    columns: tuple[PlannedColumn, ...]
    parameters: tuple[Type, ...] = ()
    limit: Expression | None = None
    offset: Expression | None = None
    is_of_session: bool = False


def bind(
    query: PlannedQuery, arguments: Sequence[Datum], now: int | None = None, user: str | None = None
) -> PlannedQuery:
    """A query whose parameters have values, and for which `now()` is one moment.

    Args:
        query: with or without parameters.
        arguments: a datum for each parameter.
        now: when its transaction began, in microseconds since 1970; None for this moment.
        user: who asks; None for nobody in particular.

    Raises:
        SqlError: 2201W or 2201X, a limit is negative.
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
    return PlannedQuery(relation, finishing, query.columns)


def in_session(expression: Expression, now: int, user: str) -> Expression:
    """An expression for which `now()` is a moment, in microseconds since 1970, and `current_user` a name."""
    return rewritten(expression, _session_values(now, user))


def _session_values(now: int | None, user: str | None) -> Replacement:
    this = time.time_ns() // 1000
    values = {name: Literal(this if now is None else now, Type.TIMESTAMPTZ) for name in _OF_TRANSACTION}
    values[_OF_STATEMENT] = Literal(this, Type.TIMESTAMPTZ)
    if user is not None:
        values |= {name: Literal(user, Type.TEXT) for name in USER_FUNCTIONS}
    return lambda part, _: values.get(part.function) if isinstance(part, Call) else None


def is_of_session(expression: Expression) -> bool:
    """Whether an expression is the time at which its transaction or its statement began, or the user's name."""
    return isinstance(expression, Call) and expression.function in {*_OF_TRANSACTION, _OF_STATEMENT, *USER_FUNCTIONS}


def bind_relation(relation: Relation, arguments: Sequence[Datum]) -> Relation:
    """A relation whose parameters have become literals."""
    return rewritten_relation(relation, _replacement(arguments))


def bind_expression(expression: Expression, arguments: Sequence[Datum]) -> Expression:
    """An expression whose parameters have become literals."""
    return rewritten(expression, _replacement(arguments))


def _replacement(arguments: Sequence[Datum]) -> Replacement:
    def replacement(part: Expression, depth: int) -> Expression | None:
        if isinstance(part, Parameter):
            return Literal(arguments[part.index], part.type)
        if isinstance(part, Call) and is_membership(part) and isinstance(part.arguments[1], Parameter):
            return among(replace(part, arguments=tuple(rewritten(one, replacement, depth) for one in part.arguments)))
        return None

    return replacement


def _count(count: Expression, arguments: Sequence[Datum], sqlstate: str, clause: str) -> int | None:
    value = evaluate(bind_expression(count, arguments))
    if isinstance(value, int) and value < 0:
        raise SqlError(sqlstate, f"{clause} must not be negative")
    return value if isinstance(value, int) else None


class WriteKind(Enum):
    """What is done to a table."""

    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True)
class PlannedWrite:
    """The rows that go and come, each as often as it does.

    Attributes:
        kind: of the statement.
        table: that is written.
        query: its columns are those of a row that goes (of UPDATE and DELETE), of one that comes (of INSERT and
            UPDATE), and what is returned.
        returning: columns of the statement's result; None if it has none.
        reads: what the query reads.
    """

    kind: WriteKind
    table: NamedRelation
    query: PlannedQuery
    returning: tuple[PlannedColumn, ...] | None
    reads: frozenset[GlobalId]

    def parts(self, row: Row) -> tuple[Row | None, Row | None, Row]:
        """Of a row of the query, the row that goes, the one that comes, and what is returned."""
        width = len(self.table.columns)
        if self.kind is WriteKind.UPDATE:
            return row[:width], row[width : 2 * width], row[2 * width :]
        if self.kind is WriteKind.DELETE:
            return row[:width], None, row[width:]
        return None, row[:width], row[width:]


def check_rows(table: NamedRelation, rows: Iterable[Row]) -> None:
    """Rows that come must have values in all columns that are NOT NULL.

    Raises:
        SqlError: 23502, one has not.
    """
    required = [index for index, column in enumerate(table.columns) if not column.is_nullable]
    for row in rows if required else ():
        for index in required:
            if row[index] is None:
                column = f'column "{table.columns[index].name}" of relation "{table.name}"'
                raise SqlError("23502", f"null value in {column} violates not-null constraint")
