"""Indexes and materialized views: kept up to date, asked at exact times, and there again after a restart."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import orjson
import pytest
from forked_flowctl import flowctl
from patience import PATIENCE_SECONDS
from sql_world import CATALOG, Client, SqlWorld, derive_all, ingest
from test_view_errors import until_stored

from derive.algebra.relation import Get
from derive.compute.instance import Instance
from derive.contents.reads import ReadOptions, read_rows
from derive.contents.rows import table_at
from derive.document.clock import format_rfc3339
from derive.engine.executor import InProcessExecutor
from derive.engine.reset import reset
from derive.engine.task_reconciler import open_run
from derive.errors import FlowError, SqlError, ViewError
from derive.sql.coordinator import Coordinator
from derive.sql.planner.dependencies import ids_of
from derive.storage.compaction import compact
from derive.storage.store import Store


async def until_maintained(coordinator: Coordinator, name: str) -> None:
    """Wait until a relation is read from what is maintained."""
    named = coordinator.objects.lookup(None, name)
    assert named
    relation = Get(named.id, tuple(column.type for column in named.columns))
    ids = coordinator.maintained.sources(ids_of(relation))
    while True:
        commit = coordinator.watcher.next
        time = await coordinator.timeline.read(ids, at_present=True)
        since = coordinator.maintained.since(relation)
        if since is not None and since <= time:
            return
        await commit.wait()


async def test_recursive_views_are_evaluated_and_not_maintained(coordinator: Coordinator, client: Client) -> None:
    await client("CREATE TABLE parts (whole text, part text)")
    await client("INSERT INTO parts VALUES ('car', 'wheel'), ('wheel', 'tyre'), ('tyre', 'car')")
    await client(
        "CREATE VIEW within AS WITH RECURSIVE w AS (SELECT whole, part FROM parts UNION"
        " SELECT w.whole, p.part FROM w JOIN parts p ON p.whole = w.part) SELECT * FROM w"
    )

    assert await client("SELECT count(*), count(DISTINCT part) FROM within WHERE whole = 'car'") == [("3", "3")]
    for refused in (
        "CREATE INDEX ON within (whole)",
        "CREATE MATERIALIZED VIEW m AS SELECT * FROM within",
        "SUBSCRIBE within",
    ):
        assert await client.fails(refused) == "0A000"

    await client("CREATE INDEX ON parts (whole)")
    await until_maintained(coordinator, "parts")
    again = "WITH RECURSIVE w(n) AS (SELECT whole FROM parts UNION SELECT part FROM parts, w WHERE n = whole) SELECT"
    assert await client(f"{again} count(*) FROM w") == [("3",)]


async def test_indexed_views_answer_lookups(coordinator: Coordinator, client: Client) -> None:
    await client("CREATE TABLE t (a int, b text)")
    await client("CREATE VIEW v AS SELECT b, count(*) AS n FROM t GROUP BY b")
    await client("INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, 'y')")
    assert await client.tag("CREATE INDEX ON t (a)") == "CREATE INDEX"
    await client("CREATE INDEX v_b ON v (b)")
    await until_maintained(coordinator, "t")
    await until_maintained(coordinator, "v")

    assert await client("SELECT b FROM t WHERE a = 2") == [("y",)]
    for number in range(4, 20):
        await client(f"INSERT INTO t VALUES ({number}, 'y')")
        assert await client("SELECT n FROM v WHERE b = 'y'") == [(str(number - 1),)]  # at once
        assert await client("SELECT count(*) FROM t JOIN v USING (b)") == [(str(number),)]
    await client("DELETE FROM t WHERE b = 'y'")
    assert await client("SELECT * FROM v") == [("x", "1")]
    assert await client.tag("DROP INDEX v_b") == "DROP INDEX"
    assert await client("SELECT * FROM v") == [("x", "1")]


async def test_index_is_readable_without_later_writes(coordinator: Coordinator, client: Client) -> None:
    await client.script("CREATE TABLE t (a int); INSERT INTO t VALUES (1), (2); CREATE INDEX ON t (a)")
    named = coordinator.objects.lookup(None, "t")
    assert named
    relation = Get(named.id, tuple(column.type for column in named.columns))
    while not coordinator.maintained.since(relation):
        await coordinator.watcher.next.wait()

    assert await client("SELECT a FROM t WHERE a = 2") == [("2",)]
    since = coordinator.maintained.since(relation)
    assert since is not None
    assert since <= coordinator.timeline.latest


async def test_serializable_reads_of_an_index_do_not_advance_time(coordinator: Coordinator) -> None:
    strict = Client(coordinator)
    client = Client(coordinator, transaction_isolation="serializable")
    await strict.script("CREATE TABLE t (a int); INSERT INTO t VALUES (1), (2); CREATE INDEX ON t (a)")
    await until_maintained(coordinator, "t")
    assert await client("SELECT a FROM t WHERE a = 1") == [("1",)]  # the index has followed all that was read
    named = coordinator.objects.lookup(None, "t")
    assert named
    tables = [coordinator.store.tables.table(named.id)]
    for _ in range(20):
        assert await client("SELECT a FROM t WHERE a = 2") == [("2",)]
        assert await client("SELECT a FROM t ORDER BY a LIMIT 1") == [("1",)]
        tables.append(coordinator.store.tables.table(named.id))
    # Their `upper` as well; but time also passes by itself, now and then.
    assert any(before == after for before, after in pairwise(tables))
    for number in range(3, 10):
        await strict(f"INSERT INTO t VALUES ({number})")
        assert await client(f"SELECT a FROM t WHERE a = {number}") == [(str(number),)]


async def test_serializable_reads_of_a_join_follow_all_inputs(coordinator: Coordinator) -> None:
    client = Client(coordinator, transaction_isolation="serializable")
    ingest(coordinator, [(1, "ann", 10.0)])
    await client.script("CREATE TABLE names (customer text, name text); INSERT INTO names VALUES ('ann', 'Ann')")
    await client('CREATE VIEW v AS SELECT id, name FROM "shop/orders" JOIN names USING (customer)')
    await client("CREATE INDEX ON v (id)")
    await until_maintained(coordinator, "v")
    for number in range(2, 6):
        ingest(coordinator, [(number, "ann", 10.0)])
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await client(f"SELECT name FROM v WHERE id = {number}"):
                await asyncio.sleep(0)


async def test_materialized_views_are_stored_and_read(world: SqlWorld) -> None:
    async with world.served() as (coordinator, client):
        ingest(coordinator, [(1, "ann", 10.0), (2, "ben", 5.5)])
        await client.script("CREATE TABLE names (customer text, name text); INSERT INTO names VALUES ('ann', 'Ann')")
        await client(
            'CREATE MATERIALIZED VIEW spent AS SELECT name, sum(amount) AS sum FROM "shop/orders" JOIN names USING (customer) GROUP BY 1'
        )
        await client("CREATE VIEW doubled AS SELECT name, sum * 2 AS twice FROM spent")
        assert await client("SELECT * FROM spent") == [("Ann", "10")]
        ingest(coordinator, [(3, "ann", 1.0)])
        assert await client("SELECT * FROM spent") == [("Ann", "11")]
        await client("INSERT INTO names VALUES ('ben', 'Ben')")
        assert await client("SELECT * FROM doubled ORDER BY 1") == [("Ann", "22"), ("Ben", "11")]
        await until_maintained(coordinator, "spent")
        assert await client("SELECT * FROM doubled ORDER BY 1") == [("Ann", "22"), ("Ben", "11")]
        time = coordinator.timeline.latest

    async with world.opened() as coordinator:
        reading = Client(coordinator, transaction_isolation="serializable")
        assert await reading("SELECT * FROM spent ORDER BY 1") in ([("Ann", "11")], [("Ann", "11"), ("Ben", "5.5")])
        coordinator.own()
        client = Client(coordinator)
        ingest(coordinator, [(4, "ben", 2.0)])
        assert await client("SELECT * FROM spent ORDER BY 1") == [("Ann", "11"), ("Ben", "7.5")]
        await until_maintained(coordinator, "spent")
        assert await client("SELECT * FROM spent ORDER BY 1") == [("Ann", "11"), ("Ben", "7.5")]
        assert await client(f"SELECT * FROM spent ORDER BY 1 AS OF {time}") == [("Ann", "11"), ("Ben", "5.5")]
        assert await client.fails("DROP MATERIALIZED VIEW spent") == "2BP01"
        assert await client.tag("DROP MATERIALIZED VIEW spent CASCADE") == "DROP MATERIALIZED VIEW"


async def test_volatile_views_are_not_maintained(client: Client) -> None:
    await client.script("CREATE TABLE t (a int); CREATE VIEW v AS SELECT a, now() AS at FROM t")

    assert await client.fails("CREATE MATERIALIZED VIEW m AS SELECT now()") == "0A000"
    assert await client.fails("CREATE MATERIALIZED VIEW m AS SELECT at FROM v") == "0A000"
    assert await client.fails("CREATE INDEX ON v (a)") == "0A000"


async def test_long_queries_are_evaluated_in_a_thread(coordinator: Coordinator, client: Client) -> None:
    await client("CREATE TABLE t (a int)")
    await client("INSERT INTO t SELECT * FROM generate_series(1, 3000)")
    await client("CREATE INDEX ON t (a)")
    await until_maintained(coordinator, "t")

    assert await client("SELECT count(*), max(length(a::text || 'x')) FROM t") == [("3000", "5")]
    assert len(await client("SELECT * FROM t")) == 3000
    assert await client("SELECT a FROM t WHERE a = $1", 7) == [("7",)]
    assert await client.fails("SELECT 1 / (a - 7) FROM t WHERE a = $1", 7) == "22012"
    await client("SET statement_timeout = '100ms'")
    assert await client.fails("SELECT count(*) FROM t x, t y, t z WHERE x.a + y.a = z.a + 1") == "57014"


async def test_inputs_of_a_view_are_kept_while_it_is_not_maintained(world: SqlWorld) -> None:
    async with world.served() as (coordinator, client):
        ingest(coordinator, [(1, "ann", 10.0)])
        await client('CREATE MATERIALIZED VIEW spent AS SELECT sum(amount) AS sum FROM "shop/orders"')
        await until_maintained(coordinator, "spent")
        assert await client("SELECT * FROM spent") == [("10",)]

    async with world.opened() as coordinator:
        ingest(coordinator, [(2, "ann", 1.0)])
        time = coordinator.store.timeline.present()
        ingest(coordinator, [(3, "ann", 2.0)])
        spec = coordinator.store.tables.as_stored(world.catalog.collections["shop/orders"])
        done = compact(coordinator.store, spec, since=coordinator.store.timeline.present())
        assert done is not None
        assert 0 < done.since < time

    async with world.opened() as coordinator:
        coordinator.own()
        client = Client(coordinator)
        await until_maintained(coordinator, "spent")
        assert await client(f"SELECT * FROM spent AS OF {time}") == [("11",)]
        assert await client("SELECT * FROM spent") == [("13",)]
        await client("DROP MATERIALIZED VIEW spent")
        while coordinator.store.task_capabilities.dataflows("view"):
            await coordinator.watcher.next.wait()


async def test_unmaintained_view_is_not_awaited(world: SqlWorld) -> None:
    async with world.served() as (coordinator, client):
        await client.script("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT count(*) FROM t")
        await until_maintained(coordinator, "v")

    async with world.served() as (coordinator, client):
        assert await client.fails("SELECT * FROM v") == "55000"
        assert await client.fails(f"SELECT * FROM v AS OF {coordinator.store.timeline.present()}") == "55000"
        coordinator.own()
        assert await client("SELECT * FROM v") == [("0",)]


async def test_views_continue_after_a_reset(world: SqlWorld, coordinator: Coordinator) -> None:
    client = Client(coordinator, transaction_isolation="serializable")
    ingest(coordinator, [(1, "ann", 10.0)])
    derive_all(world, coordinator)
    await client('CREATE MATERIALIZED VIEW v AS SELECT sum(spent) AS sum FROM "shop/spending"')
    table = coordinator.objects.find(None, "v")
    assert table

    async def until_written(rows: list[tuple[float]]) -> None:
        while True:
            commit = coordinator.watcher.next
            stored = coordinator.store.tables.table(table.id)
            assert stored
            if stored.upper > stored.since:
                batches = table_at(coordinator.store, stored, stored.upper - 1)
                if [row for batch in batches for row in batch] == rows:
                    return
            derive_all(world, coordinator)
            await commit.wait()

    await until_written([(10.0,)])
    reset(world.catalog, coordinator.store, ["shop/spending"])
    await coordinator.watcher.next.wait()
    ingest(coordinator, [(2, "ann", 1.0)])
    derive_all(world, coordinator)
    await until_written([(11.0,)])
    while await client("SELECT * FROM v") != [("11",)]:  # a serializable read may be of a time before
        await coordinator.watcher.next.wait()


def hydrate_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have other processes hydrate views of more than 1,000 rows, instead of more than 20,000."""
    defaults = Instance.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "most_here", 1_000)


