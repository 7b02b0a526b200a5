"""Transactions that write what follows from collections, which others write: nothing happens to these in between."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from forked_flowctl import Flowctl, flowctl
from patience import PATIENCE_SECONDS
from sql_world import Client, SqlWorld, derive_all, ingest

from derive.engine.executor import InProcessExecutor
from derive.engine.task_reconciler import open_run
from derive.sql.coordinator import Coordinator
from derive.storage.store import Store

COUNT = 'SELECT count(*) FROM "shop/orders"'


async def test_intermediate_ingestion_conflicts_with_a_write(coordinator: Coordinator) -> None:
    client, other = Client(coordinator), Client(coordinator)
    await client("CREATE TABLE t (n bigint)")
    ingest(coordinator, [(1, "ann", 10.0)])
    await client("BEGIN")
    assert await client(COUNT) == [("1",)]
    ingest(coordinator, [(2, "ben", 5.5)])
    assert await other(f"{COUNT}, t") == [("0",)]  # it sees what was ingested, and nothing of the transaction
    await client("INSERT INTO t VALUES (1)")
    assert await client.fails("COMMIT") == "40001"
    await client("BEGIN")
    assert await client(COUNT) == [("2",)]
    assert await other(COUNT) == [("2",)]
    await client.script("INSERT INTO t VALUES (2); COMMIT")
    assert await client("SELECT n FROM t") == [("2",)]


async def test_unseen_ingestion_is_ordered_after_a_write(coordinator: Coordinator, client: Client) -> None:
    await client("CREATE TABLE t (n bigint)")
    ingest(coordinator, [(1, "ann", 10.0)])
    await client("BEGIN")
    assert await client(COUNT) == [("1",)]
    ingest(coordinator, [(2, "ben", 5.5)])
    await client.script("INSERT INTO t VALUES (1); COMMIT")
    time = coordinator.timeline.latest
    both = f'SELECT count(*), (SELECT n FROM t) FROM "shop/orders" AS OF {time}'
    assert await client(both) == [("1", "1")]  # the transaction is before what was ingested
    assert await client(COUNT) == [("2",)]


async def test_writes_do_not_wait_for_ingestions(coordinator: Coordinator) -> None:
    client, other = Client(coordinator), Client(coordinator)
    await client.script("CREATE TABLE t (n bigint); BEGIN")
    assert await client(COUNT) == [("0",)]
    await other("INSERT INTO t VALUES (0)")
    capability = coordinator.store.acquire_write("shop/orders")
    await client("INSERT INTO t VALUES (1)")
    assert await client.fails("COMMIT") == "40001"
    coordinator.store.capabilities.release(capability)
    assert await client("SELECT n FROM t") == [("0",)]


async def test_statement_that_reads_ingested_documents_retries(coordinator: Coordinator) -> None:
    client, other = Client(coordinator), Client(coordinator)
    await client("CREATE TABLE t (n bigint)")
    is_over = False

    async def disturb() -> None:
        number = 0
        while not is_over:
            number += 1
            await asyncio.to_thread(ingest, coordinator, [(number, "ann", 1.0)])
            await other(COUNT)

    disturbing = asyncio.create_task(disturb())
    for _ in range(20):
        await client(f"INSERT INTO t {COUNT}")
    is_over = True
    await disturbing
    counts = [int(n or 0) for (n,) in await client("SELECT n FROM t ORDER BY 1")]
    assert len(counts) == 20


async def test_write_fails_instead_of_deleting_rows_that_changed(world: SqlWorld) -> None:
    async with world.served() as (coordinator, client):
        await client.script("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
        ingest(coordinator, [(1, "ann", 10.0)])
        while not (known := coordinator.store.collection("shop/spending")) or not known.documents:
            await client(COUNT)
            derive_all(world, coordinator)

    async with world.opened() as coordinator:
        await Client(coordinator)("UPDATE t SET a = 2")

    async with world.opened() as coordinator:
        client = Client(coordinator, transaction_isolation="serializable")
        known = coordinator.store.collection("shop/spending")
        table = coordinator.store.tables.find("sql/public/t")
        assert known
        assert table
        assert known.upper > table.since  # so both are read at a time at which `a` was 1
        error = await client.error('UPDATE t SET a = a + 10 WHERE EXISTS (SELECT 1 FROM "shop/spending")')
        assert error.sqlstate == "40001"
        assert str(known.upper - 1) in (error.hint or "")
        assert await client("SELECT a FROM t") == [("2",)]


@contextmanager
def deriving(world: SqlWorld) -> Iterator[None]:
    """A run at work, as another process would be."""
    is_over = threading.Event()

    def work() -> None:
        store = Store(world.data)
        run = open_run(world.catalog, store, InProcessExecutor())
        while not is_over.wait(0.05):
            run.step()
        run.close()
        store.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_write_waits_for_derived_documents(world: SqlWorld) -> None:
    async def work(coordinator: Coordinator) -> None:
        client, other = Client(coordinator), Client(coordinator)
        await client("CREATE TABLE t (n double precision)")
        await client("CREATE INDEX ON t (n)")  # so time passes for it by itself
        ingest(coordinator, [(1, "ann", 10.0)])
        for is_disturbed in (False, True):
            await client("BEGIN")
            ((spent,),) = await client('SELECT sum(spent) FROM "shop/spending"')
            if is_disturbed:
                ingest(coordinator, [(2, "ann", 1.0)])
            assert await other('SELECT count(*) FROM "shop/spending"') == [("1",)]
            await client(f"INSERT INTO t VALUES ({spent})")
            if is_disturbed:
                assert await client.fails("COMMIT") == "40001"
            else:
                await client("COMMIT")
        assert await client("SELECT n FROM t") == [("10",)]

    with deriving(world):
        world.within(work)


def test_writers_in_other_processes_conflict(world: SqlWorld) -> None:
    """`flowctl ingest` between a read and the write that follows from it, by clients of `flowctl sql serve`."""
    place = ["--source", str(world.folder / "flow.yaml"), "--data", str(world.data)]
    documents = world.folder / "orders.jsonl"

    def ingest_one(number: int) -> None:
        documents.write_text(json.dumps({"id": number, "customer": "ann", "amount": 1.0}) + "\n")
        assert flowctl(world.folder, "ingest", *place, "--collection", "shop/orders", str(documents))[0] == 0

    ingest_one(1)
    server = Flowctl(
        ["sql", "serve", *place, "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout
    address = f"host=127.0.0.1 port={server.stdout.readline().strip().rpartition(':')[2]} user=flow dbname=flow"
    try:
        with psycopg.connect(address) as client, psycopg.connect(address, autocommit=True) as other:
            other.execute("CREATE TABLE t (n bigint)")
            for number in (2, 3):
                client.execute(COUNT)
                ingest_one(number)
                assert other.execute(COUNT).fetchall() == [(number,)]
                client.execute("INSERT INTO t VALUES (0)")
                with pytest.raises(psycopg.errors.SerializationFailure):
                    client.commit()
                client.rollback()
            other.execute(f"INSERT INTO t {COUNT}")
            assert other.execute("SELECT n FROM t").fetchall() == [(3,)]
    finally:
        server.terminate()
        server.wait(PATIENCE_SECONDS)
        server.stdout.close()
