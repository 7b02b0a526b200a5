from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from itertools import islice
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sql_world import Client, SqlWorld
from test_views import until_maintained

from derive.algebra.types import Row, Type
from derive.compute.protocol.messages import TailResponse
from derive.errors import SqlError
from derive.sql.coordinator import Coordinator
from derive.sql.execution.state import Cursor
from derive.sql.execution.subscribe import Subscription
from derive.sql.maintenance.controller.controller import FIRST_TRANSIENT_ID
from derive.storage.capability.capabilities import Request
from derive.storage.metadata.sqlite import SqliteMetadata

Update = tuple[int, Row, int]
ROWS = st.tuples(st.integers(0, 2), st.none() | st.sampled_from("ab"))
HISTORIES = st.lists(st.tuples(st.integers(1, 20), ROWS, st.sampled_from([1, 1, -1])), max_size=30)


class History:
    """A relation whose updates are known, and that tells them up to the frontiers that it is given."""

    types = (Type.BIGINT, Type.TEXT)

    def __init__(self, updates: list[Update], as_of: int, frontiers: list[int]) -> None:
        self.updates, self.since, self.frontier = updates, as_of, as_of + 1
        self.frontiers = iter(sorted(frontiers))

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        yield [row for row, count in self.at(as_of).items() for _ in range(count)]

    def at(self, time: int) -> Counter[Row]:
        counts: Counter[Row] = Counter()
        for at, row, diff in self.updates:
            counts[row] += diff if at <= time else 0
        return counts

    def poll(self) -> tuple[int, list[Update]]:
        before, self.frontier = self.frontier, max(self.frontier, next(self.frontiers, self.frontier))
        reported = [update for update in self.updates if before <= update[0] < self.frontier]
        return self.frontier, sorted(reported, key=lambda update: update[0])

    def responses(self, *, has_snapshot: bool, up_to: int | None) -> Iterator[TailResponse]:
        """What an instance tells of it."""
        frontier = self.since
        if up_to is None or up_to > frontier:
            rows = [row for batch in self.snapshot(self.since) for row in batch] if has_snapshot else []
            yield TailResponse(1, frontier, frontier + 1, tuple((frontier, row, 1) for row in rows))
            frontier += 1
        while True:
            upper, updates = self.poll()
            end = upper if up_to is None else min(upper, up_to)
            if end > frontier:
                yield TailResponse(1, frontier, end, tuple(update for update in updates if update[0] < end))
                frontier = end
            else:
                yield TailResponse(1, frontier, frontier, ())


def valid(changes: list[Update]) -> list[Update]:
    """Updates that never take a row away that is not there."""
    counts: Counter[Row] = Counter()
    kept = []
    for update in sorted(changes, key=lambda change: change[0]):
        if counts[update[1]] + update[2] >= 0:
            counts[update[1]] += update[2]
            kept.append(update)
    return kept


def sent(
    history: History, polls: int, *, has_snapshot: bool, has_progress: bool, up_to: int | None = None
) -> tuple[list[Row], Subscription]:
    """All rows that are sent in so many polls, and the subscription after them."""
    subscription = Subscription(2, history.since, has_snapshot=has_snapshot, has_progress=has_progress, up_to=up_to)
    rows = list(subscription.begin())
    for response in islice(history.responses(has_snapshot=has_snapshot, up_to=up_to), 1 + polls):
        if subscription.is_ended:
            break
        rows += subscription.rows(response)
    return rows, subscription


@given(HISTORIES, st.integers(0, 21), st.lists(st.integers(0, 25), max_size=6), st.none() | st.integers(0, 25))
def test_sent_updates_sum_to_the_relation_at_each_time(
    changes: list[Update], as_of: int, frontiers: list[int], up_to: int | None
) -> None:
    history = History(valid(changes), as_of, frontiers)
    rows, subscription = sent(history, len(frontiers), has_snapshot=True, has_progress=True, up_to=up_to)
    counts: Counter[tuple[object, ...]] = Counter()
    progress = as_of
    for time, is_progress, diff, *row in rows:
        assert isinstance(time, int)
        assert time >= progress
        if is_progress:
            assert diff is None
            assert time > progress
            progress = time
            assert +counts == +history.at(progress - 1)
        else:
            assert isinstance(diff, int)
            assert up_to is None or time < up_to
            counts[tuple(row)] += diff
    assert progress == subscription.frontier
    assert subscription.is_ended == (up_to is not None and up_to <= subscription.frontier)
    last = max([as_of + 1, *frontiers])
    assert subscription.frontier == (last if up_to is None else max(as_of, min(last, up_to)))


