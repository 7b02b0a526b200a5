from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from postgres_server import server
from psycopg import Connection, Error, sql

from derive.algebra.types import ModifiedType, Row, Type, TypeModifier
from derive.errors import SqlError
from derive.functions.types.pg_type import OID_OF
from derive.functions.types.type_info import datum_of_text, text_of
from derive.sql.copy_format import BinaryCopyIn, BinaryCopyOut, CopyIn, copy_out
from derive.sql.parser.statement import CopyFormat
from derive.sql.results import ResultColumn

EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "40"))
SAME = "FLOW_LAW_EXAMPLES" not in os.environ  # what PostgreSQL does is not told by us: one run is like the other
NAMES, TYPES = ("a", "b c", "d"), (Type.TEXT, Type.INTEGER, Type.BOOLEAN)
FORMATS = [
    CopyFormat(),
    CopyFormat("text", "|", "NULL", has_header=True),
    CopyFormat("csv", ",", ""),
    CopyFormat("csv", ";", "\\N", True, "'", "'"),
    CopyFormat("csv", ",", "x", False, '"', "\\"),
]
TEXTS = st.text(
    st.sampled_from("a b,;|\\'\"\n\r\t\bNx.é€") | st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    max_size=8,
)
ROWS = st.lists(st.tuples(st.none() | TEXTS | st.sampled_from(["\\.", "\\N", "NULL", "x"]), st.none() | st.integers(-9, 9), st.none() | st.integers(0, 1)), max_size=5)  # fmt: skip
COLUMNS = tuple(zip(NAMES, TYPES, strict=True))
SHOWN = [ResultColumn(name, kind, OID_OF[kind]) for name, kind in COLUMNS]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Connection]:
    with server().connect() as connection:
        connection.execute('CREATE TEMP TABLE t (a text, "b c" integer, d boolean)')
        yield connection


def options(form: CopyFormat) -> sql.Composed:
    parts = [
        sql.SQL(f"FORMAT {form.name}"),
        sql.SQL("DELIMITER {}").format(form.delimiter),
        sql.SQL("NULL {}").format(form.null),
    ]
    if form.has_header:
        parts.append(sql.SQL("HEADER"))
    if form.name == "csv":
        parts += [sql.SQL("QUOTE {}").format(form.quote), sql.SQL("ESCAPE {}").format(form.escape)]
    return sql.SQL(" WITH ({})").format(sql.SQL(", ").join(parts))


def written(form: CopyFormat, rows: list[Row]) -> bytes:
    out = copy_out(form, SHOWN)
    return (out.header or b"") + b"".join(out.lines(rows))


def read(form: CopyFormat, pieces: list[bytes]) -> list[Row]:
    copy = CopyIn(form, "t", COLUMNS)
    return [row for piece in pieces for row in copy.feed(piece)] + copy.finish()


def stored(postgres: Connection) -> list[Row]:
    rows = postgres.execute('SELECT a, "b c", d::int FROM t ORDER BY ctid').fetchall()
    postgres.execute("TRUNCATE t")
    return rows


@pytest.mark.parametrize("form", FORMATS, ids=str)
@settings(max_examples=EXAMPLES, derandomize=SAME, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, cuts=st.lists(st.integers(1, 9)))
def test_copy_text_and_csv_equal_postgresql(
    form: CopyFormat, postgres: Connection, rows: list[Row], cuts: list[int]
) -> None:
    text = written(form, rows)
    with postgres.cursor() as cursor:
        cursor.executemany("INSERT INTO t VALUES (%s, %s, %s::int::boolean)", rows)
        with cursor.copy(sql.SQL("COPY t TO STDOUT") + options(form)) as copy:
            assert b"".join(bytes(piece) for piece in copy) == text
    stored(postgres)
    with postgres.cursor() as cursor, cursor.copy(sql.SQL("COPY t FROM STDIN") + options(form)) as copy:
        copy.write(text)
    assert read(form, pieces(text, cuts)) == stored(postgres)  # which is not `rows` where a text looks like NULL


def pieces(text: bytes, cuts: list[int]) -> list[bytes]:
    parts = []
    for size in cuts:
        parts.append(text[:size])
        text = text[size:]
    return [*parts, text]


LINES = st.lists(
    st.binary(max_size=3)
    | st.sampled_from([b"\\", b"\\N", b"\\.", b"\\x41", b"\\101", b"\\t", b"\t", b",", b";", b"|", b'"', b"'", b"1", b"t", b"\n", b"x", b"NULL", b"a\t1\tt\n", b"a,1,t\n"]),
    max_size=12,
).map(b"".join)  # fmt: skip


