"""Errors of materialized views: stored with their rows, so whoever reads fails when the server does, and only then."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE_SECONDS
from sql_world import Client, SqlWorld

import derive
from derive.document.clock import format_rfc3339
from derive.errors import SqlError, ViewError
from derive.sql.coordinator import Coordinator
from derive.storage.compaction import compact
from derive.storage.store import Store

EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "6")) // 3


async def until_stored(coordinator: Coordinator, *names: str) -> int:
    """Wait until what is there now is stored of views; the time up to which that is."""
    time = coordinator.store.timeline.present()
    for name in names:
        item = coordinator.objects.find(None, name)
        assert item
        while True:
            commit = coordinator.watcher.next
            table = coordinator.store.tables.table(item.id)
            assert table
            if table.upper > time:
                break
            await commit.wait()
    return time


def read_elsewhere(world: SqlWorld, name: str, time: int | None = None) -> Counter[tuple[Any, ...]] | ViewError:
    """What another store has of a view at a time, or at the latest."""
    with derive.open(world.data, source=world.folder / "flow.yaml") as folder:
        return read(folder.collection(f"sql/public/{name}"), time)


def read(collection: derive.Collection, time: int | None) -> Counter[tuple[Any, ...]] | ViewError:
    contents = collection.latest() if time is None else collection.as_of(time)
    try:
        return Counter(tuple(row.values()) for row in contents.to_arrow().to_pylist())
    except ViewError as error:
        return error


async def test_arguments_of_rows_that_a_filter_leaves_out_are_not_evaluated(world: SqlWorld) -> None:
    query = (
        "SELECT k, sum(a / b) FILTER (WHERE b <> 0) AS s, count(DISTINCT a / b) FILTER (WHERE b <> 0) AS n,"
        " array_agg(a ORDER BY a / b) FILTER (WHERE b > 0) AS l, avg(a * 1.5 / b + 1) FILTER (WHERE b > 1) AS m"
        " FROM t GROUP BY k"
    )
    async with world.served() as (coordinator, client):
        await client.script("CREATE TABLE t (k int, a int, b int)", f"CREATE MATERIALIZED VIEW v AS {query}")
        await client("INSERT INTO t VALUES (1, 6, 2), (1, 6, 0), (1, 9, 3), (2, 1, 0)")
        await until_stored(coordinator, "v")
        rows = [("1", "6", "1", "{6,9}", "5.5"), ("2", None, "0", None, None)]
        assert (sorted(await client("TABLE v")), sorted(await client(query))) == (rows, rows)


async def test_sums_beyond_the_limits_of_numeric_are_errors_until_they_are_less(world: SqlWorld) -> None:
    async with world.served() as (coordinator, client):
        await client("CREATE TABLE t (k int, n numeric)")
        await client("CREATE MATERIALIZED VIEW sums AS SELECT k, sum(n) AS s, avg(n) AS a FROM t GROUP BY k")
        await client("INSERT INTO t VALUES (1, 9e131071), (2, 4), (2, 4)")
        await until_stored(coordinator, "sums")
        assert len(await client("TABLE sums")) == 2
        await client("INSERT INTO t VALUES (1, 9e131071)")
        await until_stored(coordinator, "sums")
        assert await client.fails("TABLE sums") == "22003"
        await client("CREATE MATERIALIZED VIEW later AS SELECT k, sum(n) AS s, avg(n) AS a FROM t GROUP BY k")
        await until_stored(coordinator, "later")
        assert await client.fails("TABLE later") == "22003"
        await client("DELETE FROM t WHERE k = 1")
        await until_stored(coordinator, "sums", "later")
        assert await client("TABLE sums") == await client("TABLE later") == [("2", "8", "4")]


async def test_errors_are_stored_with_rows(world: SqlWorld) -> None:
    async with world.served() as (coordinator, client):
        await client("CREATE TABLE t (id int, a int)")
        await client("CREATE MATERIALIZED VIEW quotients AS SELECT id, 10 / a AS q FROM t")
        await client("CREATE MATERIALIZED VIEW total AS SELECT sum(q) AS total FROM quotients")
        await client("INSERT INTO t VALUES (1, 5)")
        before = await until_stored(coordinator, "quotients", "total")
        await client("INSERT INTO t VALUES (2, 0)")
        begin = coordinator.timeline.latest
        await client("INSERT INTO t VALUES (3, 10)")
        await until_stored(coordinator, "quotients", "total")
        error = await client.error("SELECT * FROM quotients")
        assert (error.sqlstate, error.message) == ("22012", "division by zero")
        assert f"since {format_rfc3339(begin)}" in str(error.detail)  # as everybody else is told
        during = coordinator.store.timeline.present()
    for name in ("quotients", "total"):
        found = read_elsewhere(world, name)
        assert isinstance(found, ViewError)
        assert (found.sqlstate, found.message) == ("22012", "division by zero")
        assert f"'sql/public/{name}' has this error in place of its rows since" in str(found.detail)
        assert f"clock {begin}" in str(found.detail)
    assert read_elsewhere(world, "quotients", before) == {(1, 2): 1}
    assert read_elsewhere(world, "quotients", begin - 1) == {(1, 2): 1}
    assert isinstance(read_elsewhere(world, "quotients", begin), ViewError)

    async with world.opened() as coordinator:
        client = Client(coordinator, transaction_isolation="serializable")  # as `flowctl sql -c` is
        assert await client.fails("SELECT * FROM total") == "22012"
        assert await client(f"SELECT * FROM quotients AS OF {before}") == [("1", "2")]

    async with world.opened() as coordinator:
        coordinator.own()
        client = Client(coordinator)
        await client("DELETE FROM t WHERE id = 2")
        end = coordinator.timeline.latest
        await until_stored(coordinator, "quotients", "total")
    assert read_elsewhere(world, "quotients") == {(1, 2): 1, (3, 1): 1}
    assert read_elsewhere(world, "total", end) == {(3,): 1}
    assert isinstance(read_elsewhere(world, "total", end - 1), ViewError)
    assert isinstance(read_elsewhere(world, "total", during), ViewError)
    assert read_elsewhere(world, "total", begin - 1) == {(2,): 1}


async def test_view_fails_beside_unmaintained_relations(coordinator: Coordinator, client: Client) -> None:
    await client("CREATE TABLE t (id int, a int)")
    await client("CREATE TABLE u (id int)")
    await client("CREATE MATERIALIZED VIEW quotients AS SELECT id, 10 / a AS q FROM t")
    await client("CREATE VIEW counted AS SELECT count(*) AS n FROM quotients")
    await client("INSERT INTO t VALUES (1, 5)")
    await client("INSERT INTO u VALUES (1)")
    before = await until_stored(coordinator, "quotients")
    await client("INSERT INTO t VALUES (1, 0)")
    await until_stored(coordinator, "quotients")
    queries = (  # none of them needs the quotient
        "SELECT count(*) FROM quotients JOIN u USING (id)",
        "SELECT n FROM counted, u",
        "SELECT (SELECT count(*) FROM quotients) FROM u",
    )
    for query in queries:
        error = await client.error(query)
        assert (error.sqlstate, error.message) == ("22012", "division by zero")
        assert "'sql/public/quotients' has this error" in str(error.detail)
        assert await client(f"{query} AS OF {before}") == [("1",)]
    assert await client.fails("INSERT INTO u SELECT n FROM counted, u") == "22012"
    await client("DELETE FROM t WHERE a = 0")
    assert [await client(query) for query in queries] == [[("1",)]] * 3


async def test_subscriptions_end_at_an_error(world: SqlWorld) -> None:
    async with world.served() as (coordinator, client):
        await client.script("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT 10 / a AS q FROM t")
        begin = await until_stored(coordinator, "v")
        await client.script("INSERT INTO t VALUES (5); INSERT INTO t VALUES (0)")
        time = coordinator.timeline.latest
        await client("DELETE FROM t WHERE a = 0")
        await until_stored(coordinator, "v")
        assert await followed(client, f"SUBSCRIBE v AS OF {begin}", "22012") == [("1", "2")]
        assert await followed(client, f"SUBSCRIBE v AS OF {time - 1}", "22012") == [("1", "2")]
        assert await followed(client, f"SUBSCRIBE v AS OF {time}", "22012") == []
        ended = coordinator.timeline.latest
        assert await followed(client, f"SUBSCRIBE v AS OF {ended} UP TO {ended + 1}") == [("1", "2")]

    async with world.served() as (_, client):
        assert await followed(client, f"SUBSCRIBE v AS OF {begin}", "22012") == [("1", "2")]
        assert await followed(client, f"SUBSCRIBE v AS OF {time}", "22012") == []
        assert await followed(client, f"SUBSCRIBE v AS OF {ended - 1}", "22012") == []
        assert await followed(client, f"SUBSCRIBE v AS OF {ended} UP TO {ended + 1}") == [("1", "2")]


async def followed(client: Client, text: str, sqlstate: str | None = None) -> list[tuple[str | None, ...]]:
    """What a subscription tells until it ends, without times, and the SQLSTATE with which that is."""
    session = client.session
    prepared = await session.prepare(text, ())
    await session.begin_implicit()
    rows: list[tuple[str | None, ...]] = []
    code = None
    try:
        result = await session.execute(prepared, ())
        assert result.rows is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for batch in result.rows:
                rows += [tuple(str(datum) for datum in row[1:]) for row in batch]
        await session.end_implicit()
    except SqlError as error:
        await session.fail()
        code = error.sqlstate
    assert code == sqlstate
    return rows


class Changes:
    """Tables that change at random, and what is expected of views of them at each time."""

    VIEWS: ClassVar = {
        "mapped": "SELECT id, 60 / a AS q FROM t",
        "grouped": "SELECT g, sum(60 / a) AS total FROM t GROUP BY g",
        "joined": "SELECT id, 60 / b AS q FROM t LEFT JOIN u USING (g)",
        "first": "SELECT id, 60 / a AS q FROM t ORDER BY 2 DESC, 1 LIMIT 2",
        "above": "SELECT count(*) AS n, max(total) AS most FROM grouped",
    }

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = Random(seed)
        self.world = SqlWorld(folder)
        self.rows: dict[int, tuple[int, int]] = {}
        self.others: dict[int, int] = {}
        self.history: list[tuple[int, dict[int, tuple[int, int]], dict[int, int]]] = []

    async def create(self, coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client.script("CREATE TABLE t (id int, g int, a int); CREATE TABLE u (g int, b int)")
        for name, query in self.VIEWS.items():
            if self.random.random() < 0.3:  # so what is there already is behind
                await self.change(client)
                self.history.append((coordinator.timeline.latest, dict(self.rows), dict(self.others)))
            await client(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        await self.work(coordinator)

    async def work(self, coordinator: Coordinator) -> None:
        """A few commits."""
        coordinator.own()
        client = Client(coordinator)
        for _ in range(self.random.randrange(1, 5)):
            await self.change(client)
            self.history.append((coordinator.timeline.latest, dict(self.rows), dict(self.others)))
            if self.random.random() < 0.5:
                await until_stored(coordinator, *self.VIEWS)
        if self.random.random() < 0.7:  # else it is cut short
            await until_stored(coordinator, *self.VIEWS)

    async def change(self, client: Client) -> None:
        """One row comes or goes."""
        random, choice = self.random, self.random.random()
        zeros = [id_ for id_, (_, a) in self.rows.items() if a == 0]
        if zeros and choice < 0.5:
            del self.rows[zeros[0]]
            await client(f"DELETE FROM t WHERE id = {zeros[0]}")
        elif choice < 0.3 and self.others:
            g, _ = self.others.popitem()
            await client(f"DELETE FROM u WHERE g = {g}")
        elif choice < 0.4 and len(self.others) < 3:
            g = min({0, 1, 2} - self.others.keys())
            self.others[g] = random.choice([0, 1, 2, 3])
            await client(f"INSERT INTO u VALUES ({g}, {self.others[g]})")
        else:
            id_ = len(self.history)
            self.rows[id_] = random.randrange(3), random.choice([0, 1, 2, 3, 4, 5])
            await client(f"INSERT INTO t VALUES ({id_}, {self.rows[id_][0]}, {self.rows[id_][1]})")

    def compact(self) -> None:
        """Forget some history of every table and view, as far as nobody needs it."""
        with closing(Store(self.world.data, durable=False)) as store:
            for table in store.tables.all():
                compact(store, table.spec, since=self.random.choice(self.history)[0], grace=0)

    def check(self) -> None:
        """Every view, at the first and the last time of each of its states."""
        with derive.open(self.world.data, source=self.world.folder / "flow.yaml") as folder:
            for name in self.VIEWS:
                collection = folder.collection(f"sql/public/{name}")
                ends = [time for time, _, _ in self.history[1:]] + [collection.upper]
                for (begin, rows, others), end in zip(self.history, ends, strict=True):
                    for time in {begin, max(begin, end - 1)}:
                        if collection.since <= time < collection.upper:
                            held = read(collection, time)
                            answer = held.sqlstate if isinstance(held, ViewError) else held
                            assert answer == expected(name, rows, others), (
                                name,
                                time,
                                collection.since,
                                collection.upper,
                                self.history,
                            )


def expected(name: str, rows: dict[int, tuple[int, int]], others: dict[int, int]) -> Counter[tuple[Any, ...]] | str:
    """Rows of a view, or the SQLSTATE of its error, worked out from scratch."""
    try:
        match name:
            case "mapped":
                return Counter((id_, 60 // a) for id_, (_, a) in rows.items())
            case "grouped":
                totals: Counter[int] = Counter()
                for g, a in rows.values():
                    totals[g] += 60 // a
                return Counter(totals.items())
            case "joined":
                return Counter((id_, 60 // others[g] if g in others else None) for id_, (g, _) in rows.items())
            case "first":
                ranked = sorted((-(60 // a), id_) for id_, (_, a) in rows.items())
                return Counter((id_, -quotient) for quotient, id_ in ranked[:2])
            case _:
                groups = expected("grouped", rows, others)
                assert not isinstance(groups, str)
                return Counter([(len(groups), max((total for _, total in groups), default=None))])
    except (ZeroDivisionError, AssertionError):
        return "22012"


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 1 << 32))
def test_stored_views_equal_recomputation(seed: int) -> None:
    """Rows and errors, at every time, read by another store, after restarts and compaction."""
    with TemporaryDirectory() as folder:
        changes = Changes(seed, Path(folder))
        changes.world.within(changes.create)
        for _ in range(changes.random.randrange(3)):
            if changes.random.random() < 0.6:
                changes.compact()
            if changes.random.random() < 0.3:
                shutil.rmtree(changes.world.data / "sql-views")  # as after another version of the code
            changes.world.within(changes.work)
        changes.check()