@given(
    HISTORIES,
    st.integers(0, 10),
    st.lists(st.integers(0, 25), min_size=1, max_size=5),
    st.lists(st.integers(0, 8), max_size=4),
)
def test_resumed_subscriptions_send_each_update_once(
    changes: list[Update], as_of: int, frontiers: list[int], counts: list[int]
) -> None:
    """Each subscription but the last stops after so many progress rows and loses the rows behind the last of them."""
    updates = valid(changes)
    whole, _ = sent(History(updates, as_of, [30]), 1, has_snapshot=True, has_progress=False)
    seen: list[Row] = []
    progress: int | None = None
    for count in (*counts, 100):
        history = History(updates, as_of if progress is None else progress - 1, [*frontiers, 30])
        rows, _ = sent(history, 10, has_snapshot=progress is None, has_progress=True)
        kept = [index for index, row in enumerate(rows) if row[1]][:count]
        if kept:
            seen += [row for row in rows[: kept[-1]] if not row[1]]
            progress = cast(int, rows[kept[-1]][0])
    assert sorted(map(repr, whole)) == sorted(repr((row[0], *row[2:])) for row in seen)


def test_row_inserted_and_deleted_at_one_time_is_not_sent() -> None:
    row = (1, "a")
    history = History([(5, row, 1), (5, row, -1), (6, row, 1), (6, (2, "b"), -1)], 1, [7])
    rows, _ = sent(history, 1, has_snapshot=False, has_progress=False)
    assert rows == [(6, -1, 2, "b"), (6, 1, 1, "a")]


# SUBSCRIBE by many, by those who take nothing, and by those who go away as it begins.


def followed(coordinator: Coordinator) -> int:
    """How many subscriptions the controller knows."""
    return sum(identifier >= FIRST_TRANSIENT_ID for identifier in coordinator.computing.controller.ids())


async def test_idle_cursors_block_no_other_client(coordinator: Coordinator, client: Client) -> None:
    await client("CREATE TABLE t (a bigint)")
    await client("INSERT INTO t SELECT * FROM generate_series(1, 12000)")
    await client("CREATE INDEX ON t (a)")
    followers = [Client(coordinator) for _ in range(30)]
    for follower in followers:
        await follower("BEGIN")
        await follower("DECLARE c CURSOR FOR SUBSCRIBE t")  # it has more rows than wait for anybody
    for follower in (followers[0], followers[-1], followers[15]):
        rows: list[tuple[str | None, ...]] = []
        while len(rows) < 12000:
            rows += await follower("FETCH 12000 c WITH (timeout = '60s')")
        assert len(rows) == 12000
    assert len(await client("SELECT a FROM t WHERE a > 1")) == 11999
    for follower in followers:
        await follower.session.close()
    assert followed(coordinator) == 0


async def test_capabilities_of_subscriptions_move_together_and_each_to_its_own_time(
    coordinator: Coordinator, client: Client
) -> None:
    for name in "tu":
        await client.script(f"CREATE TABLE {name} (a bigint); INSERT INTO {name} VALUES (1)")
    tables = [table for name in "tu" if (table := coordinator.store.tables.find(f"sql/public/{name}"))]
    last = min(table.upper for table in tables) - 1
    capabilities = coordinator.store.capabilities
    requests: dict[int, Request] = {
        0: ([tables[0].id], last - 2),
        1: ([tables[0].id, tables[1].id], last - 1),
        2: ([987], last),
    }
    first = capabilities.retain({}, requests, purpose="SUBSCRIBE")
    assert [[(each.collection, each.frontier) for each in read] for read in first.values()] == [
        [(tables[0].id, last - 2)],
        [(tables[0].id, last - 1), (tables[1].id, last - 1)],
        [],
    ]
    moved = capabilities.retain(first, {0: ([tables[0].id], last), 1: ((), 0)}, purpose="SUBSCRIBE")
    assert [[each.frontier for each in read] for read in moved.values()] == [[last], []]
    assert [held.id for held in moved[0]] == [held.id for held in first[0]]