@pytest.mark.parametrize("form", FORMATS, ids=str)
@settings(max_examples=EXAMPLES, derandomize=SAME, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=LINES)
def test_invalid_copy_texts_are_refused_as_in_postgresql(form: CopyFormat, postgres: Connection, text: bytes) -> None:
    expected: list[Row] | str | None
    try:
        with postgres.cursor() as cursor, cursor.copy(sql.SQL("COPY t FROM STDIN") + options(form)) as copy:
            copy.write(text)
        expected = stored(postgres)
    except Error as error:
        expected = error.sqlstate
    try:
        actual: list[Row] | str = read(form, [text])
    except SqlError as error:
        actual = error.sqlstate
    not_text = ["22P04", "22021"]  # PostgreSQL looks for either in whatever it has of the text
    assert actual == expected or (actual in not_text and expected in not_text)


NUMBERS = {
    Type.BIGINT: ["1", " 1", "1 ", "-0", "+7", "007", "0x10", "1_000", "1,2", "[1", "1]", "null", "true", "", "1.0", "1e1", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "99999999999999999999999"],
    Type.SMALLINT: ["-32768", "32768", "-32769", '"1"', "{}"],
    Type.DOUBLE: ["1", "0.0", " 1.5", ".5", "5.", "1e400", "1e-400", "1e-320", "-1e-400", "0e9", "NaN", "-Infinity", "1,2", "null", "0.1", "1_0", "123456789012345678901234567890", "2.5e-7", ""],
}  # fmt: skip


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in NUMBERS.items() for text in texts])
def test_copied_numbers_equal_postgresql(postgres: Connection, kind: Type, text: str) -> None:
    """Several lines are converted together, after the first one."""
    data = f"1\n{text}\n\\N\n2\n".encode()
    expected: list[str | None] | str | None
    with postgres.transaction(force_rollback=True):
        postgres.execute(f"CREATE TEMP TABLE n (a {kind.value})".encode())
        try:
            with postgres.transaction(), postgres.cursor() as cursor, cursor.copy("COPY n FROM STDIN") as copy:
                copy.write(data)
            expected = [value for (value,) in postgres.execute("SELECT a::text FROM n ORDER BY ctid").fetchall()]
        except Error as error:
            expected = error.sqlstate
    reader = CopyIn(CopyFormat(), "n", [("a", kind)])
    actual: list[str | None] | str
    try:
        rows = [*reader.feed(data), *reader.finish()]
        actual = [None if datum is None else text_of(kind, datum) for (datum,) in rows]
    except SqlError as error:
        actual = error.sqlstate
    assert actual == expected


@pytest.mark.parametrize("kind", [Type.BIGINT, Type.DOUBLE])
@pytest.mark.parametrize("lines", ["null\n", "null \n\\N\n", "2\n null\n"])
def test_copied_null_of_json_is_no_number(kind: Type, lines: str) -> None:
    reader = CopyIn(CopyFormat(), "n", [("a", kind)])
    with pytest.raises(SqlError) as caught:
        reader.feed(f"1\n{lines}".encode())
    assert caught.value.sqlstate == "22P02"


def test_copied_lines_keep_their_number_and_rest() -> None:
    reader = CopyIn(CopyFormat(), "t", COLUMNS)
    rows = reader.feed(b"a\t1\tt\nb\t2\tf\n\\N\t\\N\t\\N\nc\\\\d\\x41\t3\tt\ne\t")
    assert rows == [("a", 1, 1), ("b", 2, 0), (None, None, None), ("c\\dA", 3, 1)]
    assert reader.feed(b"4\tt\n") == [("e", 4, 1)]
    assert reader.lines == 5
    with pytest.raises(SqlError) as caught:
        reader.feed(b"f\t5\tt\ng\tx\tt\n")
    assert (caught.value.sqlstate, caught.value.detail) == ("22P02", 'COPY t, line 7, column b c: "x"')


def test_copy_error_reports_line_and_column() -> None:
    with pytest.raises(SqlError) as caught:
        read(CopyFormat("csv", ",", "", has_header=True), [b"a,b,c\nx,1,t\n", b'"y\nz",1O,t\n'])
    assert (caught.value.sqlstate, caught.value.detail) == ("22P02", 'COPY t, line 3, column b c: "1O"')
    with pytest.raises(SqlError, match='missing data for column "d"'):
        read(CopyFormat(), [b"a\t1\n"])


# COPY in binary format, held against a real PostgreSQL: the same bytes out, and the same rows and refusals in.


