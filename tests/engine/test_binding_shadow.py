"""Shadows of bindings: a second table is filled while the first one stays up to date, and then replaces its rows."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, Self

import apsw
import orjson
import pytest
from conftest import World, write_catalog
from crash_client import CrashServer
from refilled import DAY, VIEW, Shop, opened
from sql_databases import DATABASES, Database

from connectors.kit import ConnectorSpec
from connectors.materialize_sqlite import MaterializeSqlite
from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.reset import reset, start_over
from derive.engine.shadow import (
    begin_binding_shadows,
    drop_binding_shadows,
    new_shadows,
    prepare_shadow,
    require_no_binding_shadow,
    require_raised,
    with_shadows,
)
from derive.engine.swapping import BindingSwapping, swap_alone
from derive.engine.task_reconciler import open_changing_run
from derive.errors import EndpointError, UsageError
from derive.materialize.worker import close_streams
from derive.time.extent import Limits

FEW = Limits(documents=3)
FIRST = [(f"k{number}", 10 * number) for number in range(12)]
BINDING = "source: shop/sums, backfill"
NARROW = {BINDING: "source: shop/sums, fields: {exclude: [flow_published_at]}, backfill"}
WIDE = {BINDING: BINDING, "BACKFILL": "1"}
LIVE, SHADOW = "shop/sums -> sums", "shop/sums -> sums.v1"
STALE = 'SELECT count(*), count("flow_published_at") FROM "sums"'


class Filled:
    """A run that fills the second table of a shop whose binding is edited."""

    def __init__(self, shop: Shop, shards: int = 2, *, is_held: bool = False) -> None:
        self.shop, store = shop, shop.world.store
        running = begin_binding_shadows(store, shop.world.catalog, is_held=is_held)
        self.run, self.reconciler = open_changing_run(running, store, InProcessExecutor(), shards=shards, limits=FEW)
        self.swapping = BindingSwapping(store, self.run, self.reconciler, shop.world.catalog)

    def step(self) -> None:
        self.shop.world.wall += DAY
        self.run.step()
        assert [task.error for task in self.run.tasks.values() if task.error] == []

    def close(self) -> None:
        close_streams()
        self.run.close()


def dated(shop: Shop) -> list[tuple[Any, ...]]:
    """The number of rows, and of the rows with the column that only the edited binding has."""
    return shop.database.query(STALE)


def begin(shop: Shop, shards: int = 2) -> None:
    """Store the first rows without a column, and then edit the binding."""
    shop.edit(**NARROW)
    shop.ingest(*FIRST)
    shop.world.step(shards=shards)
    close_streams()
    shop.edit(**WIDE)


@pytest.fixture(params=sorted(DATABASES))
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    with opened(tmp_path, DATABASES[request.param](tmp_path)) as shop:
        begin(shop)
        yield shop


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Shop]:
    """A shop that materializes into SQLite."""
    with opened(tmp_path, DATABASES["sqlite"](tmp_path)) as shop:
        begin(shop)
        yield shop


@pytest.mark.sampled(1)
def test_shadow_is_filled_beside_rows_that_stay_up_to_date(shop: Shop) -> None:
    shop.database.query("""UPDATE "sums" SET "value" = 7 WHERE "id" = 'k3'""")
    filled = Filled(shop, is_held=True)
    filled.step()
    assert len(shop.others()) == 1
    shop.ingest(("k5", 1), ("new", 2))
    filled.step()
    assert shop.rows() == {**dict(FIRST), "k3": 7, "k5": 51, "new": 2}
    assert dated(shop) == [(13, 0)]
    assert not filled.swapping.advance()
    assert shop.rows("events") == shop.contents("shop/events")

    prepared, connector = prepare_shadow(
        shop.world.store, with_shadows(shop.world.catalog, filled.swapping.left.values()), VIEW
    )
    (difference,) = prepared.apply(connector, dry_run=True, compare=2).differences
    assert (difference.deleted, difference.inserted, difference.updated) == (0, 0, 13)
    first, second = map(orjson.loads, difference.rows)
    assert (first["key"], second["key"]) == (["k0"], ["k1"])
    assert first["before"] == {"flow_published_at": None}
    assert first["after"].keys() == {"flow_published_at"}

    shop.world.store.shadows.let_swap()
    shop.seen.clear()
    filled.swapping.advance()
    assert filled.swapping.swapped == [VIEW]
    filled.step()
    shop.ingest(("k6", 5))
    filled.step()
    shop.check()
    assert dated(shop) == [(13, 13)]
    assert shop.others() == []
    filled.close()
    shop.ingest(("k7", 1))
    shop.world.step()
    shop.check()


@pytest.mark.sampled(1)
def test_rows_that_only_one_table_has_are_counted(shop: Shop) -> None:
    filled = Filled(shop, is_held=True)
    filled.step()
    shop.database.query("""DELETE FROM "sums" WHERE "id" IN ('k1', 'k2')""")
    shop.database.query("""UPDATE "sums" SET "id" = 'gone' WHERE "id" = 'k3'""")
    running = with_shadows(shop.world.catalog, filled.swapping.left.values())
    prepared, connector = prepare_shadow(shop.world.store, running, VIEW)
    (difference,) = prepared.apply(connector, dry_run=True, compare=2).differences
    assert (difference.deleted, difference.inserted, difference.updated) == (1, 3, 9)
    gone, new = map(orjson.loads, difference.rows)
    assert (gone["key"], gone["before"]["value"], gone["after"]) == (["gone"], 30, None)
    assert (new["key"], new["before"], new["after"]["value"]) == (["k1"], None, 10)
    filled.close()


IS_NEW = 'SELECT "id", CASE WHEN "flow_published_at" IS NULL THEN 0 ELSE 1 END FROM "sums" ORDER BY "id"'


@pytest.mark.parametrize(
    "name", ["postgres", *(pytest.param(name, marks=pytest.mark.torture) for name in ("sqlite", "duckdb"))]
)
def test_reader_in_another_process_sees_old_or_new_rows(name: str, tmp_path: Path) -> None:
    """A process that reads the table all the time sees rows without the new column, and then rows with it."""
    script = Path(__file__).with_name("refill_reader.py")
    with opened(tmp_path, DATABASES[name](tmp_path)) as shop:
        begin(shop)
        filled = Filled(shop, is_held=True)
        filled.step()
        with subprocess.Popen(
            [sys.executable, str(script), name, orjson.dumps(shop.database.config), IS_NEW],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env={"PYTHONPATH": str(Path(__file__).parents[2])},
        ) as reader:
            assert reader.stdout
            assert orjson.loads(reader.stdout.readline()) == {key: 0 for key, _ in FIRST}
            shop.world.store.shadows.let_swap()
            filled.swapping.advance()
            filled.step()
            assert reader.stdin
            reader.stdin.close()
            seen = [orjson.loads(line) for line in reader.stdout]
        assert reader.returncode == 0
        assert seen == [{key: 1 for key, _ in FIRST}]
        filled.close()


@pytest.mark.sampled(1)
def test_given_up_shadow_leaves_the_live_rows(shop: Shop) -> None:
    filled = Filled(shop, is_held=True)
    filled.step()
    filled.close()
    store = shop.world.store
    assert drop_binding_shadows(store, shop.world.catalog, store.shadows.bindings()) == [SHADOW]
    assert shop.others() == []
    assert store.shadows.bindings() == []
    assert dated(shop) == [(12, 0)]
    state = store.task(VIEW)
    assert state is not None
    assert LIVE in state.positions
    assert SHADOW not in state.positions
    shop.edit(**NARROW, BACKFILL="0")
    shop.ingest(("k1", 5))
    shop.world.step()
    shop.check()
    assert dated(shop) == [(12, 0)]


@pytest.mark.sampled(1)
def test_shadow_is_swapped_without_a_run(shop: Shop) -> None:
    store = shop.world.store
    filled = Filled(shop, is_held=True)
    filled.run.step()
    filled.close()
    shop.ingest(("k1", 5))
    store.shadows.let_swap()
    (shadow,) = store.shadows.bindings()
    assert not store.shadows.behind(shadow)
    assert swap_alone(store, shop.world.catalog, shadow)
    assert dated(shop) == [(12, 12)]
    assert shop.others() == []
    shop.world.step()
    shop.check()


@pytest.mark.sampled(1)
def test_shadow_is_swapped_without_a_run_and_without_new_documents(shop: Shop) -> None:
    store = shop.world.store
    filled = Filled(shop, is_held=True)
    filled.step()
    filled.close()
    store.shadows.let_swap()
    (shadow,) = store.shadows.bindings()
    assert swap_alone(store, shop.world.catalog, shadow)
    assert (dated(shop), shop.others()) == ([(12, 12)], [])


def test_shadow_that_an_earlier_release_has_filled_is_swapped(table: Shop) -> None:
    """That release recorded a materialization only in files, and without a reset or refill in none."""
    store = table.world.store
    filled = Filled(table, is_held=True)
    filled.step()
    filled.close()
    with store.metadata.transaction() as db:
        db.execute("DELETE FROM materialization")
    store.shadows.let_swap()
    (shadow,) = store.shadows.bindings()
    assert swap_alone(store, table.world.catalog, shadow)
    assert (dated(table), table.others()) == ([(12, 12)], [])


def test_shadow_that_is_behind_is_not_swapped(table: Shop) -> None:
    store = table.world.store
    begin_binding_shadows(store, table.world.catalog, is_held=False)
    (shadow,) = store.shadows.bindings()
    assert store.shadows.behind(shadow) == [SHADOW]
    assert not swap_alone(store, table.world.catalog, shadow)
    assert store.shadows.bindings() == [shadow]


def test_error_of_a_shadow_does_not_stop_the_live_rows(table: Shop) -> None:
    """The second table refuses a row; the live rows continue, and the shadow continues when it is begun again."""
    filled = Filled(table)
    filled.run.step()
    (beside,) = table.others()
    table.database.query(
        f"""CREATE TRIGGER refuse BEFORE INSERT ON "{beside}" WHEN new.id = 'bad' BEGIN SELECT RAISE(ABORT, 'bad'); END"""
    )
    table.ingest(("bad", 1))
    filled.step()
    filled.step()
    assert table.rows()["bad"] == 1
    (shadow,) = filled.swapping.present().values()
    assert isinstance(shadow.error, EndpointError)
    assert "bad" in shadow.error.message
    assert not filled.swapping.advance()
    assert filled.run.waiting() == []
    filled.close()
    table.database.query("DROP TRIGGER refuse")
    again = Filled(table)
    again.step()
    again.swapping.advance()
    again.step()
    table.check()
    assert dated(table) == [(13, 13)]
    again.close()


def test_run_without_shadow_and_reset_are_refused_while_it_is_filled(table: Shop) -> None:
    Filled(table, is_held=True).close()
    store, catalog = table.world.store, table.world.catalog
    with pytest.raises(UsageError, match="a run without it would apply the edit at once"):
        require_no_binding_shadow(store.shadows.bindings(), [VIEW])
    require_no_binding_shadow(store.shadows.bindings(), ["shop/sums"])
    for name in (VIEW, "shop/sums"):
        with pytest.raises(UsageError, match="would not fit rows that start over"):
            reset(catalog, store, [name], cascade=True)
    table.edit(LEAST="1", BACKFILL="2")
    with pytest.raises(UsageError, match="the catalog was edited since the shadow began"):
        with_shadows(table.world.catalog, store.shadows.bindings())


def test_source_that_starts_over_stops_a_shadow_until_it_is_given_up(tmp_path: Path) -> None:
    """A follower would need a refill of the live rows, too; the rows stay until the shadow is given up."""
    with opened(tmp_path, DATABASES["sqlite"](tmp_path)) as table:
        table.edit(RESET="follow")
        begin(table)
        filled = Filled(table, is_held=True)
        filled.step()
        filled.close()
        store, before = table.world.store, table.rows()
        start_over(store, ["shop/sums"], [])
        again = Filled(table, is_held=True)
        table.world.wall += DAY
        again.run.step()
        errors = [str(task.error) for task in again.run.tasks.values() if task.error]
        again.close()
        assert len(errors) == 1
        assert "starts over while" in errors[0]
        assert "flowctl shadow drop" in errors[0]
        assert table.rows() == before
        drop_binding_shadows(store, table.world.catalog, store.shadows.bindings())
        table.ingest(("k1", 5))
        table.world.step()
        table.check()
        assert table.others() == []


class WithoutRefills(MaterializeSqlite):
    """A connector that cannot fill a second table."""

    def spec(self) -> ConnectorSpec:
        return replace(super().spec(), refills=False)


def test_connectors_without_refills_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path, replace(DATABASES["sqlite"](tmp_path), connector=WithoutRefills())) as shop:
        begin(shop)
        with pytest.raises(UsageError, match="its connector writes no second table"):
            new_shadows(shop.world.store, shop.world.catalog, is_held=False)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"table: sums }": "table: sums, delta_updates: true }"}, "the same edit changes its resource"),
        ({"strategy: sum }": "strategy: maximize }"}, "the reduction of '/value' of 'shop/sums' was edited"),
    ],
)
def test_edits_that_the_live_rows_would_feel_are_refused(table: Shop, edits: dict[str, str], message: str) -> None:
    table.edit(**edits)
    with pytest.raises(UsageError, match=message) as caught:
        new_shadows(table.world.store, table.world.catalog, is_held=False)
    assert caught.value.hint
    assert table.world.store.shadows.bindings() == []


def test_columns_that_the_endpoint_refuses_are_refused(table: Shop) -> None:
    table.database.query('ALTER TABLE "sums" ADD COLUMN "flow_published_at" INTEGER')
    with pytest.raises(UsageError, match="its column 'flow_published_at' has type INTEGER") as caught:
        new_shadows(table.world.store, table.world.catalog, is_held=False)
    assert caught.value.hint


def test_delta_updates_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path, DATABASES["sqlite"](tmp_path)) as shop:
        shop.edit(**{"table: sums }": "table: sums, delta_updates: true }"})
        shop.ingest(*FIRST)
        shop.world.step()
        shop.edit(BACKFILL="1")
        with pytest.raises(UsageError, match="delta updates are not replaced"):
            new_shadows(shop.world.store, shop.world.catalog, is_held=False)


def test_edited_columns_need_a_raised_backfill(table: Shop) -> None:
    require_raised(table.world.store, table.world.catalog)
    table.edit(BACKFILL="0")
    with pytest.raises(UsageError, match="'shop/sums -> sums' of 'shop/view' was edited, but its 'backfill'") as caught:
        require_raised(table.world.store, table.world.catalog)
    assert caught.value.hint
    assert "raise 'backfill'" in caught.value.hint
    assert new_shadows(table.world.store, table.world.catalog, is_held=False) == []


BASE = 1_700_000_000_000_000
KILLED = """
collections:
  a/items:
    key: [/id]
    schema:
      type: object
      required: [id]
      reduce: {strategy: merge}
      properties: {id: {type: integer}, n: {type: integer, reduce: {strategy: sum}}}
