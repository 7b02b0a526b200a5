"""Queries over copies of single tables give the rows that are stored: beside writers, and after changes of many rows."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_SECONDS
from sql_world import Client, SqlWorld

from derive.algebra.relation import Finishing, Get
from derive.algebra.types import Datum, Row, Type
from derive.compute.resident import ResidentQuery, ResidentRows
from derive.sql.coordinator import Coordinator
from derive.sql.preparation import plan
from derive.sql.transactions import large_tables
from derive.sql.transactions.large_tables import LargeTables
from derive.sql.transactions.table_changes import distinct, net
from derive.sql.transactions.writes import ChangedRows, InsertedRows
from derive.storage.table_types import Table, TableColumn

ROWS = st.lists(
    st.tuples(st.none() | st.integers(0, 2), st.sampled_from([None, 0.0, -0.0, 1.0]), st.sampled_from([None, "", "a"])),
    max_size=12,
)


ALL = ResidentQuery(Get(1, (Type.INTEGER, Type.DOUBLE, Type.TEXT)), Finishing((), None, 0, (0, 1, 2)))


@given(ROWS, st.data())
def test_removed_rows_are_those_of_a_multiset(rows: list[Row], data: st.DataObject) -> None:
    """Law: each row is removed as often as told, and no other row, also among equal numbers and NULLs."""
    resident = ResidentRows(1 << 20)
    assert resident.change(1, 3, (), rows)
    removed = data.draw(st.lists(st.sampled_from(rows), max_size=6)) if rows else []
    counts = Counter(map(repr, rows))
    counts.subtract(map(repr, removed))
    answers = [resident.change(1, 3, [(row, 1)], ()) for row in removed]
    assert all(answers) is (min(counts.values(), default=0) >= 0)
    if all(answers):
        assert Counter(map(repr, resident.rows(ALL, (), None, lambda: False) or ())) == +counts
        present = {repr(row): row for row in rows if counts[repr(row)] > 0}
        assert not present or resident.change(1, 3, [(row, counts[text]) for text, row in present.items()], ())
        assert resident.rows(ALL, (), None, lambda: False) == []


def test_single_rows_are_found_by_an_index() -> None:
    resident, others = ResidentRows(1 << 20), [(number, 2.0, "b") for number in range(60)]
    rows: list[Row] = [(1, -0.0, "a"), (1, 0.0, "a"), (7, None, None), (8, 1.0, "c"), (8, 1.0, "c")]
    assert resident.change(1, 3, (), [*rows, *others])
    assert resident.change(1, 3, [(others[0], 1)], ())  # creates the index
    for row, expected in ((rows[1], True), (rows[1], False), (rows[2], True), (rows[2], False), (rows[3], True)):
        assert resident.change(1, 3, [(row, 1)], ()) is expected
    assert resident.change(1, 3, (), [rows[2]])
    left = Counter(map(repr, resident.rows(ALL, (), None, lambda: False) or ()))
    assert left == Counter(map(repr, [rows[0], rows[2], rows[4], *others[1:]]))


@given(ROWS, st.data())
def test_changes_of_distinct_rows_are_their_net_changes(rows: list[Row], data: st.DataObject) -> None:
    diffs = data.draw(st.just([]) | st.lists(st.sampled_from([-2, -1, 1, 2]), min_size=len(rows), max_size=len(rows)))
    expected = net([(rows, diffs)])
    found = distinct([(rows, diffs)])
    is_certain = len(set(rows)) == len(rows) and {-1, 1}.issuperset(diffs)
    assert (found is not None) or not is_certain
    for some, others in zip(found or expected, expected, strict=True):
        assert sorted(map(repr, some)) == sorted(map(repr, others))


STATEMENTS = (
    "UPDATE t SET b = b + 1 WHERE a % 3 = 1",
    "DELETE FROM t WHERE a % 5 = 2",
    "INSERT INTO t SELECT n, n / 4.0, 'x' FROM generate_series(1, 700) n",
    "UPDATE t SET c = NULL WHERE b > 50",
    "UPDATE t SET a = 1, b = 2, c = ''",
)


async def test_slow_queries_over_copies_equal_evaluations(coordinator: Coordinator) -> None:
    client = Client(coordinator)
    await client("CREATE TABLE t (a int, b float8, c text)")
    await client("INSERT INTO t SELECT n, n / 8.0, 'row ' || n FROM generate_series(1, 10000) n")
    large = coordinator.commits.residents.large
    sizes = []
    slow = "SELECT a, md5(c) FROM t WHERE md5(md5(c || b)) < '3'"
    for text in (None, *STATEMENTS):
        if text is not None:
            await client(text)
        expected = sorted(await client(f"{slow} AND now() IS NOT NULL"), key=repr)
        for _ in range(3):
            assert sorted(await client(slow), key=repr) == expected
        sizes.append(large.size)
    assert sizes[0] > 0
    await client("BEGIN")
    await client("DELETE FROM t WHERE a = 1")
    assert await client(slow) == []
    await client("ROLLBACK")
    await client("ALTER TABLE t ADD COLUMN d int DEFAULT 5")
    counted = "SELECT count(*) FROM t WHERE d = 5 AND md5(md5(c)) > ''"
    assert [await client(counted) for _ in range(3)] == [await client("SELECT count(*) FROM t")] * 3


@pytest.mark.parametrize("written", [[], [4], [5], [4, 5, 6]])
def test_commits_during_a_large_copy_are_applied_once(tmp_path: Path, written: list[int]) -> None:
    """A copy at time 5 has the commits up to 5 from Storage, and gets later ones from their notes."""

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

        tables = LargeTables(lambda _: source, contents)
        asked, table = ResidentQuery(query.relation, query.finishing), (identifier, (Type.INTEGER,))

        async def rows(time: int) -> list[Row] | None:
            return await tables.rows(asked, table, time, (), None, lambda *_: True, lambda: False)

        assert await rows(5) is None  # the first read does not copy
        loading = asyncio.create_task(rows(7))
        await asyncio.sleep(0)
        for time in written:
            tables.note(InsertedRows(identifier, [(time,)]), time)
        is_noted.set()
        loaded: list[Datum] = [0, *written]
        assert await loading == [(one,) for one in loaded]
        assert await rows(3) is None
        tables.note(ChangedRows(identifier, [(0,), (9,), (9,)], [-1, 1, 1]), 9)
        assert await rows(8) is None
        assert await rows(9) == [*((one,) for one in written), (9,), (9,)]
        tables.note(ChangedRows(identifier, [(1,)], [-1]), 10)  # a row that the copy lacks: it is made again
        assert await rows(10) is None

    SqlWorld(tmp_path).within(check)


async def test_cancelled_query_discards_its_copy(coordinator: Coordinator) -> None:
    source = Table(1, "t", (TableColumn("a", "integer"),), (), 0, 9)
    started, may_end = threading.Event(), threading.Event()

    def contents(_: Table, time: int, *limits: int) -> list[Row]:
        return []

    def is_over() -> bool:
        started.set()
        return may_end.wait(PATIENCE_SECONDS)

    tables = LargeTables(lambda _: source, contents)
    query = plan("SELECT count(*) FROM generate_series(1, 100000000)", (), coordinator.objects).query
    assert query is not None
    asked = ResidentQuery(query.relation, query.finishing)

    def rows() -> Coroutine[None, None, list[Row] | None]:
        return tables.rows(asked, (1, (Type.INTEGER,)), 5, (), None, lambda *_: True, is_over)

    assert await rows() is None
    running = asyncio.create_task(rows())
    await asyncio.to_thread(started.wait, PATIENCE_SECONDS)
    running.cancel()
    outcomes = await asyncio.gather(running, return_exceptions=True)
    may_end.set()
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert tables.size == 0


async def test_long_query_of_a_copy_delays_no_other_query(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other queries read Storage: also those that exclude all writers meanwhile."""
    source = Table(1, "t", (TableColumn("a", "integer"),), (), 0, 9)
    started, may_end = threading.Event(), threading.Event()

    def is_over() -> bool:
        started.set()
        return may_end.wait(PATIENCE_SECONDS)

    tables = LargeTables(lambda _: source, lambda *_: [(1,)])
    query = plan("SELECT count(*) FROM generate_series(1, 100000000)", (), coordinator.objects).query
    assert query is not None
    long = ResidentQuery(query.relation, query.finishing)

    def rows(asked: ResidentQuery) -> Coroutine[None, None, list[Row] | None]:
        return tables.rows(asked, (1, (Type.INTEGER,)), 5, (), None, lambda *_: True, is_over)

    short = ResidentQuery(Get(1, (Type.INTEGER,)), Finishing((), None, 0, (0,)))
    assert [await rows(short), await rows(short)] == [None, [(1,)]]
    running = asyncio.create_task(rows(long))
    await asyncio.to_thread(started.wait, PATIENCE_SECONDS)
    monkeypatch.setattr(large_tables, "_PATIENCE_SECONDS", 0.0)
    assert [await rows(short), await rows(short)] == [None, None]
    may_end.set()
    assert await running is None
    assert await rows(short) == [(1,)]


async def test_table_that_is_rewritten_between_reads_is_not_copied() -> None:
    source = Table(1, "t", (TableColumn("a", "integer"),), (), 0, 9)
    loads: list[int] = []

    def contents(_: Table, time: int, *limits: int) -> list[Row]:
        loads.append(time)
        return [(1,)]

    tables = LargeTables(lambda _: source, contents)
    asked = ResidentQuery(Get(1, (Type.INTEGER,)), Finishing((), None, 0, (0,)))

    async def read(time: int) -> list[Row] | None:
        return await tables.rows(asked, (1, (Type.INTEGER,)), time, (), None, lambda *_: True, lambda: False)

    for time in range(1, 6):
        await read(time)
        if time > 1:
            tables.note(InsertedRows(1, [(time,)] * 10_001), time)
    assert loads == [2]
    assert [await read(6), await read(7)] == [None, [(1,)]]
    assert loads == [2, 7]