BINARY_TYPES = (Type.TEXT, Type.INTEGER, Type.BOOLEAN, Type.NUMERIC, Type.TIMESTAMPTZ, Type.JSONB, Type.INTERVAL)
BINARY_COLUMNS = [ResultColumn(f"c{index}", kind, OID_OF[kind]) for index, kind in enumerate(BINARY_TYPES)]
VALUES = (
    ["", "a b", "é€", "\\N", "x" * 300],
    ["-1", "0", "2147483647"],
    ["t", "f"],
    ["0", "-12.340", "1e30", "NaN", "0.00001"],
    ["2024-02-29 12:00:00.000001+00", "infinity", "1999-12-31 23:59:59+00"],
    ['{"k": [1, null]}', "7", "null"],
    ["1 mon 2 days 00:00:03", "-00:00:01"],
)
BINARY_ROWS = st.lists(
    st.tuples(
        *(
            st.none() | st.sampled_from([datum_of_text(kind, text) for text in texts])
            for kind, texts in zip(BINARY_TYPES, VALUES, strict=True)
        )
    ),
    max_size=4,
)
CUTS = st.lists(st.integers(0, 40), max_size=6)
LAW = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=SAME, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def binary_postgres() -> Iterator[Connection]:
    with server().connect() as connection:
        columns = ", ".join(f"{column.name} {column.type.value}" for column in BINARY_COLUMNS)
        connection.execute(f"CREATE TEMP TABLE b ({columns})".encode())
        connection.execute("SET timezone = 'UTC'")
        connection.commit()
        connection.autocommit = True
        yield connection


def binary_written(rows: list[Row], columns: list[ResultColumn] = BINARY_COLUMNS) -> bytes:
    out = BinaryCopyOut(columns)
    return b"".join(out.lines(rows)) + out.end()


def binary_read(data: bytes, cuts: list[int], columns: list[ResultColumn] = BINARY_COLUMNS) -> list[Row]:
    reader, rows = BinaryCopyIn("b", columns), list[Row]()
    for size in cuts:
        rows += reader.feed(data[:size])
        data = data[size:]
    return rows + reader.feed(data) + reader.finish()


def shown(rows: list[Row]) -> list[tuple[str | None, ...]]:
    return [
        tuple(None if datum is None else text_of(kind, datum) for kind, datum in zip(BINARY_TYPES, row, strict=False))
        for row in rows
    ]


def in_postgres(
    connection: Connection, data: bytes, columns: list[ResultColumn] = BINARY_COLUMNS
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
@given(rows=BINARY_ROWS, cuts=CUTS)
def test_copied_rows_survive_a_round_trip(binary_postgres: Connection, rows: list[Row], cuts: list[int]) -> None:
    data = binary_written(rows)
    assert binary_read(data, cuts) == rows
    assert in_postgres(binary_postgres, data) == shown(rows)
    with binary_postgres.cursor() as cursor, cursor.copy("COPY b TO STDOUT (FORMAT binary)") as copy:
        messages = [bytes(part) for part in copy]
    assert b"".join(messages) == data
    out = BinaryCopyOut(BINARY_COLUMNS)
    assert [*out.lines(rows), out.end()] == messages  # the signature is part of the first one


@LAW
@given(rows=BINARY_ROWS, at=st.integers(0, 400), byte=st.binary(max_size=2), cuts=CUTS)
def test_damaged_binary_copies_are_refused_as_in_postgresql(
    binary_postgres: Connection, rows: list[Row], at: int, byte: bytes, cuts: list[int]
) -> None:
    columns = BINARY_COLUMNS[:3]  # whose values have little form of their own
    data = binary_written([row[:3] for row in rows], columns)
    damaged = data[: at % len(data)] + byte + data[at % len(data) + 1 :]
    expected = in_postgres(binary_postgres, damaged, columns)
    actual: list[tuple[str | None, ...]] | str
    try:
        actual = shown(binary_read(damaged, cuts, columns))
    except SqlError as error:
        actual = error.sqlstate
    # PostgreSQL may report another one of several faults first.
    assert actual == expected or (isinstance(actual, str) and isinstance(expected, str))


def test_binary_copy_error_reports_row_and_column() -> None:
    columns = BINARY_COLUMNS[:2]
    out = BinaryCopyOut(columns)
    data = b"".join(out.lines([("a", 1), ("b", 2)])).replace(b"\0\0\0\x04\0\0\0\x02", b"\0\0\0\x03\0\0\x02")
    with pytest.raises(SqlError) as caught:
        BinaryCopyIn("t", columns).feed(data)
    assert (caught.value.sqlstate, caught.value.detail) == ("22P03", "COPY t, line 2, column c1")


def test_copied_times_are_of_the_zone_of_the_session() -> None:
    precisions = [TypeModifier(name, 1) for name in (ModifiedType.TIMESTAMPTZ, ModifiedType.TIMETZ)]
    columns = [("a", Type.TIMESTAMPTZ), ("b", Type.TIMETZ)]
    reader = CopyIn(CopyFormat(), "t", columns, modifiers=precisions, zone="Asia/Tokyo")
    (row,) = [*reader.feed(b"2020-01-01 10:00:00.6\t10:00:00.6\n"), *reader.finish()]

    shown = [text_of(kind, datum) for (_, kind), datum in zip(columns, row, strict=True)]
    assert shown == ["2020-01-01 01:00:01+00", "10:00:01+09"]
