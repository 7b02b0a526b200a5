"""Materialized views without a server: their rows, and the programs that messages name."""

from __future__ import annotations

from sql_world import Client, SqlWorld, derive_all, ingest
from test_views import until_maintained

TOTAL = 'CREATE MATERIALIZED VIEW total AS SELECT sum(spent) AS spent FROM "shop/spending"'
SERIALIZABLE = {"transaction_isolation": "serializable"}


async def notices_of(client: Client, text: str) -> list[tuple[str, str | None]]:
    """Run a statement, and return its notices and their hints."""
    session = client.session
    prepared = await session.prepare(text, ())
    await session.begin_implicit()
    result = await session.execute(prepared, ())
    if result.rows is not None:
        async for _ in result.rows:
            pass
    await session.end_implicit()
    return [(notice.message, notice.hint) for notice in result.notices]


async def test_new_view_is_computed_before_a_server_has_run(world: SqlWorld) -> None:
    async with world.served() as (_, client):
        assert await notices_of(client, TOTAL) == [
            (
                'no server stores the rows of "total" yet, so each query computes them',
                "Start: flowctl run & flowctl sql serve",
            )
        ]
    async with world.served(**SERIALIZABLE) as (coordinator, client):
        error = await client.error("SELECT * FROM total")
        assert error.message == "nothing is derived in 'shop/spending' yet, and no run derives the collection"
        assert error.hint == "Derive it: flowctl run --until-idle; or derive it from now on: flowctl run."
        ingest(coordinator, [(1, "ann", 20.0), (2, "ben", 5.5)], year=2020)
        derive_all(world, coordinator)
        assert await client("SELECT * FROM total") == [("25.5",)]
        assert await client("SELECT spent FROM total AS OF AT LEAST '1h'") == [("25.5",)]
        assert await notices_of(client, "SELECT * FROM total") == []
        assert not coordinator.ownership.is_held


async def test_stored_view_names_its_time_and_the_missing_programs(world: SqlWorld) -> None:
    async with world.served() as (coordinator, client):
        await client.script("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t")
        await client("CREATE MATERIALIZED VIEW one AS SELECT 1 AS a")
        await until_maintained(coordinator, "v")
        await until_maintained(coordinator, "one")
    async with world.served(**SERIALIZABLE) as (coordinator, client):
        [(message, hint)] = await notices_of(client, "SELECT * FROM v, t, one")
        assert message.startswith('the rows of "v" are those of 20')
        assert message.endswith(", because no server maintains the view")
        assert hint == "Start: flowctl sql serve"
        strict = await Client(coordinator).error("SELECT * FROM v")
        assert strict.hint == (
            "Start: flowctl sql serve; or read the rows that are known now: SET transaction_isolation = serializable,"
            " and no AS OF."
        )
