"""Bindings that start over: readers see the rows of before until those that replace them are complete."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

import apsw
import orjson
import pytest
from crash_client import FENCED, CrashServer
from forked_flowctl import flowctl
from refilled import DAY, VIEW, Shop, opened
from sql_databases import DATABASES

from connectors.kit import ConnectorSpec
from connectors.materialize_sqlite import MaterializeSqlite
from derive.engine import materialization
from derive.engine.reset import split, start_over
from derive.errors import EndpointGoneError
from derive.materialize import stream
from derive.materialize.restarts import read_refills
from derive.materialize.worker import close_streams
from derive.storage.task_log import recent_entries
from derive.time.extent import Limits

FEW = Limits(documents=3)
FIRST = [(f"k{number}", 10 * number) for number in range(12)]


@pytest.fixture(params=sorted(DATABASES))
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    with opened(tmp_path, DATABASES[request.param](tmp_path)) as shop:
        yield shop


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Shop]:
    """A shop that materializes into SQLite."""
    with opened(tmp_path, DATABASES["sqlite"](tmp_path)) as shop:
        yield shop


def is_refilling(shop: Shop) -> bool:
    return bool(read_refills(shop.world.store, VIEW))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shards", [1, 3])
def test_refill_does_not_reduce_onto_a_deleted_key(shop: Shop, shards: int) -> None:
    """A key that the new history lacks goes from the table, and a later document of it begins from nothing."""
    shop.ingest(*FIRST)
    shop.world.step(shards=shards)
    shop.check()
    before = shop.rows()
    shop.edit(LEAST="60")
    shop.reset("shop/sums")
    shop.seen.clear()
    shop.world.step(shards=shards, limits=FEW)
    after = shop.rows()
    assert sorted(after) == ["k10", "k11", "k6", "k7", "k8", "k9"]
    assert len(shop.seen) > shards
    assert [seen for seen in shop.seen if seen not in (before, after)] == []
    assert shop.seen.index(after) == max(number for number, seen in enumerate(shop.seen) if seen == before) + 1
    shop.check()
    assert shop.others() == []

    shop.ingest(("k5", 100), ("k6", 100))
    shop.world.step(shards=shards)
    assert shop.rows() == {**after, "k5": 100, "k6": 160}
    shop.check()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", sorted(DATABASES))
def test_a_reader_in_another_process_sees_old_or_new_rows(name: str, tmp_path: Path) -> None:
    """A process that reads the table all the time sees the old rows, then the new ones, and nothing else."""
    script = Path(__file__).with_name("refill_reader.py")
    with opened(tmp_path, DATABASES[name](tmp_path)) as shop:
        shop.ingest(*FIRST)
        shop.world.step(shards=2)
        before = shop.rows()
        with subprocess.Popen(
            [sys.executable, str(script), name, orjson.dumps(shop.database.config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env={"PYTHONPATH": str(Path(__file__).parents[2])},
        ) as reader:
            assert reader.stdout
            assert orjson.loads(reader.stdout.readline()) == before
            shop.edit(LEAST="60")
            shop.reset("shop/sums")
            shop.world.step(limits=FEW)
            assert reader.stdin
            reader.stdin.close()
            seen = [orjson.loads(line) for line in reader.stdout]
        assert reader.returncode == 0
        assert seen == [shop.contents()]


class Photographed(Shop):
    """A shop that keeps the state of its database after each change."""

    states: list[bytes]

    def look(self) -> None:
        self.states.append(self.photograph())

    def photograph(self) -> bytes:
        """The database as it is; of PostgreSQL, the name of a schema with copies of the tables, and their names."""
        if "schema" in self.database.config:
            photo = f"{self.database.config['schema']} {len(self.states)}"
            names = [name for (name,) in self.database.query(TABLES)]
            self.database.query("; ".join((f'CREATE SCHEMA "{photo}"', *copies(f'"{photo}".', "", names))))
            return orjson.dumps([photo, names])
        if "duckdb" in self.database.config["path"]:
            return Path(self.database.config["path"]).read_bytes()
        with closing(apsw.Connection(self.database.config["path"])) as database:
            state = database.serialize("main")
        return state[:18] + bytes((1, 1)) + state[20:]  # a database in memory has no write-ahead log

    def put_back(self, state: bytes) -> None:
        """Have the database be as it was, in one transaction."""
        close_streams()
        if "schema" in self.database.config:
            photo, names = orjson.loads(state)
            drops = [f'DROP TABLE "{name}"' for (name,) in self.database.query(TABLES)]
            self.database.query("; ".join((*drops, *copies("", f'"{photo}".', names))))
            return
        if "duckdb" in self.database.config["path"]:
            Path(self.database.config["path"]).write_bytes(state)
            return
        with (
            closing(apsw.Connection(":memory:")) as before,
            closing(apsw.Connection(self.database.config["path"])) as now,
        ):
            before.deserialize("main", state)
            now.set_busy_timeout(30_000)
            with now.backup("main", before, "main") as backup:
                backup.step()


TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"


def copies(to: str, of: str, names: list[str]) -> Iterator[str]:
    """Statements that copy tables of PostgreSQL, with keys and defaults, from one schema to another."""
    for name in names:
        yield f'CREATE TABLE {to}"{name}" (LIKE {of}"{name}" INCLUDING ALL)'
        yield f'INSERT INTO {to}"{name}" TABLE {of}"{name}"'


@pytest.mark.parametrize(
    ("name", "is_half"),
    [
        ("sqlite", False),
        *(
            pytest.param(*case, marks=pytest.mark.torture)
            for case in product(sorted(DATABASES), (False, True))
            if case != ("sqlite", False)
        ),
    ],
)
def test_endpoint_restored_during_a_refill_is_refilled(name: str, tmp_path: Path, *, is_half: bool) -> None:
    """The database is put back to its state after each commit, when a refill is at another commit or over."""
    with opened(tmp_path, DATABASES[name](tmp_path), Photographed) as shop:
        assert isinstance(shop, Photographed)
        shop.states = []
        shop.ingest(*FIRST)
        shop.world.step(shards=2)
        shop.edit(LEAST="60")
        shop.reset("shop/sums")
        shop.world.step(limits=FEW)
        states = shop.states[-6:]
        assert any(b"__refill_" in state for state in states)
        for number, state in enumerate([*states, *reversed(states)][:: 2 - is_half]):
            if is_half:
                shop.reset(VIEW)
                shop.begin_half(commits=1 + number % 3)
            shop.put_back(state)
            shop.ingest((f"k{number}", 7), ("k11", 1))
            shop.world.step(limits=FEW)
            shop.check()
            assert shop.others() == []


def reset_again(shop: Shop) -> None:
    shop.edit(LEAST="90")
    shop.reset("shop/sums")


def split_shards(shop: Shop) -> None:
    close_streams()
    split(shop.world.store, VIEW, is_materialized=True)
    shop.ingest(("k3", 70))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("disturb", [reset_again, split_shards])
def test_disturbed_refill_replaces_the_rows_at_one_time(shop: Shop, disturb: Callable[[Shop], None]) -> None:
    shop.ingest(*FIRST)
    shop.world.step(shards=2)
    before = shop.rows()
    shop.edit(LEAST="60")
    shop.reset("shop/sums")
    shop.begin_half()
    assert is_refilling(shop)
    assert len(shop.others()) == 1
    assert shop.rows() == before
    disturb(shop)
    shop.seen.clear()
    shop.world.step(limits=FEW)
    after = shop.rows()
    assert "k5" not in after
    assert [seen for seen in shop.seen if seen not in (before, after)] == []
    shop.check()
    assert shop.others() == []


def test_backfill_raised_and_lowered_keeps_the_rows(table: Shop) -> None:
    """The rows are those of the former `backfill` until the refill is complete, and go on if that comes back."""
    table.ingest(*FIRST)
    table.world.step(shards=2)
    for backfill in ("1", "0", "2", "3", "2"):
        table.edit(BACKFILL=backfill)
        close_streams()
        table.ingest((f"k{backfill}", 1))
        table.world.step()
        table.check()
    before = table.rows()
    table.edit(BACKFILL="4")
    close_streams()
    table.begin_half()
    assert is_refilling(table)
    assert table.rows() == before
    table.edit(BACKFILL="2")
    table.world.wall += DAY
    table.seen.clear()
    table.world.step()
    assert not is_refilling(table)
    assert {**before} in table.seen
    table.ingest(("k1", 1))
    table.world.step()
    assert table.rows() == {**before, "k1": before["k1"] + 1}
    table.check()
    assert table.others() == []


@pytest.mark.sampled(1)
def test_splits_after_a_reset_to_fewer_shards_complete_the_refill(shop: Shop) -> None:
    """The new shards do not continue from the checkpoints of the shards before the reset."""
    shop.ingest(*FIRST)
    shop.world.step(shards=4)
    shop.reset("shop/sums", VIEW)
    shop.world.step(shards=1)
    for number in range(3):
        close_streams()
        shop.ingest(*[(name, number) for name, _ in FIRST])
        shop.world.step()
        shop.check()
        split(shop.world.store, VIEW, is_materialized=True)
    messages = [entry["message"] for entry in recent_entries(shop.world.root, VIEW)]
    assert not [message for message in messages if "has lost rows" in message]


def test_refill_completes_with_a_shard_without_documents(table: Shop) -> None:
    """A shard that the refill has nothing for goes on from nothing when a document comes for it."""
    table.ingest(*FIRST)
    table.world.step(shards=4)
    table.edit(LEAST="110")
    table.reset("shop/sums")
    table.world.step()
    assert table.rows() == {"k11": 110}
    for begin in range(0, len(FIRST), 4):
        close_streams()
        table.ingest(*[(name, 200) for name, _ in FIRST[begin : begin + 4]])
        table.world.step()
        table.check()
    messages = [entry["message"] for entry in recent_entries(table.world.root, VIEW)]
    assert not [message for message in messages if "has lost rows" in message]


@pytest.mark.sampled(1)
def test_refilled_table_keeps_indexes_and_views(shop: Shop) -> None:
    """Views, indexes, other columns and rows without a document stay; rows that do not change stay where they are."""
    shop.ingest(*FIRST)
    shop.world.step(shards=2)
    shop.database.query('CREATE VIEW "large" AS SELECT "id" FROM "sums" WHERE "value" >= 100')
    shop.database.query('CREATE INDEX "by_value" ON "sums" ("value")')
    shop.edit(LEAST="60")
    shop.reset("shop/sums")
    shop.world.step()
    shop.check()
    assert sorted(shop.database.query('SELECT "id" FROM "large"')) == [("k10",), ("k11",)]


def test_the_log_and_the_status_report_a_refill(table: Shop) -> None:
    table.ingest(*FIRST)
    table.world.step()
    table.edit(LEAST="60")
    table.reset("shop/sums")
    table.begin_half()
    limits = read_refills(table.world.store, VIEW)
    assert list(limits) == ["shop/sums -> sums"]
    table.world.step()
    assert read_refills(table.world.store, VIEW) == {}
    messages = [entry["message"] for entry in recent_entries(table.world.root, VIEW)]
    started, finished = [message for message in messages if message.startswith("refill of")]
    assert started.startswith("refill of 'shop/sums -> sums' started: rows are written to a second table until 2024-")
    assert started.endswith(", and then replace the present rows")
    assert finished == "refill of 'shop/sums -> sums' finished: its rows have replaced the old rows"


def test_refill_counts_each_document_once(table: Shop) -> None:
    table.ingest(*FIRST)
    table.world.step()
    table.reset(VIEW)
    table.world.step(limits=FEW)
    state = table.world.task(VIEW)
    assert (state.documents_in, state.documents_out) == (24, 24)


def test_a_follower_starts_over_only_the_binding_whose_source_was_reset(table: Shop) -> None:
    table.edit(RESET="follow")
    table.ingest(*FIRST)
    table.world.step()
    table.database.query("UPDATE events SET value = value + 1000 WHERE number = 1")
    table.edit(LEAST="60")
    close_streams()
    start_over(table.world.store, ["shop/sums"], [])
    table.world.step()
    assert table.rows() == table.contents()
    assert table.rows("events")[1] == 1010


class WithoutRefills(MaterializeSqlite):
    """A connector that cannot refill, as connectors from elsewhere."""

    def spec(self) -> ConnectorSpec:
        return replace(super().spec(), refills=False)


@pytest.mark.parametrize("at", ["refill.completed", "materialize.committed"])
@pytest.mark.parametrize("is_first", [False, True])
def test_source_reset_before_the_commit_of_its_rows_leaves_no_rows(
    table: Shop, monkeypatch: pytest.MonkeyPatch, at: str, *, is_first: bool
) -> None:
    if is_first and at == "refill.completed":
        pytest.skip("the first run does not refill")
    table.edit(RESET="follow")
    table.ingest(*FIRST)
    if not is_first:
        table.world.step()
        close_streams()
        start_over(table.world.store, ["shop/sums"], [])
    reached = []

    def fail(name: str) -> None:
        if name == at:
            reached.append(name)
            raise EndpointGoneError("the run ends here")

    monkeypatch.setattr(materialization, "reach", fail)
    monkeypatch.setattr(stream, "reach", fail)
    while not reached:
        with suppress(EndpointGoneError):
            table.world.step()
    close_streams()
    monkeypatch.undo()

    table.edit(LEAST="60")
    start_over(table.world.store, ["shop/sums"], [])
    table.world.step()

    assert table.rows() == table.contents() != {}


def test_relation_identifier_is_synced_before_the_endpoint_commits_its_rows(
    table: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    monkeypatch.setattr(table.world.store.changes, "settle", lambda: events.append("synced"))
    monkeypatch.setattr(stream, "reach", events.append)
    table.ingest(*FIRST)
    table.world.step()
    assert "synced" in events[: events.index("materialize.committed")]


def warnings(shop: Shop) -> list[str]:
    return [entry["message"] for entry in recent_entries(shop.world.root, VIEW) if entry["level"] == "warn"]


def test_a_connector_that_cannot_refill_warns_of_the_rows_that_stay(tmp_path: Path) -> None:
    with opened(tmp_path, replace(DATABASES["sqlite"](tmp_path), connector=WithoutRefills())) as shop:
        shop.ingest(*FIRST)
        shop.world.step()
        assert warnings(shop) == []
        shop.edit(LEAST="60")
        shop.reset("shop/sums")
        shop.world.step()
        shop.world.step()
        assert shop.rows() == dict(FIRST)
        (warning,) = warnings(shop)
        assert warning.startswith("'shop/sums -> sums' starts over, and the connector cannot refill it")


def shown(shop: Shop, *command: str) -> str:
    """Return the lines that a command prints about the materialization."""
    status, out, error = flowctl(shop.folder, *command, "--data", str(shop.world.root))
    assert status == 0, error
    return f"{out}{error}"


def test_status_and_plan_report_the_rows_that_stay(tmp_path: Path) -> None:
    """They say so from the reset on, and what to do, until the binding starts over by a raised `backfill`."""
    commands = ("status",), ("materialize", "plan", VIEW)
    stale, remedy = "'shop/sums -> sums' starts over, and the connector cannot refill it", "empty the resource"
    with opened(tmp_path, replace(DATABASES["sqlite"](tmp_path), connector=WithoutRefills())) as shop:
        shop.ingest(*FIRST)
        shop.world.step()
        assert [stale in shown(shop, *command) for command in commands] == [False, False]
        shop.edit(LEAST="60")
        shop.reset("shop/sums")
        assert stale in shown(shop, "materialize", "plan", VIEW)
        shop.world.step()
        shop.world.step()
        for command in commands:
            text = shown(shop, *command)
            assert stale in text
            assert remedy in text
        assert [edit.part for edit in shop.world.task(VIEW).edits] == ["shop/sums -> sums"]
        shop.edit(BACKFILL="1")
        close_streams()
        shop.world.step()
        text = shown(shop, "status")
        assert stale not in text
        assert "'shop/sums -> sums.v1' starts over" in text


@pytest.mark.parametrize("is_run", [False, True])
def test_a_database_that_was_removed_is_filled_without_warnings(tmp_path: Path, *, is_run: bool) -> None:
    """It has no rows of before, whether it is removed before or after the run that starts over."""
    with opened(tmp_path, DATABASES["sqlite"](tmp_path)) as shop:
        shop.ingest(*FIRST)
        shop.world.step(shards=2)
        shop.reset(VIEW)
        if is_run:
            shop.world.step()
            close_streams()
        for suffix in ("", "-wal", "-shm"):
            (tmp_path / f"warehouse.db{suffix}").unlink(missing_ok=True)
        shop.ingest(("k1", 1))
        shop.world.step()
        shop.world.step()
        shop.check()
        assert warnings(shop) == []


# Runs that are paused in the midst of a refill; test_commit_gaps.py kills them.


WAKING = ["refill.applied:1", "refill.completing:1", "refill.completed:1", "materialize.committing:3"]
"""Failpoints at which a run is paused until another one has superseded it."""


@pytest.fixture
def refilled_shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """One whose sums are to be stored anew, as fewer keys are left of them; a parameter names the database."""
    name = getattr(request, "param", "sqlite")
    database = DATABASES[name](tmp_path)
    refilled_shop = Shop(tmp_path, database, {"connector": {"image": f"materialize-{name}", "config": database.config}})
    refilled_shop.ingest(*[(f"k{number}", 10 * number) for number in range(12)])
    refilled_shop.world.step(shards=2)
    close_streams()
    refilled_shop.check()
    refilled_shop.edit(LEAST="60")
    refilled_shop.reset("shop/sums")
    yield refilled_shop
    refilled_shop.close()


def do(server: CrashServer, refilled_shop: Shop, what: str, *arguments: object, failpoint: str = "") -> int:
    world = refilled_shop.world
    world.wall += 10_000_000
    order = {"source": str(refilled_shop.folder / "flow.yaml"), "data": str(world.root), "wall": world.wall}
    return server.attempt(order | {"do": what, "arguments": list(arguments)}, failpoint)


def finish(server: CrashServer, refilled_shop: Shop) -> None:
    """Run to the end, and see that what comes later is stored where it belongs."""
    assert do(server, refilled_shop, "run", 2, 3) == 0
    refilled_shop.check()
    assert refilled_shop.others() == []
    refilled_shop.ingest(("k1", 100), ("k11", 1))
    assert do(server, refilled_shop, "run", 2, 3) == 0
    refilled_shop.check()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("failpoint", WAKING)
@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize("refilled_shop", sorted(DATABASES), indirect=True)
def test_fenced_run_does_not_harm_a_refill(
    failpoint: str, server: CrashServer, refilled_shop: Shop, *, is_reset: bool
) -> None:
    """It is paused, and another run completes the refill, or one of a later reset, before it goes on."""
    assert do(server, refilled_shop, "run", 2, 3, failpoint=f"{failpoint}:pause") == -signal.SIGSTOP
    if is_reset:
        assert do(server, refilled_shop, "reset", VIEW) == 0
        refilled_shop.ingest(("k7", 5))
    assert do(server, refilled_shop, "run", 2, 3) == 0
    refilled_shop.check()
    assert do(server, refilled_shop, "resume") in (1, FENCED)
    refilled_shop.check()
    finish(server, refilled_shop)
