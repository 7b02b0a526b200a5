"""Commits advance the tables that are read, and of many tables no others, so their time does not grow with the tables."""

from __future__ import annotations

import asyncio

import pytest
from sql_world import Client

from derive.sql.coordinator import Coordinator
from derive.sql.transactions import storage_clock


async def test_commits_advance_only_the_tables_that_are_read(
    coordinator: Coordinator, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_clock, "MOST_ADVANCED", 1)
    coordinator.own()
    await client.script(*(f"CREATE TABLE {name} (k int)" for name in ("written", "queried", "viewed", "idle")))
    await client("CREATE MATERIALIZED VIEW m AS SELECT k FROM viewed")
    while not coordinator.maintenance.followed():
        await asyncio.sleep(0)
    assert await client("SELECT k FROM queried") == []

    await client("INSERT INTO written VALUES (1)")

    uppers = {table.name.removeprefix("sql/public/"): table.upper for table in coordinator.store.tables.all()}
    assert uppers["idle"] < uppers["written"] == uppers["queried"] <= uppers["viewed"]
    assert await client("SELECT written.k, idle.k, m.k FROM written LEFT JOIN idle ON true LEFT JOIN m ON true") == [
        ("1", None, None)
    ]
