"""Definitions that other sessions commit while a statement waits, or while a transaction is open.

Law: a statement has the names, columns and views of the time of its read; a transaction has those of its first read,
and conflicts with definitions that would give its own writes and definitions another meaning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest
from sql_world import Client, SqlWorld
from test_views import until_maintained

from derive.algebra.relation import GlobalId
from derive.errors import SqlError
from derive.sql.coordinator import Coordinator
from derive.sql.execution import deployment, query
from derive.sql.execution.read_names import has_same_dataflows
from derive.sql.execution.state import State
from derive.sql.transactions.group_commit import GroupCommit
from derive.sql.transactions.timeline import Timeline
from derive.sql.transactions.writes import Write
from derive.storage.metadata.definitions import Definitions

Rows = list[tuple[str | None, ...]]

SETUP = (
    "CREATE TABLE t (k int PRIMARY KEY, a int, b int, d int DEFAULT 4); INSERT INTO t VALUES (1, 10, 100), (2, 20, 200)",
    "CREATE TABLE u (k int, a int, b int, d int); INSERT INTO u VALUES (1, 7, 8, 9)",
    "CREATE VIEW v AS SELECT k, a FROM t; CREATE TABLE w (n int)",
)
SWAPPED_COLUMNS = (
    "BEGIN; ALTER TABLE t RENAME a TO c; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME c TO b; COMMIT"
    "; UPDATE t SET a = a + 1 WHERE k = 2"
)
SWAPPED_TABLES = (
    "BEGIN; ALTER TABLE t RENAME TO s; ALTER TABLE u RENAME TO t; ALTER TABLE s RENAME TO u; COMMIT"
    "; UPDATE t SET a = a + 1"
)
OTHER_COLUMN = "ALTER TABLE t DROP COLUMN d, ADD COLUMN e int DEFAULT 9"
OTHER_VIEW = "BEGIN; CREATE OR REPLACE VIEW v AS SELECT k, b AS a FROM t; DELETE FROM t WHERE k = 2; COMMIT"

READS: Sequence[tuple[str, str, Rows | str]] = [
    ("SELECT d FROM t", OTHER_COLUMN, "42703"),
    ("SELECT d FROM t WHERE k = 1", OTHER_COLUMN, "42703"),
    ("SELECT k, a FROM t", SWAPPED_COLUMNS, [("1", "100"), ("2", "201")]),
    ("SELECT a FROM t WHERE k = 2", SWAPPED_COLUMNS, [("201",)]),
    ("SELECT a FROM v WHERE k = 2", SWAPPED_COLUMNS, [("20",)]),
    ("SELECT a FROM t", SWAPPED_TABLES, [("8",)]),
    ("SELECT a FROM v", OTHER_VIEW, [("100",)]),
    ("SELECT a FROM u", "BEGIN; DROP TABLE u; CREATE TABLE u (a int); INSERT INTO u VALUES (5); COMMIT", [("5",)]),
]


async def pause() -> None:
    """Let the other tasks run until each waits."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("begin", ["BEGIN", "DECLARE"])
@pytest.mark.parametrize(("query", "definitions", "expected"), READS)
async def test_read_has_the_names_of_its_time(
    coordinator: Coordinator, client: Client, begin: str, query: str, definitions: str, expected: Rows | str
) -> None:
    other = Client(coordinator)
    await other.script(*SETUP, "SELECT * FROM t; SELECT * FROM t; SELECT * FROM u; SELECT * FROM u")
    await client("BEGIN")
    text = query if begin == "BEGIN" else f"DECLARE r CURSOR FOR {query}"
    async with coordinator.timeline.alone():  # the time of the read is chosen after the block
        reading = asyncio.create_task(client(text))
        await pause()
        await other.script(definitions)
    if isinstance(expected, str):
        with pytest.raises(SqlError) as raised:
            await reading
        assert raised.value.sqlstate == expected
        return
    rows = await reading
    assert sorted(rows if begin == "BEGIN" else await client("FETCH ALL FROM r")) == expected


