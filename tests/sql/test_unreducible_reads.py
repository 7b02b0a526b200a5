"""A read of documents that cannot be reduced says of which collection and key they are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sql_world import Client, SqlWorld

from derive.errors import FlowError
from derive.sql.coordinator import Coordinator
from derive.storage.ingest import Ingestion

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
def test_a_query_names_the_key(tmp_path: Path, query: str) -> None:
    world = SqlWorld(tmp_path, CATALOG)

    async def work(coordinator: Coordinator) -> None:
        ingest(world, coordinator, (1, 1.0), (2, 1e308), (3, 1.0), (2, 1e308), (4, 1.0))
        with pytest.raises(FlowError, match=TOLD):
            await Client(coordinator)(query)

    world.within(work)


def test_a_maintained_view_names_the_key(tmp_path: Path) -> None:
    """The error of a view is that of the document that came last."""
    world = SqlWorld(tmp_path, CATALOG)

    async def work(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        ingest(world, coordinator, (1, 1.0), (2, 1e308))
        await client('CREATE MATERIALIZED VIEW v AS SELECT id, n FROM "shop/sums"')
        assert len(await client("SELECT * FROM v")) == 2
        ingest(world, coordinator, (3, 1.0), (2, 1e308))
        with pytest.raises(FlowError, match=TOLD):
            async with asyncio.timeout(60):
                await client("SELECT * FROM v")

    world.within(work)
