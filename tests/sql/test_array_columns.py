"""Columns of arrays: in tables, in views that are kept up to date, and as parameters."""

from __future__ import annotations

from contextlib import suppress
from time import thread_time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sql_world import Client, SqlWorld

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.types.array_literal import literal_of_texts, texts_of_literal
from derive.functions.types.type_info import datum_of_text


async def test_tables_and_views_have_array_columns(world: SqlWorld) -> None:
    rows = [
        ("1", "{1,NULL,2}", '{a,"b c"}', "{1.5,2}", '{"{\\"k\\": 1}",null}', "{t,f}", '{"2020-01-01 00:00:00+00"}'),
        ("2", "{}", None, "{NaN}", "{}", "{}", "{}"),
    ]

    async with world.served() as (_, client):
        await client("CREATE TABLE t (id int, i int[], s text[], n numeric[], j jsonb[], b bool[], tz timestamptz[])")
        for row in rows:
            values = ", ".join("NULL" if text is None else f"'{text}'" for text in row)
            await client(f"INSERT INTO t VALUES ({values})")
        await client(
            "CREATE MATERIALIZED VIEW v AS SELECT i, count(*) AS n, array_agg(id ORDER BY id DESC) AS ids "
            "FROM t GROUP BY i"
        )
        assert await client("SELECT * FROM v ORDER BY i") == [("{}", "1", "{2}"), ("{1,NULL,2}", "1", "{1}")]
        await client("INSERT INTO t (id, i) VALUES (3, '{}'), (4, NULL)")
        await client.script("DELETE FROM t WHERE id = 1; UPDATE t SET s = array_append(s, 'z') WHERE id = 3")

    async with world.served() as (_, client):
        await client("INSERT INTO t (id, i) VALUES (5, NULL)")
        assert await client("SELECT * FROM v ORDER BY i") == [("{}", "2", "{3,2}"), (None, "2", "{5,4}")]
        assert await client("SELECT * FROM t WHERE id = 2") == [rows[1]]
        assert await client("SELECT s FROM t WHERE id = 3") == [("{z}",)]


async def test_unnest_returns_elements_as_rows(client: Client) -> None:
    await client("CREATE TABLE t (id int, tags text[])")
    await client(
        "CREATE MATERIALIZED VIEW tags AS SELECT tag, count(*) AS n, min(place) AS first "
        "FROM t, unnest(tags) WITH ORDINALITY AS g(tag, place) GROUP BY tag"
    )
    await client("INSERT INTO t VALUES (1, '{a,b,NULL}'), (2, '{b}'), (2, '{b}'), (3, '{}'), (4, NULL)")
    rows = [("a", "1", "1"), ("b", "3", "1"), (None, "1", "3")]
    assert await client("SELECT * FROM tags ORDER BY tag") == rows
    await client("UPDATE t SET tags = tags || '{c}' WHERE id = 2")
    await client("DELETE FROM t WHERE id = 1")
    assert await client("SELECT * FROM tags ORDER BY tag") == [("b", "2", "1"), ("c", "2", "2")]

    await client("CREATE TABLE u (id int, name text)")
    ids, names = datum_of_text(Type.INTEGER_ARRAY, "{1,2,3}"), datum_of_text(Type.TEXT_ARRAY, "{x,y}")
    await client("INSERT INTO u SELECT * FROM unnest($1::int[], $2::text[])", ids, names)
    assert await client("SELECT * FROM u ORDER BY id") == [("1", "x"), ("2", "y"), ("3", None)]


# Arrays as texts.


@pytest.mark.parametrize(
    ("literal", "elements"),
    [
        ("{}", []),
        ("{1,2}", ["1", "2"]),
        ('{a,"b c",NULL,"NULL",""}', ["a", "b c", None, "NULL", ""]),
        ('{"a\\\\b","c\\"d"}', ["a\\b", 'c"d']),
    ],
)
def test_arrays_are_written_as_postgresql_does(literal: str, elements: list[str | None]) -> None:
    assert texts_of_literal(literal) == (tuple(elements), ())
    assert literal_of_texts(elements) == literal


@given(st.lists(st.none() | st.text(), max_size=4))
@example(["\x1f"])  # no white space of PostgreSQL, but of Python
def test_arrays_are_read_as_they_are_written(elements: list[str | None]) -> None:
    assert texts_of_literal(literal_of_texts(elements)) == (tuple(elements), ())


@given(st.text(max_size=12))
def test_array_literals_round_trip(text: str) -> None:
    with suppress(SqlError):
        elements, sizes = texts_of_literal(f"{{{text}}}")
        assert texts_of_literal(literal_of_texts(elements, sizes)) == (elements, sizes)


@pytest.mark.parametrize("text", ["{a%sb}", "{{a%sb}}", '{%sx"', "{a%s", '{"a"%s', "{a,%s}"])
def test_long_spaces_in_array_literals_take_little_time(text: str) -> None:
    begin = thread_time()
    with suppress(SqlError):
        texts_of_literal(text % (" " * 100_000))
    assert thread_time() - begin < 3  # each space once; all pairs of spaces would take half a minute and more


@pytest.mark.parametrize("text", ["a", "{1", "{}1", '{"a"b}'])
def test_invalid_array_literals_are_refused(text: str) -> None:
    with pytest.raises(SqlError, match="malformed array literal"):
        texts_of_literal(text)
