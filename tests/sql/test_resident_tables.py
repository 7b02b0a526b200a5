"""Queries of tables in memory give the rows that are stored: beside writers, in transactions, and after definitions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE_SECONDS
from sql_world import Client, SqlWorld

from derive.algebra.types import Row
from derive.errors import DiskFullError, SqlError
from derive.sql.coordinator import Coordinator
from derive.sql.preparation import plan
from derive.sql.transactions import resident_tables
from derive.sql.transactions.key_index import KeyChanges, KeyIndexes
from derive.sql.transactions.resident_tables import ResidentTables, TableQuery
from derive.sql.transactions.writes import Write
from derive.storage.table_types import Table

CREATE = "CREATE TABLE t (a int, b double precision); CREATE TABLE u (a int); CREATE VIEW v AS SELECT * FROM t"

QUERIES = [
    "SELECT a FROM t WHERE b = 1",
    "SELECT t.a FROM t, u WHERE t.a = u.a AND u.a > $1 ORDER BY 1 LIMIT 3",
    "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a)",
    "SELECT count(*), sum(b) FROM t GROUP BY a",
    "SELECT a FROM v",
]
OTHERS = [
    "SELECT 1",
    "SELECT a FROM t LIMIT $1",
    "SELECT now(), a FROM t",
    "SELECT relname FROM pg_class",
    "SELECT t.a FROM t, pg_class",
    'SELECT id FROM "shop/orders"',
    'SELECT a FROM t WHERE a IN (SELECT id FROM "shop/orders")',
    "WITH RECURSIVE r AS (SELECT a FROM t UNION SELECT a + 1 FROM r WHERE a < 5) SELECT * FROM r",
]


def _query(coordinator: Coordinator, text: str) -> TableQuery | None:
    query = plan(text, (), coordinator.objects).query
    return coordinator.commits.residents.find(query, coordinator.objects) if query else None


def test_queries_of_tables_are_evaluated_in_memory(tmp_path: Path) -> None:
    async def check(coordinator: Coordinator) -> None:
        await Client(coordinator).script(CREATE)
        assert [text for text in QUERIES + OTHERS if _query(coordinator, text)] == QUERIES

    SqlWorld(tmp_path).within(check)


_STATEMENTS = st.sampled_from(
    [
        "INSERT INTO t VALUES ({k}, {v}), ({k}, -0.0 * {v}::float8)",
        "INSERT INTO t VALUES ({k}, NULL)",
        "UPDATE t SET b = b + {v} WHERE a = {k}",
        "DELETE FROM t WHERE a = {k}",
        "BEGIN",
        "COMMIT",
        "ROLLBACK",
    ]
)


@settings(max_examples=6, deadline=None)
@given(st.lists(st.tuples(st.booleans(), _STATEMENTS, st.integers(0, 2), st.integers(0, 2)), max_size=14))
def test_rows_in_memory_equal_stored_rows(statements: list[tuple[bool, str, int, int]]) -> None:
    """At each time and in each transaction, a query of a table in memory gives the rows that Storage gives."""

    async def check(coordinator: Coordinator) -> None:
        clients = Client(coordinator), Client(coordinator)
        await clients[0].script(CREATE)
        for _ in range(2):  # the second read copies the table
            await clients[0]("SELECT a, b FROM t")
        for is_second, text, key, value in statements:
            try:
                await clients[is_second].tag(text.format(k=key, v=value))
            except SqlError:  # a conflict with the other client
                await clients[is_second].tag("ROLLBACK")
            for reader in clients:
                found = await reader("SELECT a, b FROM t")
                stored = await reader("SELECT a, b FROM t WHERE now() IS NOT NULL")
                prepared = await reader.session.prepare("SELECT a FROM t", ())
                at_once = reader.session.look_up(prepared, ())
                if at_once is not None:
                    assert sorted(map(str, (a for (a,) in at_once))) == sorted(str(a) for a, _ in stored)
                assert sorted(found, key=repr) == sorted(stored, key=repr)
                counted = await reader("SELECT count(*) FROM t WHERE a = $1", key)
                assert counted == [(str(sum(row[0] == str(key) for row in stored)),)]
        asked = _query(coordinator, "SELECT a, b FROM t")
        assert asked is not None
        assert coordinator.commits.residents.are_loaded(asked)

    with TemporaryDirectory() as folder:
        SqlWorld(Path(folder)).within(check)


def test_tables_of_one_name_have_their_own_rows(tmp_path: Path) -> None:
    async def check(coordinator: Coordinator) -> None:
        client = Client(coordinator)

        async def rows() -> list[tuple[str | None, ...]]:
            before = [await client("SELECT * FROM w ORDER BY 1") for _ in range(3)]
            assert before[0] == before[1] == before[2]
            return before[0]

        await client.script("CREATE TABLE w (a int)", "INSERT INTO w VALUES (1), (2)")
        assert await rows() == [("1",), ("2",)]
        await client("ALTER TABLE w ADD COLUMN b text")
        await client("UPDATE w SET b = 'x' WHERE a = 2")
        assert await rows() == [("1", None), ("2", "x")]
        await client("ALTER TABLE w ALTER COLUMN a TYPE text USING a::text || '!'")
        assert await rows() == [("1!", None), ("2!", "x")]
        await client("TRUNCATE w")
        assert await rows() == []
        await client.script("DROP TABLE w", "CREATE TABLE w (c int)", "INSERT INTO w VALUES (7)")
        assert await rows() == [("7",)]

    SqlWorld(tmp_path).within(check)


def test_tables_in_memory_stay_within_their_size(tmp_path: Path) -> None:
    """The least recently read tables leave the memory, and each query has its rows."""
    most = 400_000
    world = SqlWorld(tmp_path)

    async def check() -> None:
        coordinator = Coordinator(world.data, world.catalog, table_memory=most)
        try:
            client = Client(coordinator)
            residents = coordinator.commits.residents
            for number in range(5):
                await client(f"CREATE TABLE t{number} (a int, b text)")
                values = f"SELECT i, repeat('x', 100) FROM generate_series(1, {1000 if number < 4 else 9000}) AS g(i)"
                await client(f"INSERT INTO t{number} {values}")
            for number in (0, 0, 1, 1, 2, 2, 3, 3, 0, 4, 4, 4):
                count = 1000 if number < 4 else 9000
                assert await client(f"SELECT count(*), max(a) FROM t{number}") == [(str(count), str(count))]
                assert residents.size <= most
            asked = [_query(coordinator, f"SELECT count(*), max(a) FROM t{number}") for number in range(5)]
            loaded = [query is not None and residents.are_loaded(query) for query in asked]
            assert loaded[4] is False
        finally:
            await coordinator.close()

    asyncio.run(check())


def test_copies_of_an_earlier_time_have_commits_whose_keys_are_not_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that copies a table while the indexes of a commit are applied takes its rows from Storage."""

    async def check(coordinator: Coordinator) -> None:
        writer, reader = Client(coordinator), Client(coordinator)
        await writer.script("CREATE TABLE k (a int PRIMARY KEY)", "CREATE TABLE u (a int)", "INSERT INTO k VALUES (0)")
        await reader.script("SELECT count(*) FROM u", "BEGIN", "SELECT count(*) FROM k WHERE a < 9")
        await writer.script("BEGIN", "INSERT INTO k VALUES (1)", "INSERT INTO u VALUES (1)")
        is_noted, is_read, apply = asyncio.Event(), asyncio.Event(), KeyIndexes.apply

        async def applied(keys: KeyIndexes, changes: Iterable[KeyChanges]) -> None:
            is_noted.set()
            await is_read.wait()
            await apply(keys, changes)

        monkeypatch.setattr(KeyIndexes, "apply", applied)
        writing = asyncio.create_task(writer.tag("COMMIT"))
        await is_noted.wait()
        assert await reader("SELECT count(*) FROM u") == [("0",)]
        is_read.set()
        await writing
        await reader("COMMIT")
        for _ in range(2):
            assert await reader("SELECT count(*) FROM u") == [("1",)]

    SqlWorld(tmp_path).within(check)