async def test_subscription_cancelled_at_its_start_leaves_nothing(
    world: SqlWorld, coordinator: Coordinator, client: Client
) -> None:
    await client("CREATE TABLE t (a bigint)")
    follower = Client(coordinator)
    await follower("BEGIN")
    await follower("SELECT * FROM t")  # its time is known, so what comes next is the lease
    with closing(SqliteMetadata(world.data / "metadata.db")) as metadata, metadata.transaction():
        # No other session writes, so the cursor waits for the lease.
        subscribing = asyncio.create_task(follower("DECLARE c CURSOR FOR SUBSCRIBE t"))
        await asyncio.sleep(0.2)
        follower.session.cancel()
        await asyncio.sleep(0.2)
    await asyncio.wait([subscribing])
    await follower.session.close()
    await asyncio.sleep(0.5)  # what was left behind would come now
    assert followed(coordinator) == 0


async def test_subscription_ends_when_its_relation_is_dropped(coordinator: Coordinator, client: Client) -> None:
    for name in "tu":
        await client(f"CREATE TABLE {name} (a bigint)")
    await client("CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
    followers = {}
    for query in ("t", "v", "(SELECT t.a FROM t, u)", "(SELECT a FROM u)"):
        followers[query] = follower = Client(coordinator)
        await follower("BEGIN")
        await follower(f"DECLARE c CURSOR FOR SUBSCRIBE {query} WITH (PROGRESS)")
        await follower("FETCH 2 c WITH (timeout = '60s')")
    await client("INSERT INTO t VALUES (1)")
    await client("DROP MATERIALIZED VIEW v")
    await client("DROP TABLE t")
    await client("CREATE TABLE t (a bigint)")
    await client("INSERT INTO t VALUES (2)")
    present = coordinator.store.timeline.present() + 60_000_000
    for query in ("t", "v", "(SELECT t.a FROM t, u)"):
        reported: list[tuple[str | None, ...]] = []
        with pytest.raises(SqlError) as ended:
            while True:
                reported += await followers[query]("FETCH ALL c WITH (timeout = '50ms')")
        assert ended.value.sqlstate == "55000"
        assert "dropped" in str(ended.value.detail)
        if query == "t":
            assert [row[-1] for row in reported if row[1] == "f"] == ["1"]
        assert all(int(str(row[0])) < present for row in reported)
    await client("INSERT INTO u VALUES (3)")
    follower = followers["(SELECT a FROM u)"]
    while not any(row[1] == "f" for row in await follower("FETCH ALL c WITH (timeout = '50ms')")):
        pass


def test_cursor_closed_while_it_waits_for_rows_logs_nothing() -> None:
    """Rows may end with an error of SQL when they are cancelled."""

    async def rows() -> AsyncIterator[list[Row]]:
        try:
            yield [await asyncio.Future[Row]()]
        except asyncio.CancelledError:
            raise SqlError("57014", "canceling statement due to user request") from None

    async def close() -> list[str]:
        logged: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context["message"]))
        cursor = Cursor((), rows(), is_endless=True)
        assert await cursor.fetch(1, 0) == []
        await asyncio.sleep(0)
        await cursor.close()
        del cursor
        gc.collect()
        return logged

    assert asyncio.run(close()) == []


async def test_subscription_to_a_view_that_no_server_maintains_ends_or_is_refused(world: SqlWorld) -> None:
    async with world.served() as (coordinator, client):
        await client.script("CREATE TABLE t (a int)", "CREATE MATERIALIZED VIEW m AS SELECT a FROM t")
        await client.script("CREATE VIEW v AS SELECT a FROM m", "INSERT INTO t VALUES (1)")
        await until_maintained(coordinator, "m")
    async with world.served() as (coordinator, reader):
        item = coordinator.objects.lookup(None, "m")
        assert item
        upper = coordinator.storage_clock.frontiers_of(item.id)[1]
        for name in ("m", "v"):
            for end in ("", f" UP TO {upper + 1}"):
                error = await reader.error(f"SUBSCRIBE {name} AS OF {upper - 1}{end}")
                assert error.sqlstate == "55000"
                assert error.hint == f"Start: flowctl sql serve; or end the subscription: UP TO {upper}"
            rows = await reader(f"SUBSCRIBE {name} AS OF {upper - 1} UP TO {upper}")
            assert [row[1:] for row in rows] == [("1", "1")]
        coordinator.own()
        rows = await reader(f"SUBSCRIBE m AS OF {upper - 1} UP TO {upper + 1}")
        assert [row[1:] for row in rows] == [("1", "1")]


