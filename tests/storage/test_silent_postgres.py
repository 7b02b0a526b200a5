"""A PostgreSQL server that is silent: the network accepts messages to it, and nothing comes back."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from postgres_proxy import Proxy
from postgres_server import server
from sql_world import Client, SqlWorld

from derive.errors import FlowError, UnansweredError
from derive.sql.pgwire.work import sql_error_of
from derive.storage.capability.table import LIFETIME
from derive.storage.metadata.place import VARIABLE, Place, place_of
from derive.storage.metadata.postgres import PostgresMetadata
from derive.storage.metadata.shared_opening import settle_place
from derive.storage.metadata.transaction import Transaction
from derive.storage.store import Store

SECONDS = 0.1


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    proxy = Proxy(server().port)
    yield proxy
    proxy.flowing.set()
    proxy.close()


@pytest.fixture
def place(tmp_path: Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The place of the metadata of the data folder `data`, through the proxy."""
    monkeypatch.setenv(VARIABLE, server().metadata_url.replace(f":{server().port}/", f":{proxy.port}/"))
    place = place_of(os.environ[VARIABLE])
    settle_place(tmp_path / "data", place, creates=True)
    Store(tmp_path / "data").close()
    return place


def answer(metadata: PostgresMetadata) -> int:
    with metadata.snapshot() as db:
        number: int = db.execute("SELECT 7").get
    return number


def until_heard(metadata: PostgresMetadata) -> None:
    """Wait until the server has answered a question in the background."""
    pause = threading.Event()
    while metadata._stall.is_on:
        pause.wait(0.02)


def test_read_of_a_silent_server_fails_until_the_server_answers(tmp_path: Path, proxy: Proxy, place: Place) -> None:
    with closing(PostgresMetadata(tmp_path / "data", place)) as metadata:
        metadata._connection.patience_seconds = metadata._connection.answer_seconds = SECONDS
        proxy.flowing.clear()
        for _ in range(2):
            with pytest.raises(UnansweredError, match="cannot be reached: the server does not answer"):
                answer(metadata)
        proxy.flowing.set()
        until_heard(metadata)
        assert answer(metadata) == 7


def test_commit_of_a_silent_server_happens_once(tmp_path: Path, proxy: Proxy, place: Place) -> None:
    """Its connection counts as broken, and the outcome is read when the server answers."""

    def add(db: Transaction) -> Callable[[], int]:
        db.execute("UPDATE identifier SET last = last + 1")
        last = db.execute("SELECT last FROM identifier")
        return lambda: int(last.get)

    with closing(PostgresMetadata(tmp_path / "data", place)) as metadata:
        begun = metadata.commit(add)
        metadata._connection.patience_seconds = metadata._connection.answer_seconds = SECONDS
        proxy.flowing.clear()
        heard = threading.Timer(5 * SECONDS, proxy.flowing.set)
        heard.start()
        assert metadata.commit(add) == begun + 1
        heard.join()


def test_slow_statement_of_a_live_server_is_awaited(tmp_path: Path, place: Place) -> None:
    with closing(PostgresMetadata(tmp_path / "data", place)) as metadata:
        metadata._connection.patience_seconds = SECONDS
        with metadata.snapshot() as db:
            assert db.execute("SELECT 7 FROM pg_sleep(0.5)").get == 7


async def test_read_on_an_event_loop_gives_up_soon(tmp_path: Path, proxy: Proxy, place: Place) -> None:
    with closing(PostgresMetadata(tmp_path / "data", place)) as metadata:
        proxy.flowing.clear()
        with pytest.raises(UnansweredError, match="cannot be reached: the server does not answer"):
            answer(metadata)
        with pytest.raises(UnansweredError, match="does not answer"):
            answer(metadata)
        proxy.flowing.set()
        await asyncio.to_thread(until_heard, metadata)
        assert answer(metadata) == 7


async def test_event_loop_of_a_sql_server_stays_free(tmp_path: Path, proxy: Proxy, place: Place) -> None:
    """Clients get an error in bounded time while the metadata server is silent, and rows when it answers."""
    async with SqlWorld(tmp_path).served() as (coordinator, client):
        await client.script("CREATE TABLE t (a int)", "INSERT INTO t VALUES (1)", *["SELECT * FROM t"] * 2)
        metadata: Any = coordinator.store.metadata
        certainty: Any = coordinator.storage_clock._certainty
        serving = coordinator.store.serving
        serving._renewing.close()
        proxy.flowing.clear()
        assert await client("SELECT * FROM t") == [("1",)]  # from memory, while another server cannot have begun

        metadata._connection.patience_seconds = certainty._seconds = 3600.0
        serving._renewed_at -= LIFETIME
        reads = [asyncio.create_task(rows(Client(coordinator), "SELECT * FROM t")) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert not any(read.done() for read in reads)
        proxy.flowing.set()  # the loop runs while they wait
        assert await asyncio.gather(*reads) == [[("1",)]] * 3

        proxy.flowing.clear()
        metadata._connection.patience_seconds = metadata._connection.answer_seconds = certainty._seconds = 1.0
        for error in await asyncio.gather(*[failing(Client(coordinator), "SELECT * FROM t") for _ in range(3)]):
            assert sql_error_of(error, print).sqlstate == "57P03"
        error = await failing(Client(coordinator), 'SELECT * FROM "shop/orders"')
        assert sql_error_of(error, print).sqlstate == "57P03"

        proxy.flowing.set()
        assert await rows(Client(coordinator), "SELECT * FROM t") == [("1",)]


async def failing(client: Client, query: str) -> FlowError:
    with pytest.raises(FlowError) as caught:
        await client(query)
    return caught.value


async def rows(client: Client, query: str) -> list[tuple[str | None, ...]]:
    """Return the rows of a query, as soon as it does not fail."""
    while True:
        try:
            return await client(query)
        except FlowError:
            await asyncio.sleep(0.05)