async def test_views_of_many_rows_are_maintained(world: SqlWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process works them out, of tables, collections and other views; also what they keep after a restart."""
    count = 3_000
    hydrate_elsewhere(monkeypatch)

    seen: set[tuple[str | None, ...]] = set()
    async with world.served() as (coordinator, client):
        ingest(coordinator, [(number, f"c{number % 3}", 1.0) for number in range(count)])
        await client("CREATE TABLE t (a int, b text)")
        await client(f"INSERT INTO t SELECT n, 'even' FROM generate_series(0, {2 * count - 2}, 2) AS s (n)")
        await client("CREATE VIEW v AS SELECT b, count(*) AS n FROM t GROUP BY b")
        await client('CREATE MATERIALIZED VIEW orders AS SELECT id, customer FROM "shop/orders"')
        await client("CREATE VIEW over AS SELECT customer, count(*) AS n FROM orders GROUP BY customer")
        await client("CREATE INDEX ON v (b)")
        await client("CREATE INDEX ON over (customer)")
        while (rows := await client("SHOW HYDRATIONS")) or not seen:
            seen.update((name, stage) for name, stage, _ in rows)
            await asyncio.sleep(0.01)
        # a short hydration may begin and end between two statements
        assert {name for name, _ in seen} <= {"v_b_idx", "orders", "over_customer_idx"}
        await until_maintained(coordinator, "v")
        await until_maintained(coordinator, "over")
        assert await client("SELECT n FROM v WHERE b = 'even'") == [(str(count),)]
        await client("INSERT INTO t VALUES (1, 'odd')")
        assert await client("SELECT * FROM v ORDER BY b") == [("even", str(count)), ("odd", "1")]
        assert await client("SELECT n FROM over ORDER BY customer") == [("1000",), ("1000",), ("1000",)]

    async with world.served() as (coordinator, client):
        await client("INSERT INTO t VALUES (3, 'odd')")
        ingest(coordinator, [(1, "c9", 1.0)])
        await until_maintained(coordinator, "over")
        assert await client("SELECT n FROM over ORDER BY customer") == [("1000",), ("999",), ("1000",), ("1",)]
        assert await client("SELECT count(*) FROM orders") == [(str(count),)]


async def test_grouping_sets_are_maintained(client: Client) -> None:
    await client("CREATE TABLE t (a int, b text, n int)")
    await client(
        "CREATE MATERIALIZED VIEW v AS SELECT a, b, sum(n) AS n, grouping(a, b) AS g FROM t GROUP BY ROLLUP (a, b)"
    )
    assert await client("SELECT * FROM v") == [(None, None, None, "3")]
    await client.script("INSERT INTO t VALUES (1, 'x', 10), (1, 'y', 20), (NULL, 'x', 5); DELETE FROM t WHERE b = 'y'")
    rows = [("1", "x", "10", "0"), (None, "x", "5", "0"), ("1", None, "10", "1"), (None, None, "5", "1")]
    assert await client("SELECT * FROM v ORDER BY g, a") == [*rows, (None, None, "15", "3")]


async def test_views_are_written_while_another_begins(
    monkeypatch: pytest.MonkeyPatch, coordinator: Coordinator, client: Client
) -> None:
    """The first rows of a large view are written once, beside other views; later updates follow in order."""
    count, hydrated = 3_000, set[str | None]()
    hydrate_elsewhere(monkeypatch)
    await client("CREATE TABLE ticks (n int)")
    await client("CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS n FROM ticks")
    await client("CREATE TABLE many (n int)")
    await client(f"INSERT INTO many SELECT n FROM generate_series(1, {count}) AS s (n)")
    await client("CREATE MATERIALIZED VIEW doubled AS SELECT n * 2 AS n FROM many")
    await client("INSERT INTO many VALUES (0)")
    names = {name: coordinator.objects.lookup(None, name) for name in ("counted", "doubled")}
    written: dict[str, set[int]] = {name: set() for name in names}
    while count + 1 not in written["doubled"]:
        await client("INSERT INTO ticks VALUES (1)")
        hydrated.update(name for name, *_ in await client("SHOW HYDRATIONS"))
        for name, named in names.items():
            assert named
            table = coordinator.store.tables.table(named.id)
            assert table
            if table.upper > table.since:
                rows = [row for batch in table_at(coordinator.store, table, table.upper - 1) for row in batch]
                written[name].add(len(rows) if name == "doubled" else int(str(rows[0][0])))
        await coordinator.watcher.next.wait()
    assert written["doubled"] <= {count, count + 1}
    assert len(written["counted"]) > 1
    assert hydrated == {"doubled"}


async def test_percentiles_are_maintained(client: Client) -> None:
    await client("CREATE TABLE t (a int, n int)")
    await client(
        "CREATE MATERIALIZED VIEW v AS SELECT a, percentile_cont(0.5) WITHIN GROUP (ORDER BY n) AS middle, "
        "mode() WITHIN GROUP (ORDER BY n) AS usual FROM t GROUP BY a"
    )
    await client("INSERT INTO t VALUES (1, 10), (1, 20), (1, 20), (1, 40), (2, NULL)")
    assert await client("SELECT * FROM v ORDER BY a") == [("1", "20", "20"), ("2", None, None)]
    await client("DELETE FROM t WHERE n = 20")
    assert await client("SELECT * FROM v ORDER BY a") == [("1", "25", "10"), ("2", None, None)]


async def test_nested_views_are_maintained(coordinator: Coordinator, client: Client) -> None:
    """Each reads a column of the one before more than once; SQLite by itself would double the text with each."""
    await client.script("CREATE TABLE v0 (a bigint); INSERT INTO v0 VALUES (1), (2)")
    for number in range(1, 25):
        united = f" UNION ALL SELECT a FROM v{number - 1} WHERE a < 0" if number % 9 == 0 else ""
        await client(f"CREATE VIEW v{number} AS SELECT a + 1 AS a FROM v{number - 1} WHERE a * 2 > 0{united}")
    assert await client("SELECT a FROM v24 ORDER BY a") == [("25",), ("26",)]
    await client("CREATE MATERIALIZED VIEW m AS SELECT a, count(*) AS n FROM v24 GROUP BY a")
    await client("CREATE INDEX ON v18 (a)")
    await until_maintained(coordinator, "m")
    assert await client("SELECT * FROM m ORDER BY a") == [("25", "1"), ("26", "1")]
    assert await client("SELECT a FROM v24 WHERE a = 26") == [("26",)]


async def test_excessive_depth_of_views_is_reported_in_one_sentence(client: Client) -> None:
    await client.script("BEGIN; CREATE TABLE v0 (a bigint)")
    with pytest.raises(SqlError) as reported:
        for number in range(1, 1000):
            await client(f"CREATE VIEW v{number} AS SELECT a FROM v{number - 1}")
    assert (reported.value.sqlstate, reported.value.message) == ("54001", "stack depth limit exceeded")


# Tasks that read a materialized view: they stop where it has an error, and go on once that is corrected.


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


@pytest.mark.catalog(DERIVING)
async def test_a_derivation_stops_where_a_view_has_an_error(
    world: SqlWorld, coordinator: Coordinator, client: Client
) -> None:
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
    said = "error[22012]: division by zero\n  = 'sql/public/v' has this error in place of its rows since"
    assert said in err
    code, out, err = await asyncio.to_thread(command, world, *READ)
    assert (code, out) == (1, "")
    assert said in err
    code, out, err = await asyncio.to_thread(command, world, *READ, "--as-of", format_rfc3339(before))
    assert (code, out) == (0, '{"id":1,"q":2}\n'), err

    await client("DELETE FROM t WHERE a = 0")
    assert await derive(world, coordinator) is None
    assert copies(world, coordinator.store) == [(1, 2, None), (1, 1, None)]


@pytest.mark.catalog(DERIVING)
async def test_derivation_reads_insertions_after_retractions(
    world: SqlWorld, coordinator: Coordinator, client: Client
) -> None:
    await client("CREATE TABLE t (id int, a int)")
    await client("CREATE MATERIALIZED VIEW v AS SELECT id, sum(a)::int AS q FROM t GROUP BY id")
    await client("INSERT INTO t VALUES (1, 5)")
    assert await derive(world, coordinator) is None
    await client("INSERT INTO t VALUES (1, -2)")  # the row that comes is less than the one that goes
    assert await derive(world, coordinator) is None
    assert copies(world, coordinator.store) == [(1, 5, None), (1, 3, None)]


async def test_run_does_not_advance_a_view(tmp_path: Path) -> None:
    world = SqlWorld(tmp_path, DERIVING)

    async with world.served() as (coordinator, client):
        await client.script("CREATE TABLE t (id int, a int); CREATE MATERIALIZED VIEW v AS SELECT id, a AS q FROM t")
        await until_stored(coordinator, "v")

    async with world.opened() as coordinator:
        before = coordinator.store.upper("sql/public/v")
        run = open_run(world.catalog, coordinator.store, InProcessExecutor())
        run.step()
        run.close()
        assert coordinator.store.upper("sql/public/v") == before


CREATE = """
import asyncio, os, signal, sys
from pathlib import Path
from derive.sql.coordinator import Coordinator
from derive.sql.maintenance.view_maintenance import Maintenance
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


async def test_created_view_holds_capabilities_on_its_inputs(tmp_path: Path) -> None:
    world = SqlWorld(tmp_path)

    async with world.opened() as coordinator:
        ingest(coordinator, [(1, "ann", 10.0)])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", CREATE, str(tmp_path)], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL

    async with world.opened() as coordinator:
        (view,) = coordinator.store.task_capabilities.dataflows("view")
        table = coordinator.store.tables.table(view)
        assert table
        ingest(coordinator, [(2, "ann", 1.0)])
        time = coordinator.store.timeline.present()
        ingest(coordinator, [(3, "ann", 2.0)])
        spec = coordinator.store.tables.as_stored(world.catalog.collections["shop/orders"])
        done = compact(coordinator.store, spec, since=coordinator.store.timeline.present())
        assert done is not None
        assert done.since <= table.since < time

    async with world.opened() as coordinator:
        coordinator.own()
        client = Client(coordinator)
        await until_stored(coordinator, "spent")
        assert await client(f"SELECT * FROM spent AS OF {time}") == [("11",)]
        assert await client("SELECT * FROM spent") == [("13",)]
        await client("DROP MATERIALIZED VIEW spent")
        assert not coordinator.store.task_capabilities.dataflows("view")
