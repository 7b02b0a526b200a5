"""COPY in binary format, held against a real PostgreSQL: the same bytes out, and the same rows and refusals in."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from postgres_server import server
from psycopg import Connection, Error

from derive.algebra.types import Row, Type
from derive.errors import SqlError
from derive.functions.types.type_info import datum_of_text, text_of
from derive.sql.copy_format import BinaryCopyIn, BinaryCopyOut
from derive.sql.outcome import ResultColumn
from derive.sql.pg_types import OID_OF

EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "60"))
SAME = "FLOW_LAW_EXAMPLES" not in os.environ  # what PostgreSQL does is not told by us: one run is like the other
TYPES = (Type.TEXT, Type.INTEGER, Type.BOOLEAN, Type.NUMERIC, Type.TIMESTAMPTZ, Type.JSONB, Type.INTERVAL)
COLUMNS = [ResultColumn(f"c{index}", kind, OID_OF[kind]) for index, kind in enumerate(TYPES)]
VALUES = (
    ["", "a b", "é€", "\\N", "x" * 300],
    ["-1", "0", "2147483647"],
    ["t", "f"],
    ["0", "-12.340", "1e30", "NaN", "0.00001"],
    ["2024-02-29 12:00:00.000001+00", "infinity", "1999-12-31 23:59:59+00"],
    ['{"k": [1, null]}', "7", "null"],
    ["1 mon 2 days 00:00:03", "-00:00:01"],
)
ROWS = st.lists(
    st.tuples(
        *(
            st.none() | st.sampled_from([datum_of_text(kind, text) for text in texts])
            for kind, texts in zip(TYPES, VALUES, strict=True)
        )
    ),
    max_size=4,
)
CUTS = st.lists(st.integers(0, 40), max_size=6)
LAW = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=SAME,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Connection]:
    with server().connect() as connection:
        columns = ", ".join(f"{column.name} {column.type.value}" for column in COLUMNS)
        connection.execute(f"CREATE TEMP TABLE b ({columns})".encode())
        connection.execute("SET timezone = 'UTC'")
        connection.commit()
        connection.autocommit = True
        yield connection


def written(rows: list[Row], columns: list[ResultColumn] = COLUMNS) -> bytes:
    out = BinaryCopyOut(columns)
    return b"".join(out.lines(rows)) + out.end()


def read(data: bytes, cuts: list[int], columns: list[ResultColumn] = COLUMNS) -> list[Row]:
    reader, rows = BinaryCopyIn("b", columns), list[Row]()
    for size in cuts:
        rows += reader.feed(data[:size])
        data = data[size:]
    return rows + reader.feed(data) + reader.finish()


def shown(rows: list[Row]) -> list[tuple[str | None, ...]]:
    return [
        tuple(None if datum is None else text_of(kind, datum) for kind, datum in zip(TYPES, row, strict=False))
        for row in rows
    ]


def in_postgres(
    connection: Connection, data: bytes, columns: list[ResultColumn] = COLUMNS
) -> list[tuple[str | None, ...]] | str:
    """The rows that PostgreSQL reads, or the SQLSTATE with which it refuses them."""
    connection.execute("TRUNCATE b")
    names = ", ".join(column.name for column in columns)
    try:
        with (
            connection.cursor() as cursor,
            cursor.copy(f"COPY b ({names}) FROM STDIN (FORMAT binary)".encode()) as copy,
        ):
            copy.write(data)
        texts = ", ".join(f"{column.name}::text" for column in columns).replace("c2::text", "left(c2::text, 1)")
        texts = texts.replace("c3::text", "trim_scale(c3)::text")
        return connection.execute(f"SELECT {texts} FROM b".encode()).fetchall()
    except Error as error:
        return error.sqlstate or ""


@LAW
@given(rows=ROWS, cuts=CUTS)
def test_rows_go_out_and_in(postgres: Connection, rows: list[Row], cuts: list[int]) -> None:
    data = written(rows)
    assert read(data, cuts) == rows
    assert in_postgres(postgres, data) == shown(rows)
    with postgres.cursor() as cursor, cursor.copy("COPY b TO STDOUT (FORMAT binary)") as copy:
        messages = [bytes(part) for part in copy]
    assert b"".join(messages) == data
    out = BinaryCopyOut(COLUMNS)
    assert [*out.lines(rows), out.end()] == messages  # the signature is part of the first one


@LAW
@given(rows=ROWS, at=st.integers(0, 400), byte=st.binary(max_size=2), cuts=CUTS)
def test_what_is_damaged_is_refused_as_postgresql_refuses_it(
    postgres: Connection, rows: list[Row], at: int, byte: bytes, cuts: list[int]
) -> None:
    columns = COLUMNS[:3]  # whose values have little form of their own
    data = written([row[:3] for row in rows], columns)
    damaged = data[: at % len(data)] + byte + data[at % len(data) + 1 :]
    expected = in_postgres(postgres, damaged, columns)
    actual: list[tuple[str | None, ...]] | str
    try:
        actual = shown(read(damaged, cuts, columns))
    except SqlError as error:
        actual = error.sqlstate
    # What comes first of several faults is not the same everywhere.
    assert actual == expected or (isinstance(actual, str) and isinstance(expected, str))


def test_an_error_tells_row_and_column() -> None:
    columns = COLUMNS[:2]
    out = BinaryCopyOut(columns)
    data = b"".join(out.lines([("a", 1), ("b", 2)])).replace(b"\0\0\0\x04\0\0\0\x02", b"\0\0\0\x03\0\0\x02")
    with pytest.raises(SqlError) as caught:
        BinaryCopyIn("t", columns).feed(data)
    assert (caught.value.sqlstate, caught.value.detail) == ("22P03", "COPY t, line 2, column c1")