materializations:
  a/stored:
    endpoint: {connector: ENDPOINT}
    bindings: [{source: a/items, resource: {table: items}, fields: {exclude: [flow_published_at]}}]
"""
ENDPOINT = "{image: materialize-sqlite, config: {path: stored.db}}"
EDITED = KILLED.replace("fields: {exclude: [flow_published_at]}", "backfill: 1")
NAMED = ("swap.committing", "swap.committed", "swap.applied", "refill.applied", "refill.completing", "refill.completed")


class Folder:
    """A data folder whose materialization has an edited binding."""

    columns = "SELECT name FROM pragma_table_info('items')"
    tables = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"

    def __init__(self, folder: Path, server: CrashServer) -> None:
        self.folder, self.server = folder, server
        self.wall = BASE + 3 * DAY

    @classmethod
    def begin(cls, folder: Path, server: CrashServer, endpoint: str = ENDPOINT) -> Self:
        folder.mkdir()
        write_catalog(folder, KILLED.replace("ENDPOINT", endpoint))
        world = World(folder / "data", load(folder / "flow.yaml"), wall=BASE)
        for batch in range(2):
            world.ingest("a/items", [{"id": 4 * batch + at, "n": 1} for at in range(4)], clock=None)
            world.wall += DAY
            world.step(shards=2)
        close_streams()
        world.ingest("a/items", [{"id": at, "n": 1} for at in range(2)], clock=None)  # the live rows are behind
        world.store.close()
        write_catalog(folder, EDITED.replace("ENDPOINT", endpoint))
        return cls(folder, server)

    def copy(self, name: str) -> Folder:
        shutil.copytree(self.folder, self.folder.with_name(name))
        return Folder(self.folder.with_name(name), self.server)

    def do(self, what: str, failpoint: str = "") -> int:
        order = {"source": str(self.folder / "flow.yaml"), "data": str(self.folder / "data"), "wall": self.wall}
        return self.server.attempt(order | {"do": what, "arguments": []}, failpoint)

    def query(self, statement: str) -> list[Any]:
        with closing(apsw.Connection(str(self.folder / "stored.db"))) as database:
            database.set_busy_timeout(30_000)  # a connector of a killed process may be closing the file
            return database.execute(statement).fetchall()

    def require_one_version(self) -> None:
        """Require that no row has the new column, or all rows have it."""
        if "flow_published_at" in {name for (name,) in self.query(self.columns)}:
            ((rows, new),) = self.query("SELECT count(*), count(flow_published_at) FROM items")
            assert new in (0, rows)
            assert rows == 8

    def require_complete(self) -> None:
        """Require that each document is in the table once, also those of a later run, and that nothing else is left."""
        self.wall += DAY
        world = World(self.folder / "data", load(self.folder / "flow.yaml"), wall=self.wall)
        assert world.store.shadows.bindings() == []
        world.ingest("a/items", [{"id": at, "n": 1} for at in range(1, 3)], clock=None)
        world.wall += DAY
        world.step()
        close_streams()
        world.store.close()
        assert self.query("SELECT id, n FROM items ORDER BY id") == [
            *((0, 2), (1, 3), (2, 2), (3, 1)),
            *((key, 1) for key in range(4, 8)),
        ]
        assert self.query("SELECT count(*) FROM items WHERE flow_published_at IS NULL") == [(0,)]
        assert self.query(self.tables) == [("flow_checkpoints",), ("items",)]


class Elsewhere(Folder):
    """A data folder whose materialization is in PostgreSQL or DuckDB."""

    columns = (
        "SELECT column_name FROM information_schema.columns"
        " WHERE table_name = 'items' AND table_schema = current_schema()"
    )
    tables = "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema() ORDER BY 1"
    database: Database

    def query(self, statement: str) -> list[Any]:
        return self.database.query(statement)


def commits(step: int, first: int) -> Iterator[str]:
    """Every so many of all commits of the data folder and of the endpoint."""
    names = ("metadata.committing", "metadata.committed", "materialize.committing", "materialize.committed")
    return islice((f"{name}:{number}" for number in count(1) for name in names), first, 60, step)


@pytest.mark.parametrize(
    ("step", "first"), [(120, 9), *(pytest.param(4, first, marks=pytest.mark.torture) for first in range(4))]
)
def test_killed_shadow_is_swapped_once(step: int, first: int, server: CrashServer) -> None:
    """A run that fills a table and swaps is killed at each step; the next run completes it, with each document once."""
    killed = set()
    with tempfile.TemporaryDirectory() as name:
        begun = Folder.begin(Path(name) / "begun", server)
        for number, failpoint in enumerate(chain(NAMED, commits(step, first))):
            folder = begun.copy(str(number))
            status = folder.do("shadow_bindings", failpoint)
            assert status in (0, -signal.SIGKILL)
            folder.require_one_version()
            if status:
                killed.add(failpoint)
                assert folder.do("shadow_bindings") == 0, failpoint
            folder.require_complete()
    assert killed.issuperset(NAMED)
    assert killed > set(NAMED)


@pytest.mark.torture
@pytest.mark.parametrize("failpoint", [*NAMED, "materialize.committing:4", "materialize.committed:4"])
@pytest.mark.parametrize("name", ["duckdb", "postgres"])
def test_killed_shadow_elsewhere_is_swapped_once(
    name: str, failpoint: str, server: CrashServer, tmp_path: Path
) -> None:
    database = DATABASES[name](tmp_path)
    endpoint = orjson.dumps({"image": database.connector.name, "config": database.config}).decode()
    folder = Elsewhere.begin(tmp_path / "begun", server, endpoint)
    folder.database = database
    assert folder.do("shadow_bindings", failpoint) == -signal.SIGKILL
    folder.require_one_version()
    assert folder.do("shadow_bindings") == 0
    folder.require_complete()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "failpoint", ["metadata.committing", "shadow.emptied", "metadata.committed:2", "shadow.dropped"]
)
def test_killed_drop_is_done_again(failpoint: str, server: CrashServer, tmp_path: Path) -> None:
    folder = Folder.begin(tmp_path / "begun", server)
    assert folder.do("shadow_bindings", "swap.committing") == -signal.SIGKILL
    assert folder.do("drop_bindings", failpoint) == -signal.SIGKILL
    folder.require_one_version()
    assert folder.do("drop_bindings") == 0
    assert folder.query("SELECT name FROM sqlite_schema WHERE name LIKE '%refill%'") == []
    assert folder.query("SELECT count(*) FROM items WHERE flow_published_at IS NOT NULL") == [(0,)]
    assert folder.do("shadow_bindings") == 0
    folder.require_complete()
