"""A few tables, of which a real PostgreSQL and our planner are asked the same."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from postgres_server import server
from psycopg import Connection
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult
from typing_extensions import override

from derive.algebra.relation import GlobalId
from derive.algebra.types import ARRAYS, Row, Type
from derive.compute.oneshot import evaluate
from derive.errors import SqlError
from derive.functions.types.pg_type import OID_OF
from derive.functions.types.type_info import INFOS, datum_of_text, text_function
from derive.sql.parser.parse import parse
from derive.sql.parser.statement import SelectStatement
from derive.sql.planner.interfaces import NamedColumn, NamedRelation, Names, RelationKind
from derive.sql.planner.plan import plan_query
from derive.sql.planner.planned import PlannedQuery, bind

_TABLES = {
    "t": (("a", Type.INTEGER), ("b", Type.BIGINT), ("c", Type.TEXT), ("d", Type.DOUBLE), ("e", Type.BOOLEAN)),
    "u": (("a", Type.INTEGER), ("f", Type.TEXT), ("n", Type.NUMERIC), ("j", Type.JSONB)),
    "d": (
        ("dt", Type.DATE),
        ("ts", Type.TIMESTAMP),
        ("tz", Type.TIMESTAMPTZ),
        ("iv", Type.INTERVAL),
        ("by", Type.BYTEA),
        ("s", Type.SMALLINT),
        ("A", Type.INTEGER),
    ),
    "ty": (
        ("id", Type.UUID),
        ("at", Type.TIME),
        ("ip", Type.INET),
        ("net", Type.CIDR),
        ("mac", Type.MACADDR),
        ("ids", Type.UUID_ARRAY),
    ),
}
_ROWS: dict[str, list[tuple[str | None, ...]]] = {
    "t": [
        ("1", "10", "x", "1.5", "t"),
        ("2", "20", "y", None, "f"),
        ("2", "30", None, "2.5", None),
        (None, "40", "x", "-1", "t"),
        ("3", "10", "z", "0", "f"),
    ],
    "u": [
        ("1", "p", "1.1", '{"k": 1}'),
        ("2", "q", "2.25", "[1, 2]"),
        ("2", None, None, "null"),
        ("5", "x", "7", None),
        (None, "r", "0", '{"k": {"z": [3]}}'),
    ],
    "d": [
        ("2020-01-31", "2020-01-31 10:11:12.5", "2020-02-03 10:00:00+00", "1 day 02:03:00", "\\x01ff", "7", "1"),
        (None, None, None, None, None, None, "2"),
    ],
    "ty": [
        (
            *("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "12:30:05.5", "10.0.0.1/8", "10.0.0.0/8", "08:00:2b:01:02:03"),
            "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11,NULL}",
        ),
        ("00000000-0000-0000-0000-000000000001", "24:00:00", "10.0.0.1", "10.0.0.1/32", "ff:ff:ff:ff:ff:ff", "{}"),
        ("00000000-0000-0000-0000-000000000001", "00:00:00", "::1", "2001:db8::/32", "00:00:00:00:00:00", None),
        (None, None, None, None, None, None),
    ],
}
_TYPES = {
    16: Type.BOOLEAN,
    21: Type.SMALLINT,
    23: Type.INTEGER,
    20: Type.BIGINT,
    701: Type.DOUBLE,
    1700: Type.NUMERIC,
    25: Type.TEXT,
    1043: Type.TEXT,
    1042: Type.TEXT,
    17: Type.BYTEA,
    3802: Type.JSONB,
    1082: Type.DATE,
    1114: Type.TIMESTAMP,
    1184: Type.TIMESTAMPTZ,
    1186: Type.INTERVAL,
    **{info.oid: kind for kind, info in INFOS.items()},
    **{OID_OF[kind]: kind for kind in ARRAYS},
}


@dataclass(frozen=True)
class Description:
    """What is known of a statement before it runs: columns and types of parameters."""

    columns: list[tuple[str, Type]]
    parameters: list[Type]


@dataclass(frozen=True)
class Refusal:
    """Why it cannot run. PostgreSQL does not always say where."""

    sqlstate: str
    offset: int | None


Shown: TypeAlias = list[tuple[str | None, ...]]


class SampleNames(Names):
    @override
    def lookup(self, schema: str | None, name: str) -> NamedRelation | None:
        if name not in _TABLES or schema not in {None, "public"}:
            return None
        columns = tuple(NamedColumn(*column) for column in _TABLES[name])
        return NamedRelation([*_TABLES].index(name), name, columns, RelationKind.TABLE)

    @override
    def candidates(self) -> Iterable[str]:
        return _TABLES


def planned(text: str) -> PlannedQuery:
    statement = parse(text)
    assert isinstance(statement, SelectStatement)
    return plan_query(statement.query, SampleNames())


def description(text: str) -> Description | Refusal:
    """What our planner says of a query."""
    try:
        query = planned(text)
    except SqlError as error:
        return Refusal(error.sqlstate, error.offset)
    return Description([(column.name, column.type) for column in query.columns], list(query.parameters))


def contents(relation: GlobalId, _wanted: Collection[int] = ()) -> Iterator[list[Row]]:
    name = [*_TABLES][relation]
    yield [
        tuple(
            None if text is None else datum_of_text(kind, text)
            for text, (_, kind) in zip(row, _TABLES[name], strict=True)
        )
        for row in _ROWS[name]
    ]


def rows(text: str) -> Shown | str:
    """The rows of a query as text, or the SQLSTATE."""
    query = planned(text)
    try:
        bound = bind(query, [])
        batches = [*evaluate(bound.relation, bound.finishing, contents)]
    except SqlError as error:
        return error.sqlstate
    texts = [text_function(column.type, column.modifier) for column in query.columns]
    return _texts([row for batch in batches for row in batch], texts)


def shown(data: Iterable[Row], types: list[Type]) -> Shown:
    """Rows as text."""
    return _texts(data, [text_function(kind) for kind in types])


def _texts(data: Iterable[Row], texts: list[Callable[[Any], str]]) -> Shown:
    return [
        tuple(None if datum is None else text(datum) for text, datum in zip(texts, row, strict=True)) for row in data
    ]


@cache
def _connection() -> Connection[object]:
    connection = server().connect(dbname="postgres")
    connection.execute("DROP DATABASE IF EXISTS planner")
    connection.execute("CREATE DATABASE planner TEMPLATE template0")
    connection.close()
    connection = server().connect(dbname="planner")
    atexit.register(connection.close)
    for setting in ("timezone = 'UTC'", "intervalstyle = 'postgres'", "bytea_output = 'hex'"):
        connection.execute(f"SET {setting}".encode())
    for name, columns in _TABLES.items():
        definitions = ", ".join(f'"{column}" {kind.value}' for column, kind in columns)
        connection.execute(f"CREATE TABLE {name} ({definitions})".encode())
        for row in _ROWS[name]:
            connection.execute(f"INSERT INTO {name} VALUES ({', '.join(['%s'] * len(row))})".encode(), row)
    return connection


def postgres_description(text: str) -> Description | Refusal:
    """What PostgreSQL says of a query."""
    connection = _connection().pgconn
    prepared = connection.prepare(b"", text.encode())
    if prepared.status != ExecStatus.COMMAND_OK:
        sqlstate = prepared.error_field(DiagnosticField.SQLSTATE)
        position = prepared.error_field(DiagnosticField.STATEMENT_POSITION)
        assert sqlstate is not None
        return Refusal(sqlstate.decode(), int(position) - 1 if position else None)
    described = connection.describe_prepared(b"")
    columns = []
    for index in range(described.nfields):
        name = described.fname(index)
        assert name is not None
        columns.append((name.decode(), _TYPES[described.ftype(index)]))
    return Description(columns, [_TYPES[described.param_type(index)] for index in range(described.nparams)])


def postgres_rows(text: str) -> Shown | str:
    """The rows of a query in PostgreSQL as text, or the SQLSTATE."""
    result = _connection().pgconn.exec_(text.encode())
    if result.status != ExecStatus.TUPLES_OK:
        sqlstate = result.error_field(DiagnosticField.SQLSTATE)
        assert sqlstate is not None
        return sqlstate.decode()
    return _shown(result)


def postgres_outcome(text: str, table: str) -> tuple[Shown, Shown]:
    """What a statement returns in PostgreSQL, and all rows of a table afterwards; it is rolled back."""
    connection = _connection()
    connection.execute("BEGIN")
    try:
        returned = _shown(connection.pgconn.exec_(text.encode()))
        rows_after = postgres_rows(f"SELECT * FROM {table}")
        assert not isinstance(rows_after, str)
        return returned, rows_after
    finally:
        connection.execute("ROLLBACK")


def _shown(result: PGresult) -> Shown:
    return [
        tuple(
            None if (value := result.get_value(row, column)) is None else value.decode()
            for column in range(result.nfields)
        )
        for row in range(result.ntuples)
    ]
