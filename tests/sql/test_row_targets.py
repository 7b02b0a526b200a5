"""Set-returning functions in SELECT, in views that are maintained and in statements that write."""

from __future__ import annotations

import asyncio

import pytest
from patience import PATIENCE_SECONDS
from sql_world import Client, SqlWorld

from derive.errors import FlowError, SqlError
from derive.sql.coordinator import Coordinator
from derive.storage.ingest import Ingestion

VIEWS = {
    "elements": "SELECT id, jsonb_array_elements_text(tags) AS tag FROM posts",
    "counts": "SELECT jsonb_array_elements_text(tags) AS tag, count(*) AS c, max(id) AS most FROM posts GROUP BY tag",
    "beside": "SELECT id, jsonb_array_elements(tags) AS tag, unnest(marks) AS mark FROM posts",
    "series": "SELECT id, generate_series(1, id % 3) AS n, generate_series(id % 2, 3) AS m FROM posts",
    "single": "SELECT DISTINCT unnest(marks) AS mark FROM posts",
    "over": "SELECT n, count(*) AS c FROM (SELECT generate_series(1, id) AS n FROM posts) s GROUP BY n",
    "listed": "SELECT unnest(array_agg(id ORDER BY id)) AS id, count(*) AS c FROM posts",
}
WRITES = [
    """INSERT INTO posts VALUES (1, '["a", "b"]', '{x,NULL,y}'), (2, '[]', '{}'), (3, '["a"]', NULL), (4, NULL, '{x}')""",
    """INSERT INTO posts VALUES (1, '["a", "b"]', '{x,NULL,y}'), (5, '["c", "c"]', '{z}')""",
    "UPDATE posts SET tags = '[\"b\", null, 7]' WHERE id = 3",
    "DELETE FROM posts WHERE id = 1",
    "DELETE FROM posts",
]


async def test_maintained_set_returning_views_equal_their_queries(client: Client) -> None:
    """A maintained view has the rows of its query, after each write."""
    await client("CREATE TABLE posts (id int, tags jsonb, marks text[])")
    for name, query in VIEWS.items():
        await client(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    sizes = set()
    for write in WRITES:
        await client(write)
        for name, query in VIEWS.items():
            rows = await client(f"SELECT * FROM {name}")
            assert sorted(rows, key=repr) == sorted(await client(query), key=repr), name
            sizes.add((name, len(rows) > 0))
    assert sizes == {(name, has) for name in VIEWS for has in (True, False)}


async def test_row_error_of_a_function_is_an_error_of_the_view(client: Client) -> None:
    await client("CREATE TABLE t (j jsonb)")
    await client("CREATE MATERIALIZED VIEW v AS SELECT jsonb_array_elements(j) AS e FROM t")
    await client("INSERT INTO t VALUES ('[1]'), ('{}')")
    assert await client.fails("SELECT * FROM v") == "22023"
    await client("DELETE FROM t WHERE j = '{}'")
    assert await client("SELECT * FROM v") == [("1",)]


@pytest.mark.parametrize(
    ("query", "hint"),
    [
        ("SELECT jsonb_each('{}')", "jsonb_object_keys"),
        ("SELECT jsonb_array_element('[]')", "Did you mean jsonb_array_elements?"),
        ("SELECT 1 WHERE unnest(array[1]) = 1", "LATERAL"),
        ("SELECT generate_series(1, generate_series(1, 2))", "Move the inner call to FROM."),
    ],
)
async def test_unsupported_set_returning_calls_have_hints(query: str, hint: str, coordinator: Coordinator) -> None:
    with pytest.raises(SqlError) as raised:
        await Client(coordinator)(query)
    assert hint in (raised.value.hint or "")


async def test_written_set_returning_rows_are_stored(client: Client) -> None:
    await client("CREATE TABLE t (n int, word text)")
    await client("INSERT INTO t SELECT generate_series(1, 3), unnest(array['a', 'b'])")
    assert await client("SELECT * FROM t ORDER BY n") == [("1", "a"), ("2", "b"), ("3", None)]
    await client("CREATE TABLE copied AS SELECT generate_series(1, n) AS m FROM t")
    assert await client("SELECT count(*) FROM copied") == [("6",)]
    assert await client.fails("UPDATE t SET n = generate_series(1, 2)") == "0A000"
    assert await client.fails("DELETE FROM t WHERE n = generate_series(1, 2)") == "0A000"
    assert await client.fails("INSERT INTO t VALUES (1, 'a') RETURNING generate_series(1, 2)") == "0A000"
    assert await client.fails("CREATE TABLE u (n int DEFAULT generate_series(1, 2))") == "0A000"
    assert await client.fails("CREATE INDEX ON t (generate_series(1, n))") in {"0A000", "42601"}


# A read of documents that cannot be reduced says of which collection and key they are.


CATALOG = """
collections:
  shop/sums:
    key: [/id, /day]
    schema:
      type: object
      required: [id, day]
      reduce: {strategy: merge}
      properties:
        id: {type: integer}
        day: {type: string}
        n: {type: number, reduce: {strategy: sum}}
"""
TOLD = r"""documents of \[2,"mon"\] in 'shop/sums' cannot be reduced: while reducing '/n': 'sum' .* overflow"""


def ingest(world: SqlWorld, coordinator: Coordinator, *numbers: tuple[int, float]) -> None:
    spec = world.catalog.collections["shop/sums"]
    documents = [{"id": id_, "day": "mon", "n": number} for id_, number in numbers]
    Ingestion(coordinator.store, spec).load("test", enumerate(documents, start=1))


@pytest.mark.parametrize("query", ['SELECT * FROM "shop/sums"', 'SELECT count(*) FROM "shop/sums" WHERE n > 0'])
@pytest.mark.catalog(CATALOG)
async def test_error_of_a_query_names_the_key(world: SqlWorld, query: str, coordinator: Coordinator) -> None:
    ingest(world, coordinator, (1, 1.0), (2, 1e308), (3, 1.0), (2, 1e308), (4, 1.0))
    with pytest.raises(FlowError, match=TOLD):
        await Client(coordinator)(query)


@pytest.mark.catalog(CATALOG)
async def test_error_of_a_maintained_view_names_the_key(
    world: SqlWorld, coordinator: Coordinator, client: Client
) -> None:
    """The error of a view is that of the document that came last."""
    ingest(world, coordinator, (1, 1.0), (2, 1e308))
    await client('CREATE MATERIALIZED VIEW v AS SELECT id, n FROM "shop/sums"')
    assert len(await client("SELECT * FROM v")) == 2
    ingest(world, coordinator, (3, 1.0), (2, 1e308))
    with pytest.raises(FlowError, match=TOLD):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await client("SELECT * FROM v")