@pytest.mark.parametrize("text", ["SELECT a FROM v WHERE k = 1", "SELECT sum(a) FROM v WHERE k < 2"])
@pytest.mark.parametrize(
    ("definitions", "is_same", "a"),
    [
        ("CREATE VIEW z AS SELECT a FROM v; CREATE INDEX ON t (a); DROP TABLE w", True, "10"),
        ("CREATE TABLE z (n int)", True, "10"),
        ("ALTER TABLE t ADD COLUMN e int; UPDATE t SET a = 5", False, "5"),
        ("DROP INDEX v_k; CREATE INDEX v_k ON v (k)", False, "10"),
        (f"{SWAPPED_COLUMNS}; {SWAPPED_COLUMNS}", False, "10"),
    ],
)
async def test_dataflow_is_read_beside_other_definitions(
    coordinator: Coordinator,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    definitions: str,
    is_same: bool,
    a: str,
) -> None:
    """The definitions are committed while a read waits for the rows of its time."""
    other, plain, outcomes = Client(coordinator), has_same_dataflows, list[bool]()

    async def late(state: State, places: Collection[GlobalId]) -> bool:
        if not outcomes:
            await other.script(definitions)
        outcomes.append(await plain(state, places))
        return outcomes[-1]

    await other.script(*SETUP, "CREATE INDEX v_k ON v (k)")
    await until_maintained(coordinator, "v")
    monkeypatch.setattr(query, "has_same_dataflows", late)
    assert await client(text) == [(a,)]
    assert outcomes[0] is is_same


