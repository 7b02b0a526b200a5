"""Materializations from end to end, into SQLite: what its tables hold is what the collections hold."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import World, write_catalog
from materialized import CATALOG, folded, ingest, served, tables
from patience import PATIENCE_SECONDS

from connectors.kit.connector import Session
from connectors.kit.requests import Opening
from connectors.materialize_sqlite import MaterializeSqlite
from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.inputs import settle
from derive.engine.reset import reset
from derive.engine.task_reconciler import open_run
from derive.errors import EndpointError, FencedError, UsageError
from derive.materialize.worker import close_streams
from derive.spark.executor import SparkExecutor
from derive.time.extent import Limits


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with served() as address:
        text = CATALOG.replace("ADDRESS", address).replace("PATH", str(tmp_path / "out.db"))
        world = World(tmp_path / "data", load(write_catalog(tmp_path, text)))
        yield world
        close_streams()
        world.store.close()


def check(world: World) -> None:
    assert tables(world.root.parent / "out.db") == folded(world)


@pytest.mark.parametrize("shards", [1, 3])
def test_new_run_stores_lost_rows_again_without_new_documents(world: World, shards: int) -> None:
    ingest(world, 0, 100)
    world.step(shards=shards)
    close_streams()
    for file in world.root.parent.glob("out.db*"):
        file.unlink(missing_ok=True)
    world.wall += 1_000_000
    world.step(shards=shards)
    check(world)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shards", [1, 3])
def test_shards_and_transaction_sizes_do_not_change_rows(world: World, shards: int) -> None:
    for day in range(1, 4):
        ingest(world, day * 10, day * 10 + 60, day)
        world.step(shards=shards, limits=Limits(documents=7))
        check(world)


def test_fenced_run_stores_nothing_more(world: World) -> None:
    ingest(world, 0, 100)
    first = world.run()
    first.step()
    ingest(world, 90, 120, day=2)
    world.step()
    check(world)
    ingest(world, 120, 130, day=3)
    with pytest.raises(FencedError):
        first.step()
    world.step()
    check(world)


@pytest.mark.parametrize("is_reset", [True, False])
def test_dropped_table_is_not_recreated_without_its_rows(world: World, tmp_path: Path, *, is_reset: bool) -> None:
    ingest(world, 0, 100)
    world.step()
    close_streams()
    with closing(sqlite3.connect(tmp_path / "out.db")) as database:
        database.execute("DROP TABLE spending")
    ingest(world, 50, 150, day=2)
    for _ in range(2):
        with pytest.raises(EndpointError, match="'spending' was dropped") as reported:
            world.step()
        assert "backfill" in str(reported.value.hint)
    if is_reset:
        reset(world.catalog, world.store, ["shop/view"])
    else:
        text = (tmp_path / "flow.yaml").read_text()
        raised = text.replace("source: shop/spending }", "source: shop/spending, backfill: 1 }")
        assert raised != text
        world.catalog = load(write_catalog(tmp_path, raised))
    world.step()
    check(world)


def test_unread_history_of_a_materialization_is_kept(world: World) -> None:
    ingest(world, 0, 10)
    world.step()
    position = min(world.task("shop/view").positions.values())
    assert settle(world.catalog, world.store) == []
    holds = world.store.history.frontiers("shop/orders").readers  # type: ignore[union-attr]
    assert {hold.task: hold.frontier for hold in holds}["shop/view"] == position


def test_reset_with_sources_leaves_no_former_rows(world: World) -> None:
    ingest(world, 0, 100)
    world.step()
    with pytest.raises(UsageError, match="shop/view reads shop/spending"):
        reset(world.catalog, world.store, ["shop/spending"])
    assert reset(world.catalog, world.store, ["shop/spending"], cascade=True) == ["shop/spending", "shop/view"]
    for _ in range(3):
        world.step()
    check(world)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("is_reset", [False, True])
def test_binding_that_is_added_again_continues_at_its_former_position(
    world: World, shards: int, *, is_reset: bool
) -> None:
    whole = world.catalog
    view = whole.materializations["shop/view"]
    others = {"shop/view": replace(view, bindings=view.bindings[:1])}
    ingest(world, 0, 50)
    world.step(shards=shards)
    close_streams()
    world.catalog = replace(whole, materializations=others)
    ingest(world, 50, 80, day=2)
    if is_reset:
        reset(world.catalog, world.store, ["shop/view"])
    world.step(shards=shards)
    close_streams()
    world.catalog = whole
    ingest(world, 80, 90, day=3)
    world.step()
    check(world)


@pytest.mark.spark
def test_spark_stores_the_rows_of_this_process(world: World, spark: SparkExecutor) -> None:
    for day in range(1, 3):
        ingest(world, day * 10, day * 10 + 600, day)
        world.step(spark, shards=3, limits=Limits(small_documents=0))
        check(world)


def test_binding_does_not_wait_for_sources_of_other_bindings(world: World) -> None:
    ingest(world, 0, 100)
    world.step()
    ingest(world, 90, 120, day=2)
    run = open_run(world.catalog, world.store, InProcessExecutor(), tasks=["shop/view"])
    while run.step():
        pass
    stored = tables(world.root.parent / "out.db")
    assert stored["shop/orders"] == folded(world)["shop/orders"]
    assert len(stored["shop/orders"]) == 120
    run.close()
    world.step()
    check(world)


def test_shards_without_rows_catch_up_in_small_transactions(world: World) -> None:
    for day in range(1, 5):
        ingest(world, day * 20, day * 20 + 20, day)
        world.step(shards=4)
    close_streams()
    for file in world.root.parent.glob("out.db*"):
        file.unlink(missing_ok=True)
    world.wall += 1_000_000
    world.step(limits=Limits(documents=2))
    check(world)


def test_raised_backfill_does_not_use_the_former_progress(world: World, tmp_path: Path) -> None:
    bindings = "{ resource: { table: spending }, source: shop/spending, backfill: 1 }"
    other = "{ resource: { table: spending.v1 }, source: shop/spending }"
    text = (tmp_path / "flow.yaml").read_text()
    view = load(write_catalog(tmp_path, f"{text.rstrip()}\n      - {bindings.replace('spending }', 'again }')}\n"))
    keys = {item.state_key for item in view.materializations["shop/view"].inputs}
    text = f"{text.rstrip()}\n      - {other.replace('spending.v1', 'again.v1')}\n"
    keys |= {item.state_key for item in load(write_catalog(tmp_path, text)).materializations["shop/view"].inputs}
    assert len(keys) == 4


ASKED, MAY_ANSWER = threading.Event(), threading.Event()


class Silent(MaterializeSqlite):
    """A connector that does not answer to being opened, until it may."""

    def open(self, opening: Opening) -> Session:
        ASKED.set()
        assert MAY_ANSWER.wait(PATIENCE_SECONDS)
        return super().open(opening)


def test_unopened_stream_can_be_ended(tmp_path: Path) -> None:
    with served(Silent()) as address:
        text = CATALOG.replace("ADDRESS", address).replace("PATH", str(tmp_path / "out.db"))
        world = World(tmp_path / "data", load(write_catalog(tmp_path, text)))
        ingest(world, 0, 10)
        run = world.run()
        stepping = threading.Thread(target=run.step)
        stepping.start()
        assert ASKED.wait(PATIENCE_SECONDS)
        close_streams("shop/view")
        stepping.join(PATIENCE_SECONDS)
        assert not stepping.is_alive()
        assert run.tasks["shop/view"].error is not None
        MAY_ANSWER.set()
        world.store.close()