async def test_subscription_ends_with_the_server_that_maintains_its_view(world: SqlWorld) -> None:
    async with world.served() as (_, reader):
        async with world.served() as (server, client):
            await client.script("CREATE TABLE t (a int)", "CREATE MATERIALIZED VIEW m AS SELECT a FROM t")
            await client.script("INSERT INTO t VALUES (1)")
            await until_maintained(server, "m")
            await reader("BEGIN")
            await reader("DECLARE c CURSOR FOR SUBSCRIBE m")
            assert [row[1:] for row in await reader("FETCH 1 c")] == [("1", "1")]
        error = await reader.error("FETCH 1 c")
        assert (error.sqlstate, error.message) == (
            "55000",
            "the subscription cannot advance, because no server maintains 'm'",
        )


RELATIONS = (
    "CREATE TABLE t (a int, b int); CREATE VIEW v AS SELECT a FROM t",
    "CREATE VIEW i AS SELECT a FROM t; CREATE INDEX i_a ON i (a)",
)
SWAP = "DROP INDEX i_a; BEGIN; ALTER TABLE t RENAME a TO c; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME c TO b; COMMIT"
ENDED = [
    ("t", "ALTER TABLE t RENAME b TO c"),
    ("(SELECT a FROM t)", SWAP),
    ("v", "ALTER TABLE t DROP COLUMN b"),
    ("i", "ALTER TABLE t ALTER b TYPE text"),
]
CONTINUED = [
    ("t", "ALTER TABLE t RENAME TO s; ALTER TABLE s RENAME TO t; ALTER TABLE t ADD COLUMN d int", ("1", "3", "4")),
    ("m", "ALTER MATERIALIZED VIEW m RENAME TO n; ALTER TABLE t ADD COLUMN d int", ("1", "3")),
    ("v", "CREATE OR REPLACE VIEW v AS SELECT b AS a FROM t", ("1", "3")),
    ("i", "DROP INDEX i_a", ("1", "3")),
]


@asynccontextmanager
async def followed_by(reader: Client, query: str) -> AsyncIterator[list[tuple[str | None, ...]]]:
    await reader("BEGIN")
    await reader(f"DECLARE c CURSOR FOR SUBSCRIBE {query} WITH (PROGRESS)")
    yield await reader("FETCH 1 c WITH (timeout = '60s')")
    await reader.session.close()


@pytest.mark.parametrize(("query", "change"), ENDED)
@pytest.mark.parametrize("is_beside", [False, True])
async def test_subscription_ends_before_a_column_changes(
    world: SqlWorld, coordinator: Coordinator, client: Client, query: str, change: str, *, is_beside: bool
) -> None:
    await client.script(*RELATIONS, "INSERT INTO t VALUES (1, 2)")
    async with world.opened() as beside:
        reader = Client(beside if is_beside else coordinator)
        async with followed_by(reader, query) as first:
            await client("INSERT INTO t VALUES (3, 4)")
            await client.script(change, "INSERT INTO t VALUES (5)")
            reported, error = list(first), None
            while error is None:
                try:
                    reported += await reader("FETCH ALL c WITH (timeout = '50ms')")
                except SqlError as ended:
                    error = ended
    assert (error.sqlstate, "table t was altered" in error.message) == ("55000", True)
    width = 2 if query == "t" else 1
    assert [row[2:] for row in reported if row[1] == "f"] == [
        ("1", "1", "2")[: 1 + width],
        ("1", "3", "4")[: 1 + width],
    ]
    items = coordinator.objects.items.values()
    altered = next(item.known_from for item in items if item.name == "t")
    assert [row[0] for row in reported if row[1] == "t"][-1] == str(altered)


@pytest.mark.parametrize(("query", "change", "expected"), CONTINUED)
async def test_subscription_continues_beside_other_definitions(
    coordinator: Coordinator, client: Client, query: str, change: str, expected: tuple[str, ...]
) -> None:
    await client.script(*RELATIONS, "CREATE MATERIALIZED VIEW m AS SELECT a FROM t", "INSERT INTO t VALUES (1, 2)")
    await until_maintained(coordinator, "m")
    reader = Client(coordinator)
    async with followed_by(reader, query):
        await client.script(change, "INSERT INTO t VALUES (3, 4)")
        rows: list[tuple[str | None, ...]] = []
        while not rows:
            batch = await reader("FETCH ALL c WITH (timeout = '50ms')")
            rows += [row[2:] for row in batch if row[1] == "f"]
    assert rows == [expected]