async def test_first_read_of_a_transaction_has_the_time_of_its_names(
    coordinator: Coordinator, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time was chosen before the definitions were committed, so the statement that is planned again has another."""
    other, begun, acquire = Client(coordinator), asyncio.Event(), coordinator.capabilities.acquire

    async def late(time: int) -> int:
        await begun.wait()
        return await acquire(time)

    await other.script(*SETUP)
    await client("BEGIN")
    monkeypatch.setattr(coordinator.capabilities, "acquire", late)
    reading = asyncio.create_task(client("SELECT k, b FROM t"))
    await pause()
    await other.script("ALTER TABLE t RENAME b TO c; ALTER TABLE t RENAME a TO b; UPDATE t SET b = 7 WHERE k = 2")
    begun.set()
    assert sorted(await reading) == [("1", "10"), ("2", "7")]
    await other("INSERT INTO t VALUES (3, 30, 300)")
    assert await client("SELECT count(*), sum(b), sum(c) FROM t") == [("2", "17", "300")]
    await client("COMMIT")


async def test_write_has_the_names_of_its_read(coordinator: Coordinator, client: Client) -> None:
    other = Client(coordinator)
    await other.script(*SETUP)
    async with coordinator.commits.exclusive():
        altering = asyncio.create_task(other(OTHER_COLUMN))
        await pause()
        writing = asyncio.create_task(client("INSERT INTO w SELECT d FROM t"))
        await pause()
    await altering
    with pytest.raises(SqlError) as raised:
        await writing
    assert raised.value.sqlstate == "42703"
    assert await client("TABLE w") == []


async def test_transaction_keeps_the_names_of_its_first_read(coordinator: Coordinator, client: Client) -> None:
    other = Client(coordinator)
    await other.script(*SETUP)
    await client("BEGIN")
    before = [await client("SELECT a FROM t WHERE k = 1"), await client("SELECT a FROM v WHERE k = 1")]
    await other.script("BEGIN; ALTER TABLE t RENAME TO s; ALTER TABLE u RENAME TO t; COMMIT")
    await other("CREATE OR REPLACE VIEW v AS SELECT k, b AS a FROM s")
    await other("CREATE TABLE u (n int)")
    assert [await client("SELECT a FROM t WHERE k = 1"), await client("SELECT a FROM v WHERE k = 1")] == before
    assert await client("SELECT a FROM u") == [("7",)]
    await client("COMMIT")
    assert await client("SELECT a FROM t") == [("7",)]
    assert await client("SELECT a FROM v WHERE k = 1") == [("100",)]
    await client("BEGIN")
    await client("TABLE w")
    await other(OTHER_COLUMN.replace("TABLE t", "TABLE s"))
    assert await client.fails("SELECT a FROM s") == "40001"  # the rows of that time have no such columns


CONFLICTS = [
    ("ALTER TABLE t ADD COLUMN x int", "ALTER TABLE t ADD COLUMN y int"),
    ("ALTER TABLE t ADD COLUMN x int", "ALTER TABLE t RENAME TO s"),
    ("ALTER TABLE w ADD COLUMN x int", "ALTER TABLE w ALTER COLUMN n SET DEFAULT 7"),
    ("CREATE VIEW x AS SELECT b FROM t", "ALTER TABLE t RENAME COLUMN b TO c"),
    ("CREATE INDEX x ON t (b)", "ALTER TABLE t RENAME COLUMN b TO c"),
    ("CREATE MATERIALIZED VIEW x AS SELECT d FROM t", OTHER_COLUMN),
    ("INSERT INTO w VALUES (1)", "BEGIN; ALTER TABLE w RENAME TO x; CREATE TABLE w (n int); COMMIT"),
    ("INSERT INTO t VALUES (5, 6, 7, 8)", SWAPPED_TABLES),
]


@pytest.mark.parametrize(("own", "others"), CONFLICTS)
async def test_transaction_conflicts_with_definitions_of_others(
    coordinator: Coordinator, client: Client, own: str, others: str
) -> None:
    other = Client(coordinator)
    await other.script(*SETUP)
    await client.script("BEGIN", own)
    await other.script(others)
    before = await other("SELECT table_name, column_name FROM information_schema.columns ORDER BY 1, 2")
    assert await client.fails("COMMIT") == "40001"
    assert await other("SELECT table_name, column_name FROM information_schema.columns ORDER BY 1, 2") == before
    assert await other("SELECT count(*) FROM t") == [("1",)] if others is SWAPPED_TABLES else [("2",)]


async def test_definitions_conflict_with_others_between_their_reads(coordinator: Coordinator, client: Client) -> None:
    """ALTER TABLE in a transaction copies rows; the columns are those of the time of the copy."""
    other = Client(coordinator)
    await other.script(*SETUP)
    await client("BEGIN")
    async with coordinator.timeline.alone():
        altering = asyncio.create_task(client("ALTER TABLE t ADD COLUMN x int DEFAULT 1"))
        await pause()
        await other.script(SWAPPED_COLUMNS)
    await altering
    await client("COMMIT")
    assert await client("SELECT k, a, b, x FROM t ORDER BY k") == [("1", "100", "10", "1"), ("2", "201", "20", "1")]


async def test_process_beside_the_owner_reads_at_the_present(tmp_path: Path) -> None:
    world = SqlWorld(tmp_path)
    async with world.served() as (_, writer), world.served() as (_, reader):
        await writer.script("CREATE TABLE t (n int); INSERT INTO t VALUES (1)")
        assert await reader("TABLE t") == [("1",)]
        await writer("INSERT INTO t VALUES (2)")
        assert await reader("SELECT count(*) FROM t") == [("2",)]
        await writer.script("ALTER TABLE t RENAME n TO m; UPDATE t SET m = m + 1")
        assert await reader("SELECT m FROM t ORDER BY m") == [("2",), ("3",)]


class SlowStorage:
    """A storage whose write is durable before the timeline continues."""

    def __init__(self) -> None:
        self.written, self.may_continue = asyncio.Event(), asyncio.Event()

    async def present(self, *, is_exact: bool = True) -> int:
        return 10

    async def append(
        self, time: int, writes: Sequence[Write], definitions: Definitions | None = None, *, is_estimate: bool = False
    ) -> None:
        self.written.set()
        await self.may_continue.wait()

    async def seal(self, ids: Collection[GlobalId], time: int) -> None: ...

    async def frontiers(self, ids: Collection[GlobalId]) -> tuple[int, int]:
        return 0, 100

    async def changed(self, ids: Collection[GlobalId], time: int) -> None: ...


async def test_readers_wait_for_names_of_durable_definitions() -> None:
    storage, published = SlowStorage(), list[str]()
    commits = GroupCommit(Timeline(storage, 0))
    committing = asyncio.create_task(
        commits.commit((), then=lambda: published.append("names"), definitions=Definitions(None))
    )
    await storage.written.wait()
    reading = asyncio.create_task(commits.published())
    await pause()
    assert commits.is_publishing
    assert not reading.done()
    storage.may_continue.set()
    await reading
    assert published == ["names"]
    await committing
    assert not commits.is_publishing


async def test_commit_that_fails_is_not_repeated(coordinator: Coordinator, client: Client) -> None:
    """A COMMIT that was repeated after its transaction had ended would succeed without the writes."""
    other = Client(coordinator)
    await other.script(*SETUP)
    await client.script("BEGIN", "SELECT * FROM u", "INSERT INTO t VALUES (3, 1, 1)", "INSERT INTO w VALUES (1)")
    await other.script("DROP VIEW v; DROP TABLE t")
    assert await client.fails("COMMIT") == "42P01"
    assert await client("TABLE w") == []


async def test_deferred_keys_are_checked_beside_definitions(coordinator: Coordinator, client: Client) -> None:
    other = Client(coordinator)
    await other.script(*SETUP, "CREATE TABLE c (k int REFERENCES t DEFERRABLE INITIALLY DEFERRED)")
    for key, sqlstate in ((1, None), (9, "23503")):
        await client.script("BEGIN", "INSERT INTO w VALUES (1)", f"INSERT INTO c VALUES ({key})")
        async with coordinator.timeline.alone():
            committing = asyncio.create_task(client("COMMIT"))
            await pause()
            await other(f"CREATE TABLE unrelated{key} (n int)")
        if sqlstate is None:
            await committing
        else:
            with pytest.raises(SqlError) as raised:
                await committing
            assert raised.value.sqlstate == sqlstate
    assert await client("TABLE w") == [("1",)]
    assert await client("TABLE c") == [("1",)]


async def test_alter_waits_for_no_view_without_a_run(
    coordinator: Coordinator, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployment, "_PATIENCE_SECONDS", 1e6)
    view = 'CREATE MATERIALIZED VIEW m AS SELECT t.a FROM t, "shop/spending" s WHERE s.spent = t.a'
    await client.script(*SETUP, view, "ALTER TABLE t ADD COLUMN e int")


INSERTED = "INSERT INTO t VALUES (3, 30, 300)"
WRITTEN = [
    (INSERTED, "ALTER TABLE t RENAME COLUMN a TO c", "SELECT k, b FROM t"),
    (INSERTED, "ALTER TABLE t RENAME COLUMN a TO c", "SELECT a FROM t"),
    (INSERTED, SWAPPED_COLUMNS, "SELECT k, a FROM t"),
    (INSERTED, SWAPPED_COLUMNS, "SELECT a FROM v"),
    (INSERTED, SWAPPED_COLUMNS, "INSERT INTO w SELECT a FROM t"),
    (INSERTED, SWAPPED_COLUMNS, "INSERT INTO t VALUES (3, 1, 2) ON CONFLICT (k) DO UPDATE SET a = excluded.a"),
    (INSERTED, SWAPPED_COLUMNS, "DECLARE r CURSOR FOR SELECT a FROM t"),
    (INSERTED, SWAPPED_TABLES, "SELECT a FROM t"),
    (INSERTED, SWAPPED_TABLES, "SELECT a FROM u"),
    (INSERTED, OTHER_COLUMN, "SELECT e FROM t WHERE k = 3"),
    (INSERTED, "DROP VIEW v; DROP TABLE t; CREATE TABLE t (k int, a int)", "SELECT a FROM t"),
    ("UPDATE t SET a = 0", SWAPPED_COLUMNS, "SELECT k, a FROM t"),
    ("CREATE TABLE x (n int); INSERT INTO x VALUES (1); " + INSERTED, SWAPPED_COLUMNS, "SELECT k, a FROM t"),
    ("SAVEPOINT s; INSERT INTO w VALUES (1); ROLLBACK TO s; " + INSERTED, SWAPPED_COLUMNS, "SELECT k, a FROM t"),
]


@pytest.mark.parametrize(("own", "others", "query"), WRITTEN)
async def test_transaction_reads_no_written_table_that_others_have_altered(
    coordinator: Coordinator, client: Client, own: str, others: str, query: str
) -> None:
    """Its own rows have the columns from before, under which the later plan would not find them."""
    other = Client(coordinator)
    await other.script(*SETUP)
    await client.script("BEGIN", own)
    await other.script(others)
    error = await client.error(query)
    assert (error.sqlstate, error.hint) == ("40001", "Run the transaction again.")
    await client("ROLLBACK")
    assert await client("SELECT count(*) FROM t WHERE k = 3") == [("0",)]


async def test_transaction_reads_written_tables_beside_other_definitions(
    coordinator: Coordinator, client: Client
) -> None:
    other = Client(coordinator)
    await other.script(*SETUP)
    await client.script("BEGIN", INSERTED, "SAVEPOINT s", "INSERT INTO w VALUES (1)")
    await other.script("CREATE TABLE x (n int); ALTER TABLE u RENAME COLUMN a TO c; CREATE INDEX t_a ON t (a)")
    await other.script("COMMENT ON COLUMN t.a IS 'x'; COMMENT ON TABLE t IS 'x'")
    assert await client("SELECT a FROM t WHERE k = 3") == [("30",)]
    await other("ALTER TABLE w RENAME COLUMN n TO m")
    assert await client.fails("SELECT a FROM t WHERE k = 3") == "40001"
    await client("ROLLBACK TO s")  # nothing is written into w now
    assert await client("SELECT a FROM t WHERE k = 3") == [("30",)]
    await client("COMMIT")
    assert await client("SELECT a FROM t WHERE k = 3") == [("30",)]


ADDED_KEY = "INSERT INTO w VALUES (1); ALTER TABLE w ADD FOREIGN KEY (n) REFERENCES t (k)"


@pytest.mark.parametrize(
    ("own", "others"),
    [
        ("DELETE FROM t WHERE k = 1", ADDED_KEY),
        ("TRUNCATE t", ADDED_KEY),
        (f"{INSERTED}; UPDATE t SET k = 9 WHERE k = 1", ADDED_KEY),
        ("DELETE FROM t WHERE k = 1", "CREATE TABLE x (n int REFERENCES t (k)); INSERT INTO x VALUES (1)"),
    ],
)
async def test_transaction_deletes_no_row_for_which_others_have_added_a_foreign_key(
    coordinator: Coordinator, client: Client, own: str, others: str
) -> None:
    other = Client(coordinator)
    await other.script(*SETUP)
    await client.script("BEGIN", own)
    await other.script(others)
    assert await client.fails("COMMIT") == "40001"
    assert await client("SELECT k FROM t WHERE k = 1") == [("1",)]


async def test_transaction_inserts_beside_foreign_keys_of_others(coordinator: Coordinator, client: Client) -> None:
    other = Client(coordinator)
    await other.script(*SETUP, "CREATE TABLE x (n int, CONSTRAINT f FOREIGN KEY (n) REFERENCES t (k))")
    await client.script("BEGIN", INSERTED)
    await other("CREATE TABLE y (n int REFERENCES t (k))")
    await client.script("COMMIT", "BEGIN", "DELETE FROM t WHERE k = 3")
    await other("ALTER TABLE x DROP CONSTRAINT f")
    await client("COMMIT")
    assert await client("SELECT count(*) FROM t WHERE k = 3") == [("0",)]
