import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from postgres_server import server
from psycopg import Connection, Error, sql

from derive.algebra.types import Row, Type
from derive.errors import SqlError
from derive.sql.copy_format import CopyIn, copy_out
from derive.sql.outcome import ResultColumn
from derive.sql.parser.statement import CopyFormat
from derive.sql.pg_types import OID_OF

EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "60"))
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
def test_rows_are_written_as_postgresql_writes_them_and_read_as_it_reads_them(
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
def test_what_is_no_such_form_is_refused_as_postgresql_refuses_it(
    form: CopyFormat, postgres: Connection, text: bytes
) -> None:
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


def test_an_error_tells_line_and_column() -> None:
    with pytest.raises(SqlError) as caught:
        read(CopyFormat("csv", ",", "", has_header=True), [b"a,b,c\nx,1,t\n", b'"y\nz",1O,t\n'])
    assert (caught.value.sqlstate, caught.value.detail) == ("22P02", 'COPY t, line 3, column b c: "1O"')
    with pytest.raises(SqlError, match='missing data for column "d"'):
        read(CopyFormat(), [b"a\t1\n"])
