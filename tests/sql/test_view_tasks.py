"""Tasks that read a materialized view: they stop where it has an error, and go on once that is corrected."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import orjson
from forked_flowctl import flowctl
from sql_world import CATALOG, Client, SqlWorld, ingest
from test_view_errors import until_stored

from derive.document.clock import format_rfc3339
from derive.engine.executor import InProcessExecutor
from derive.engine.opening import open_run
from derive.errors import FlowError, ViewError
from derive.sql.coordinator import Coordinator
from derive.storage.compaction import compact
from derive.storage.contents import ReadOptions, read_rows
from derive.storage.store import Store

DERIVING = f"""{CATALOG}
  sql/public/v:
    schema: {{type: object, properties: {{id: {{type: integer}}, q: {{type: integer}}}}}}
    key: [/id]
  t/copies:
    schema:
      type: object
      properties: {{id: {{type: integer}}, q: {{type: integer}}, op: {{type: [string, "null"]}}}}
      required: [id]
    key: [/id]
    derive:
      using: {{sqlite: {{}}}}
      transforms:
        - name: fromView
          source: sql/public/v
          shuffle: any
          lambda: SELECT $id, $q, json_extract($flow_document, '$._meta.op') AS op;
"""


async def derive(world: SqlWorld, coordinator: Coordinator) -> FlowError | None:
    """Derive what there is; why the derivation stopped, if it did."""
    await until_stored(coordinator, "v")
    run = open_run(world.catalog, coordinator.store, InProcessExecutor())
    await asyncio.to_thread(run.until_idle)
    run.close()
    return run.tasks["t/copies"].error


def copies(world: SqlWorld, store: Store) -> list[tuple[int, int, str | None]]:
    rows = read_rows(store, world.catalog.collections["t/copies"], ReadOptions())
    documents = [orjson.loads(text) for part in rows for text in part.texts.to_pylist()]
    return [(document["id"], document["q"], document.get("op")) for document in documents]


READ = ("collections", "read", "--collection", "sql/public/v", "--reduce")


def command(world: SqlWorld, *arguments: str) -> tuple[int, str, str]:
    return flowctl(world.folder, *arguments, "--data", str(world.data), env=os.environ)


def test_a_derivation_stops_where_a_view_has_an_error(tmp_path: Path) -> None:
    world = SqlWorld(tmp_path, DERIVING)

    async def work(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client("CREATE TABLE t (id int, a int)")
        await client("CREATE MATERIALIZED VIEW v AS SELECT id, sum(10 / a) AS q FROM t GROUP BY id")
        await client("INSERT INTO t VALUES (1, 5)")
        assert await derive(world, coordinator) is None
        assert copies(world, coordinator.store) == [(1, 2, None)]
        before = coordinator.timeline.latest

        await client("INSERT INTO t VALUES (2, 0)")
        await client("INSERT INTO t VALUES (1, 10)")  # beside the error, the view changes
        await client("DELETE FROM t WHERE id = 1 AND a = 5")
        error = await derive(world, coordinator)
        assert isinstance(error, ViewError)
        assert error.heals  # a run that goes on tries again
        assert (error.sqlstate, error.message) == ("22012", "division by zero")
        assert copies(world, coordinator.store) == [(1, 2, None)]
        _, out, err = await asyncio.to_thread(command, world, "status", "-o", "json")
        (status,) = [row for row in map(orjson.loads, out.splitlines()) if row.get("task") == "t/copies"]
        assert (status["state"], status["error"]) == ("failed", "division by zero")
        said = "error[22012]: division by zero\n  = 'sql/public/v' has had this error in the place of rows since"
        assert said in err
        code, out, err = await asyncio.to_thread(command, world, *READ)
        assert (code, out) == (1, "")
        assert said in err
        code, out, err = await asyncio.to_thread(command, world, *READ, "--as-of", format_rfc3339(before))
        assert (code, out) == (0, '{"id":1,"q":2}\n'), err

        await client("DELETE FROM t WHERE a = 0")
        assert await derive(world, coordinator) is None
        assert copies(world, coordinator.store) == [(1, 2, None), (1, 1, None)]

    world.within(work)


def test_a_derivation_is_told_last_what_there_is(tmp_path: Path) -> None:
    world = SqlWorld(tmp_path, DERIVING)

    async def work(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client("CREATE TABLE t (id int, a int)")
        await client("CREATE MATERIALIZED VIEW v AS SELECT id, sum(a)::int AS q FROM t GROUP BY id")
        await client("INSERT INTO t VALUES (1, 5)")
        assert await derive(world, coordinator) is None
        await client("INSERT INTO t VALUES (1, -2)")  # the row that comes is less than the one that goes
        assert await derive(world, coordinator) is None
        assert copies(world, coordinator.store) == [(1, 5, None), (1, 3, None)]

    world.within(work)


def test_a_run_does_not_move_a_view_on(tmp_path: Path) -> None:
    world = SqlWorld(tmp_path, DERIVING)

    async def first(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client("CREATE TABLE t (id int, a int)")
        await client("CREATE MATERIALIZED VIEW v AS SELECT id, a AS q FROM t")
        await until_stored(coordinator, "v")

    async def between(coordinator: Coordinator) -> int:
        before = coordinator.store.upper("sql/public/v")
        run = open_run(world.catalog, coordinator.store, InProcessExecutor())
        run.step()
        run.close()
        assert coordinator.store.upper("sql/public/v") == before
        return before

    world.within(first)
    world.within(between)


CREATE = """
import asyncio, os, signal, sys
from pathlib import Path
from derive.sql.coordinator import Coordinator
from derive.sql.maintenance.reconcile import Maintenance
from derive.catalog import load
from sql_world import Client

class Idle(Maintenance):
    def work(self) -> bool:
        return False  # the process is killed before

async def run() -> None:
    folder = Path(sys.argv[1])
    coordinator = Coordinator(folder / "data", load(folder / "flow.yaml"))
    coordinator.maintenance.__class__ = Idle
    await Client(coordinator)('CREATE MATERIALIZED VIEW spent AS SELECT sum(amount) AS sum FROM "shop/orders"')
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(run())
"""


def test_a_view_holds_what_it_is_made_of_as_soon_as_it_is_acknowledged(tmp_path: Path) -> None:
    world = SqlWorld(tmp_path)

    async def first(coordinator: Coordinator) -> int:
        ingest(coordinator, [(1, "ann", 10.0)])
        return coordinator.store.timeline.present()

    async def between(coordinator: Coordinator) -> tuple[int, int, int]:
        (view,) = coordinator.store.task_capabilities.dataflows("view")
        table = coordinator.store.tables.table(view)
        assert table
        ingest(coordinator, [(2, "ann", 1.0)])
        time = coordinator.store.timeline.present()
        ingest(coordinator, [(3, "ann", 2.0)])
        spec = coordinator.store.tables.as_stored(world.catalog.collections["shop/orders"])
        done = compact(coordinator.store, spec, since=coordinator.store.timeline.present())
        assert done is not None
        return time, table.since, done.since

    async def second(coordinator: Coordinator) -> None:
        coordinator.own()
        client = Client(coordinator)
        await until_stored(coordinator, "spent")
        assert await client(f"SELECT * FROM spent AS OF {time}") == [("11",)]
        assert await client("SELECT * FROM spent") == [("13",)]
        await client("DROP MATERIALIZED VIEW spent")
        assert not coordinator.store.task_capabilities.dataflows("view")

    world.within(first)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", CREATE, str(tmp_path)], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    time, view_since, since = world.within(between)
    assert since <= view_since < time
    world.within(second)