def test_copies_of_several_tables_have_commits_between_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit to the second table, while the first is copied, is later than the read that copies both."""

    async def check(coordinator: Coordinator) -> None:
        writer, reader, load = Client(coordinator), Client(coordinator), ResidentTables._load
        inserts = iter(["INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (1)"])

        async def loaded(tables: ResidentTables, identifier: int, time: int) -> None:
            await load(tables, identifier, time)
            for text in inserts:
                await writer(text)

        await writer.script("CREATE TABLE a (n int)", "CREATE TABLE b (n int)")
        both = "SELECT 'a', n FROM a UNION ALL SELECT 'b', n FROM b ORDER BY 1"
        assert await reader(both) == []
        monkeypatch.setattr(ResidentTables, "_load", loaded)
        await reader(both)
        for _ in range(3):
            assert await reader(both) == [("a", "1"), ("b", "1")]

    SqlWorld(tmp_path).within(check)


def test_reads_see_a_commit_that_a_subscription_has_reported_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subscription reports a commit when it is durable, which may be before the copies have its rows."""

    async def check(coordinator: Coordinator) -> None:
        writer, reader, append = Client(coordinator), Client(coordinator), coordinator.storage_clock.append
        await writer.script("CREATE TABLE t (n int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        queries = ["SELECT count(*) FROM t", "SELECT n FROM t WHERE n = 2", "SELECT n FROM t WHERE n > 1"]
        for query in queries * 2:
            await reader(query)
        seen: list[list[Any]] = []

        async def reported(time: int, writes: Sequence[Write], definitions: Any, *, is_estimate: bool) -> None:
            await append(time, writes, definitions, is_estimate=is_estimate)
            coordinator.timeline.observe(time)
            seen.extend([await reader(query) for query in queries])

        monkeypatch.setattr(coordinator.storage_clock, "append", reported)
        await writer("INSERT INTO t VALUES (2)")
        assert seen == [[("2",)], [("2",)], [("2",)]]

    SqlWorld(tmp_path).within(check)


def test_rows_of_a_commit_with_an_error_are_in_copies_and_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails after a commit hides no row: from copies at earlier times, unique keys, and transactions."""

    async def check(coordinator: Coordinator) -> None:
        writer, reader, other = Client(coordinator), Client(coordinator), Client(coordinator)
        append = coordinator.store.tables.append

        def committed(*args: Any, **options: Any) -> bool:
            if append(*args, **options):
                raise DiskFullError("no space left on device")
            return False

        async def fail(text: str) -> None:
            with monkeypatch.context() as full, pytest.raises(DiskFullError):
                full.setattr(coordinator.store.tables, "append", committed)
                await writer(text)

        await writer.script("CREATE TABLE t (n int)", "CREATE TABLE k (n int PRIMARY KEY)", "CREATE TABLE u (n int)")
        await writer("INSERT INTO k VALUES (0)")
        for client in (reader, other):
            await client.script("BEGIN", "SELECT count(*) FROM u")
        await other("SELECT count(*) FROM t")
        await fail("INSERT INTO t VALUES (1)")
        for _ in range(3):
            assert await reader("SELECT n FROM t") == []
        await reader("COMMIT")
        await fail("INSERT INTO k VALUES (1)")
        assert await reader.fails("INSERT INTO k VALUES (1)") == "23505"
        await writer("INSERT INTO u VALUES (1)")
        for _ in range(3):
            assert await reader("SELECT n FROM t") == [("1",)]
            assert await reader("SELECT n FROM k WHERE n = 1") == [("1",)]
        await other("INSERT INTO u SELECT count(*) FROM t")
        assert await other.fails("COMMIT") == "40001"

    SqlWorld(tmp_path).within(check)


def test_tables_are_not_copied_at_times_of_a_former_owner(tmp_path: Path) -> None:
    async def check(coordinator: Coordinator) -> None:
        client, residents = Client(coordinator), coordinator.commits.residents
        await client.script("CREATE TABLE t (n int)", "BEGIN", "SELECT n FROM t")
        begun, coordinator.ownership.begun = coordinator.ownership.begun, coordinator.store.timeline.read() + 1
        await client.script("SELECT n FROM t", "SELECT n FROM t")
        assert residents.size == 0
        coordinator.ownership.begun = begun
        await client.script("SELECT n FROM t", "COMMIT")
        assert residents.size > 0

    SqlWorld(tmp_path).within(check)


@pytest.mark.parametrize("written", [[], [4], [5], [4, 5, 6]])
def test_commits_during_a_copy_are_applied_once(tmp_path: Path, written: list[int]) -> None:
    """A copy at time 5 has the commits up to 5 from Storage, and gets later ones from their notes."""
    world = SqlWorld(tmp_path)

    async def check(coordinator: Coordinator) -> None:
        await Client(coordinator)("CREATE TABLE t (a int)")
        query = plan("SELECT a FROM t", (), coordinator.objects).query
        identifier = next(iter(coordinator.objects.items))
        source = coordinator.source(identifier)
        assert query is not None
        assert isinstance(source, Table)
        is_noted = threading.Event()

        def contents(_: Table, time: int, *limits: int) -> list[Row]:
            assert limits
            assert is_noted.wait(PATIENCE_SECONDS)
            return [(one,) for one in [0, *written] if one <= time]

        tables = ResidentTables(lambda _: source, contents)
        asked = tables.find(query, coordinator.objects)
        assert asked is not None
        assert not await tables.load(asked, 5, lambda *_: True)  # the first read does not copy
        loading = asyncio.create_task(tables.load(asked, 5, lambda *_: True))
        await asyncio.sleep(0)
        for time in written:
            tables.note([(identifier, (time,), 1)], time)
        is_noted.set()
        assert await loading
        assert tables.rows(asked, 7, (), None) == [(0,), *((one,) for one in written)]
        assert tables.rows(asked, 4, (), None) is None
        tables.note([(identifier, (0,), -1), (identifier, (9,), 2)], 9)
        assert tables.rows(asked, 8, (), None) is None
        assert tables.rows(asked, 9, (), None) == [*((one,) for one in written), (9,), (9,)]

    world.within(check)


WRITES = [
    "INSERT INTO w SELECT i % 7, i / 8.0, 'x' FROM generate_series(1, 60) AS g(i)",
    "UPDATE w SET b = b + 1 WHERE a = 3",
    "DELETE FROM w WHERE b < 1 AND a <> 0",
    "BEGIN; UPDATE w SET c = c || 'y' WHERE a < 2; UPDATE w SET c = c || 'z' WHERE a = 1; COMMIT",
    "BEGIN; DELETE FROM w WHERE a = 2; ROLLBACK",
    "UPDATE w SET b = u.b FROM w AS u WHERE u.a = 5 AND w.a = 6 AND u.b > 7",
    "UPDATE w SET a = a + 1",
    "DELETE FROM w WHERE a IN (SELECT a FROM w GROUP BY a HAVING count(*) > 8)",
    "INSERT INTO w SELECT a, b, c FROM w WHERE a = 4",
]


def test_writes_over_rows_in_memory_equal_writes_over_stored_rows(tmp_path: Path) -> None:
    """The rows after each write are the same with and without tables in memory."""

    async def history(folder: Path, table_memory: int) -> list[list[tuple[str | None, ...]]]:
        coordinator = Coordinator(folder, None, table_memory=table_memory)
        try:
            client = Client(coordinator)
            await client("CREATE TABLE w (a int, b float8, c text)")
            rows = []
            for text in WRITES:
                await client.script(text)
                rows += [await client("SELECT a, b, c FROM w ORDER BY 1, 2, 3") for _ in range(2)]
            assert (coordinator.commits.residents.size > 0) is (table_memory > 0)
            return rows
        finally:
            await coordinator.close()

    assert asyncio.run(history(tmp_path / "a", 1 << 20)) == asyncio.run(history(tmp_path / "b", 0))


def test_deleted_rows_of_very_many_columns_are_gone(tmp_path: Path) -> None:
    """SQLite compares no rows of so many columns, so the copy is discarded."""
    width = 1_001
    rows = "SELECT c0 FROM t"
    *_, before, _, after, again = SqlWorld(tmp_path).script(
        f"CREATE TABLE t ({', '.join(f'c{index} int' for index in range(width))})",
        "INSERT INTO t (c0) VALUES (1), (2)",
        rows,
        rows,
        "DELETE FROM t WHERE c0 = 1",
        rows,
        rows,
    )
    assert (len(before), after, again) == (2, [("2",)], [("2",)])


def test_rewritten_table_is_copied_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies get the changes of UPDATEs and DELETEs of many rows, also beside other tables of a query."""
    loads: list[int] = []
    few_rows = Coordinator._few_rows

    def counted(coordinator: Coordinator, table: Table, time: int, *limits: int) -> list[Row] | None:
        loads.append(table.id)
        return few_rows(coordinator, table, time, *limits)

    monkeypatch.setattr(Coordinator, "_few_rows", counted)
    monkeypatch.setattr(resident_tables, "_CHANGED_AT_ONCE", 60)
    joined = "SELECT t.*, u.a FROM t, u WHERE t.a = u.a"

    async def check(coordinator: Coordinator) -> None:
        client, other = Client(coordinator), Client(coordinator)
        await client.script(CREATE, "INSERT INTO t SELECT n, n / 8.0 FROM generate_series(1, 1000) n")
        await client("INSERT INTO u SELECT n FROM generate_series(1, 1000) n")
        for number in range(6):
            is_update = number % 2 == 0
            changed = "UPDATE t SET b = -b" if is_update else "DELETE FROM t"
            tag = ("UPDATE" if is_update else "DELETE") + " 100"
            assert await client.tag(f"{changed} WHERE a % 10 = {number}") == tag
            found, again = await asyncio.gather(client(joined), other("SELECT * FROM t"))
            stored = await client(f"{joined} AND now() IS NOT NULL")
            assert len(found) == 1000 - (number + 1) // 2 * 100
            assert sorted(found) == sorted(stored)
            assert sorted(again) == sorted(row[:2] for row in stored)
        asked = _query(coordinator, joined)
        assert asked is not None
        assert coordinator.commits.residents.are_loaded(asked)
        assert sorted(loads) == sorted(set(loads))

    SqlWorld(tmp_path).within(check)
