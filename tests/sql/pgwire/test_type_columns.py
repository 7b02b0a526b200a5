"""Columns of every type hold, order, find, copy and tell values as those of a real PostgreSQL do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import strategies as st
from postgres_server import server
from sql_server import served
from sql_values import usual_texts

from derive.algebra.types import Type

Connection = psycopg.Connection[Any]

SCALARS = [Type.UUID, Type.TIME, Type.INET, Type.CIDR, Type.MACADDR, Type.BYTEA]
KINDS = [*SCALARS, *(kind.array for kind in SCALARS if kind.array)]
ROWS = 40
QUESTIONS = [
    "SELECT v FROM {t} ORDER BY v, n",
    "SELECT v FROM {t} ORDER BY v DESC NULLS LAST, n LIMIT 7",
    "SELECT v::text FROM {t} ORDER BY n",
    "SELECT DISTINCT v FROM {t} ORDER BY 1",
    "SELECT v, count(*) FROM {t} GROUP BY v ORDER BY v",
    "SELECT a.n, b.n FROM {t} a JOIN {t} b ON a.v = b.v ORDER BY 1, 2",
    "SELECT a.n FROM {t} a WHERE v IN (SELECT v FROM {t} WHERE n < 5) ORDER BY 1",
    "SELECT count(DISTINCT v) FROM {t}",
    "SELECT n, rank() OVER (ORDER BY v) FROM {t} ORDER BY n",
    "SELECT max(n) FROM {t} GROUP BY v IS NULL ORDER BY 1",
    "SELECT to_jsonb(v)::text FROM {t} ORDER BY n",
    "SELECT n FROM {t} WHERE v = (SELECT v FROM {t} WHERE n = 3) ORDER BY n",
]
COMPARED = ["n", "v = %s", "v < %s", "v >= %s", "v <> %s", "v IS DISTINCT FROM %s"]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with (
        served(tmp_path_factory.mktemp("columns")) as port,
        psycopg.connect(f"host=127.0.0.1 port={port} user=flow dbname=flow", autocommit=True) as opened,
    ):
        yield opened


@pytest.fixture(scope="module")
def theirs() -> Iterator[Connection]:
    with server().connect() as opened:
        opened.execute("DROP SCHEMA IF EXISTS columns CASCADE; CREATE SCHEMA columns; SET search_path = columns")
        yield opened


def texts_of(kind: Type) -> list[str | None]:
    """Values of a type, some of them more than once, and NULLs."""
    drawn: list[str] = []

    @st.composite
    def several(draw: st.DrawFn) -> list[str]:
        return [draw(usual_texts(kind)) for _ in range(ROWS // 2)]

    from hypothesis import given, seed, settings

    @seed(7)
    @settings(max_examples=5, database=None, deadline=None)
    @given(several())
    def note(texts: list[str]) -> None:
        drawn.extend(texts)

    note()
    chance = random.Random(kind.value)
    pool: list[str | None] = [*dict.fromkeys(chance.sample(drawn, ROWS // 2))]
    return [*pool, *chance.choices([*pool, None], k=ROWS - len(pool))]


def both(ours: Connection, theirs: Connection, text: str, *arguments: object, binary: bool = False) -> None:
    """One statement gives the same answer, byte for byte."""
    answers = []
    for connection in (ours, theirs):
        cursor = connection.execute(text.encode(), arguments or None, binary=binary)
        result = cursor.pgresult
        assert result is not None
        assert cursor.description
        oids = [column.type_code for column in cursor.description]
        rows = [[result.get_value(row, at) for at in range(result.nfields)] for row in range(result.ntuples)]
        answers.append((oids, rows))
    assert answers[0] == answers[1], text


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_columns_of_all_types_are_read(ours: Connection, theirs: Connection, kind: Type) -> None:
    name = kind.value.replace(" ", "_").replace("[]", "_array")
    table, view = f"t_{name}", f"v_{name}"
    texts = texts_of(kind)
    for connection in (ours, theirs):
        connection.execute(f"CREATE TABLE {table} (n int NOT NULL, v {kind.value})".encode())
        with connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO {table} VALUES (%s, %s::text::{kind.value})".encode(), [*enumerate(texts[: ROWS // 2])]
            )
    ours.execute(f"CREATE MATERIALIZED VIEW {view} AS SELECT n, v FROM {table}".encode())
    ours.execute(f"CREATE MATERIALIZED VIEW {view}_counts AS SELECT v, count(*) c FROM {table} GROUP BY v".encode())
    ours.execute(f"CREATE INDEX ON {view} (v)".encode())
    theirs.execute(f"CREATE VIEW {view} AS SELECT n, v FROM {table}".encode())
    theirs.execute(f"CREATE VIEW {view}_counts AS SELECT v, count(*) c FROM {table} GROUP BY v".encode())

    # The rest comes by COPY, in both formats, from what the other one has written.
    for begin, form in ((ROWS // 2, "text"), (ROWS * 3 // 4, "binary")):
        values = ", ".join(
            f"({n}, {'NULL' if text is None else psycopg.sql.Literal(text).as_string(theirs)}::{kind.value})"
            for n, text in enumerate(texts[begin : begin + ROWS // 4], begin)
        )
        source = f"COPY (SELECT * FROM (VALUES {values}) r(n, v) ORDER BY n) TO STDOUT (FORMAT {form})"
        written = []
        for connection in (ours, theirs):
            with connection.cursor() as cursor, cursor.copy(source.encode()) as copy:
                written.append(b"".join(map(bytes, copy)))
        assert written[0] == written[1]
        for connection in (ours, theirs):
            with (
                connection.cursor() as cursor,
                cursor.copy(f"COPY {table} FROM STDIN (FORMAT {form})".encode()) as copy,
            ):
                copy.write(written[0])

    for relation in (table, view):
        for question in QUESTIONS:
            for binary in (False, True):
                both(ours, theirs, question.format(t=relation), binary=binary)
        for text in [*texts[:6], None]:
            for condition in COMPARED[1:]:
                where = condition.replace("%s", f"%s::{kind.value}")
                both(ours, theirs, f"SELECT n FROM {relation} WHERE {where} ORDER BY n", text)
    both(ours, theirs, f"SELECT v, c FROM {view}_counts ORDER BY v")

    for connection in (ours, theirs):
        connection.execute(f"DELETE FROM {table} WHERE v = %s::{kind.value}".encode(), (texts[0],))
        connection.execute(f"UPDATE {table} SET v = %s::{kind.value} WHERE n %% 3 = 0".encode(), (texts[1],))
    both(ours, theirs, f"SELECT n, v FROM {table} ORDER BY n")
    both(ours, theirs, f"SELECT n, v FROM {view} ORDER BY n")
    both(ours, theirs, f"SELECT v, c FROM {view}_counts ORDER BY v")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", SCALARS, ids=lambda kind: kind.value)
def test_extreme_values_are_read(ours: Connection, theirs: Connection, kind: Type) -> None:
    """The least and the greatest, where PostgreSQL has them; kept up to date as rows go."""
    name = kind.value.replace(" ", "_")
    texts = [text for text in texts_of(kind) if text is not None]
    for connection in (ours, theirs):
        connection.execute(f"CREATE TABLE e_{name} (n int, v {kind.value})".encode())
        with connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO e_{name} VALUES (%s, %s::text::{kind.value})".encode(), [*enumerate(texts)]
            )
    query = f"SELECT min(v) AS least, max(v) AS most, count(*) FROM e_{name}"
    ours.execute(f"CREATE MATERIALIZED VIEW e_{name}_view AS {query}".encode())
    if kind in {Type.UUID, Type.MACADDR}:  # PostgreSQL 18 has no min of these
        query = f"SELECT (array_agg(v ORDER BY v))[1] AS least, (array_agg(v ORDER BY v DESC))[1] AS most, count(*) FROM e_{name}"
    theirs.execute(f"CREATE VIEW e_{name}_view AS {query}".encode())
    for n in range(len(texts) + 1):
        both(ours, theirs, f"SELECT least::text, most::text, count FROM e_{name}_view")
        for connection in (ours, theirs):
            connection.execute(f"DELETE FROM e_{name} WHERE n = {n}".encode())
        if n > 12:
            return


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_catalogs_know_types(ours: Connection, theirs: Connection, kind: Type) -> None:
    name = f"k_{kind.value.replace(' ', '_').replace('[]', '_array')}"
    for connection in (ours, theirs):
        connection.execute(f"CREATE TABLE {name} (v {kind.value})".encode())
    types = (
        "SELECT format_type(a.atttypid, a.atttypmod), t.typname, t.oid, t.typlen, t.typelem, t.typarray "
        "FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid JOIN pg_class c ON c.oid = a.attrelid "
        f"WHERE c.relname = '{name}' AND a.attname = 'v'"
    )
    described = f"SELECT data_type, udt_name FROM information_schema.columns WHERE table_name = '{name}'"
    for question in (types, described):
        assert ours.execute(question.encode()).fetchall() == theirs.execute(question.encode()).fetchall()
