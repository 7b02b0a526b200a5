"""A reset of a derivation, and of the bindings that read it: the other bindings of a materialization go on as they were."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import apsw
import pytest
from conftest import World, write_catalog
from crash_client import CrashServer
from materialized import CATALOG, folded, ingest, orders, served, tables
from typing_extensions import override

from connectors.kit.connector import Session
from connectors.kit.requests import Opening
from connectors.materialize_sqlite import MaterializeSqlite
from derive.catalog import load
from derive.engine.reset import reset, split, undo
from derive.errors import EndpointGoneError, StorageError
from derive.materialize import stream
from derive.materialize.worker import close_streams
from derive.storage.ingest import Ingestion
from derive.storage.metadata.ingestions import LoadedFile
from derive.storage.task_log import recent_entries
from derive.time.extent import Limits

LEAST: list[int] = []
"""How many rows the table of orders had after each commit."""


class Watching(MaterializeSqlite):
    """Counts rows of orders whenever something was committed."""

    @override
    def open(self, opening: Opening) -> Session:
        session = super().open(opening)
        path = opening.materialization.config["path"]
        commit = session.commit

        def watched() -> None:
            commit()
            with closing(apsw.Connection(path)) as database:
                LEAST.append(database.execute("SELECT count(*) FROM orders").get)

        session.commit = watched  # type: ignore[method-assign]
        return session


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """One whose tables are as they should be, but for a mark in each row."""
    with served(Watching()) as address:
        text = CATALOG.replace("ADDRESS", address).replace("PATH", str(tmp_path / "out.db"))
        world = World(tmp_path / "data", load(write_catalog(tmp_path, text)))
        yield world
        close_streams()
        world.store.close()


def mark(path: Path) -> None:
    """Have rows hold what no run stores."""
    with closing(apsw.Connection(str(path))) as database:
        database.set_busy_timeout(30_000)
        database.execute("UPDATE orders SET customer = 'marked'; UPDATE spending SET orders = -1")


def marked(path: Path) -> tuple[int, int]:
    """How many rows of each table have their mark."""
    with closing(apsw.Connection(str(path))) as database:
        database.set_busy_timeout(30_000)
        return (
            database.execute("SELECT count(*) FROM orders WHERE customer = 'marked'").get,
            database.execute("SELECT count(*) FROM spending WHERE orders = -1").get,
        )


def start_over(world: World, names: Sequence[str] = ("shop/spending",)) -> None:
    close_streams()
    assert reset(world.catalog, world.store, names, cascade=True)[: len(names)] == list(names)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shards", [1, 3])
def test_partial_reset_keeps_rows_of_other_bindings(world: World, shards: int) -> None:
    """No commit takes a row of theirs away or stores one again; what starts over is as in a fresh endpoint."""
    path = world.root.parent / "out.db"
    ingest(world, 0, 100)
    world.step(shards=shards)
    mark(path)
    start_over(world)
    LEAST.clear()
    for day in (2, 3):
        ingest(world, 90 + 10 * day, 100 + 10 * day, day=day)
        world.step(shards=shards, limits=Limits(documents=40))
    assert min(LEAST) == 100
    assert tables(path) == folded(world)
    assert marked(path) == (100, 0)
    start_over(world)
    start_over(world)
    world.step(shards=shards)
    assert tables(path) == folded(world)
    assert marked(path) == (100, 0)
    close_streams()
    reset(world.catalog, world.store, ["shop/view"])
    world.step(shards=shards)
    assert tables(path) == folded(world)
    assert marked(path) == (0, 0)


def test_undo_of_a_load_removes_its_rows_from_the_endpoint(world: World) -> None:
    path = world.root.parent / "out.db"
    ingest(world, 0, 20)
    world.wall += 86_400_000_000
    spec = world.catalog.collections["shop/orders"]
    load_of_day_2 = LoadedFile("day2", "2", lambda: "")
    Ingestion(world.store, spec, clock="/at").load("day2", enumerate(orders(15, 30, day=2), start=1), load_of_day_2)
    world.step()
    assert (tables(path), len(folded(world)["shop/orders"])) == (folded(world), 30)
    close_streams()
    tasks = undo(world.catalog, world.store, "shop/orders", "2", reset_readers=True)
    assert sorted(tasks) == ["shop/spending", "shop/view"]
    world.step()
    assert (tables(path), len(folded(world)["shop/orders"])) == (folded(world), 20)


def test_undo_of_a_load_that_only_the_endpoint_has_recorded_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = world.root.parent / "out.db"
    ingest(world, 0, 20)
    world.step()
    world.wall += 86_400_000_000
    spec = world.catalog.collections["shop/orders"]
    load = LoadedFile("day2", "2", lambda: "")
    Ingestion(world.store, spec, clock="/at").load("day2", enumerate(orders(15, 30, day=2), start=1), load)

    def fail(name: str) -> None:
        if name == "materialize.committed":
            raise EndpointGoneError("the run ends here")

    monkeypatch.setattr(stream, "reach", fail)
    with suppress(EndpointGoneError):
        world.step()
    close_streams()
    monkeypatch.undo()

    with pytest.raises(StorageError, match="'shop/view' may have stored them in its endpoint"):
        undo(world.catalog, world.store, "shop/orders", "2", reset_readers=False)
    undo(world.catalog, world.store, "shop/orders", "2", reset_readers=True)
    world.step()
    assert (tables(path), len(folded(world)["shop/orders"])) == (folded(world), 20)


def test_partial_resets_combine_with_a_whole_reset(world: World) -> None:
    path = world.root.parent / "out.db"
    for number, order in enumerate([("part", "all"), ("all", "part"), ("part", "run", "all"), ("all", "run", "part")]):
        ingest(world, 0, 50 + number, day=1 + number)
        world.step()
        mark(path)
        for what in order:
            close_streams()
            if what == "run":
                world.step()
                assert marked(path)[1] == 0
                mark(path)
            elif what == "part":
                start_over(world)
            else:
                reset(world.catalog, world.store, ["shop/view"])
        world.step()
        assert tables(path) == folded(world)
        assert marked(path)[1] == 0
        assert (marked(path)[0] == 0) == (order != ("all", "run", "part"))


def test_partial_reset_and_split_combine(world: World) -> None:
    path = world.root.parent / "out.db"
    ingest(world, 0, 100)
    world.step(shards=1)
    mark(path)
    start_over(world)
    split(world.store, "shop/view", is_materialized=True)
    ingest(world, 100, 120, day=2)
    world.step()
    assert tables(path) == folded(world)
    assert marked(path) == (100, 0)


def test_partial_reset_counts_stored_rows_and_reports_no_loss(world: World) -> None:
    """Documents that are read to be deleted are not counted; documents stored in the same transaction are."""
    ingest(world, 0, 100)
    world.step()
    state = world.task("shop/view")
    assert (state.documents_in, state.documents_out) == (200, 107)
    close_streams()
    reset(world.catalog, world.store, ["shop/view"])
    ingest(world, 100, 120, day=2)
    world.step()
    state = world.task("shop/view")
    assert (state.documents_in, state.documents_out) == (240, 127)
    assert tables(world.root.parent / "out.db") == folded(world)
    messages = [entry["message"] for entry in recent_entries(world.root, "shop/view")]
    assert not [message for message in messages if "has lost rows" in message]


# Kills


RESETS = [("reset.committing", False), ("reset.committed", True), ("reset.removed", True)]
RUNS = [
    f"{point}:{times}"
    for point in ("materialize.committing", "materialize.committed", "metadata.committing", "metadata.committed")
    for times in (1, 2, 4)
]


def scene_of(folder: Path) -> World:
    text = CATALOG.replace('address: "ADDRESS"', "connector: {image: materialize-sqlite, config: {path: out.db}}")
    text = text.replace(', config: { path: "PATH" }', "")
    world = World(folder / "data", load(write_catalog(folder, text)))
    ingest(world, 0, 60)
    world.step(shards=2)
    close_streams()
    mark(folder / "out.db")
    world.store.close()
    return world


def do(server: CrashServer, world: World, what: str, *arguments: object, failpoint: str = "") -> int:
    order = {"source": str(world.root.parent / "flow.yaml"), "data": str(world.root), "wall": world.wall}
    return server.attempt(order | {"do": what, "arguments": list(arguments)}, failpoint)


def check(world: World, *, is_done: bool) -> None:
    reopened = World(world.root, world.catalog, wall=world.wall)
    path = world.root.parent / "out.db"
    assert tables(path) == folded(reopened)
    assert marked(path) == (60, 0 if is_done else 7)
    reopened.store.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("failpoint", "is_done"), RESETS)
def test_killed_partial_reset_is_complete_or_absent(
    failpoint: str, is_done: bool, server: CrashServer, tmp_path: Path
) -> None:
    world = scene_of(tmp_path)
    assert do(server, world, "reset", "shop/spending", failpoint=failpoint) == -signal.SIGKILL
    world.wall += 10_000_000
    assert do(server, world, "run", 2, 20) == 0
    check(world, is_done=is_done)
    assert do(server, world, "reset", "shop/spending") == 0
    assert do(server, world, "run", 2, 20) == 0
    check(world, is_done=True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("failpoint", RUNS)
def test_run_after_a_partial_reset_survives_kills(failpoint: str, server: CrashServer, tmp_path: Path) -> None:
    world = scene_of(tmp_path)
    assert do(server, world, "reset", "shop/spending") == 0
    world.wall += 10_000_000
    assert do(server, world, "run", 2, 20, failpoint=failpoint) in (0, -signal.SIGKILL)
    world.wall += 10_000_000
    assert do(server, world, "run", 2, 20) == 0
    check(world, is_done=True)


def test_rows_of_an_emptied_source_are_deleted_although_another_source_has_stopped(world: World) -> None:
    path = world.root.parent / "out.db"
    ingest(world, 0, 10)
    world.step(shards=1)
    text = (world.root.parent / "flow.yaml").read_text()
    text = text.replace("{ resource: { table: orders }, ", "{ resource: { table: orders }, onSourceReset: follow, ")
    disabled = text.replace("using: { sqlite: {} }", "using: { sqlite: {} }\n      shards: { disable: true }")
    world.catalog = load(write_catalog(world.root.parent, disabled))
    world.store.truncate("shop/orders")
    world.wall += 60_000_000
    for _ in range(2):
        world.step()

    contents = tables(path)
    assert contents["shop/orders"] == []
    assert len(contents["shop/spending"]) == 7
