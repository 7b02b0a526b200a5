"""SQL that takes too much memory for one document fails by itself; what can be on disk may be as large as it likes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import apsw
import pytest
from sqlite_derivation import batch, derivation, say_nothing

from connectors.derive_sqlite import SqliteConnector
from connectors.derive_sqlite.session import SqliteSession
from derive.errors import LambdaError
from derive.lambda_sql.guard import HEAP, Watch
from derive.protocol.specs import LambdaLimits

MEGABYTES = 64
DOCUMENT = {"id": 1, "sender": "ann", "amount": 1}
NUMBERS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {})"
ROWS = f"{NUMBERS.format(2500)}, r (b) AS (SELECT randomblob(40000) FROM n)"
"""100 MB of rows."""


@contextmanager
def opened(folder: Path, sql: str, *migrations: str) -> Iterator[SqliteSession]:
    spec = replace(derivation(sql, migrations=migrations), limits=LambdaLimits(sqlite_megabytes=MEGABYTES))
    database = apsw.Connection(str(folder / "state.db"))
    database.execute("BEGIN")
    session = SqliteConnector().open(spec, database, say_nothing)
    try:
        yield session
    finally:
        session.close()
        database.close(True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT length(hex(randomblob(500000000))) AS x",
        f"SELECT {', '.join(f'length(a{each}) AS l{each}' for each in range(40))} FROM (SELECT "
        + ", ".join(f"hex(randomblob(4000000)) AS a{each}" for each in range(40))
        + " LIMIT 1 OFFSET (SELECT 0))",
        f"{ROWS} SELECT length(group_concat(hex(b))) AS x FROM r",
        f"{ROWS} SELECT length(json_group_array(hex(b))) AS x FROM r",
        "SELECT length(replace(hex(zeroblob(4000000)), '0', 'a long text')) AS x",
        f"{NUMBERS.format(30)} SELECT group_concat(hex(randomblob(500000 * i))) AS x FROM n",
    ],
)
def test_sql_beyond_the_memory_limit_fails_with_its_document(tmp_path: Path, sql: str) -> None:
    before, limit = apsw.memory_used(), apsw.hard_heap_limit(-1)
    apsw.memory_high_water(True)
    with opened(tmp_path, f"SELECT $id;\n{sql}") as session, pytest.raises(LambdaError) as raised:
        list(session.invoke(batch([DOCUMENT])))
    assert "exceeded its memory limit of 64 MB; the document was" in raised.value.message
    assert raised.value.hint == "to raise the limit: --sqlite-memory MB"
    assert raised.value.position is not None
    assert apsw.memory_high_water() - before <= (MEGABYTES + 1) << 20
    assert apsw.hard_heap_limit(-1) == limit


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "sql",
    [
        f"{ROWS} SELECT count(*) AS x FROM (SELECT b FROM r ORDER BY b LIMIT -1 OFFSET 1)",
        f"{ROWS} SELECT count(DISTINCT b) AS x FROM r",
        f"{ROWS} SELECT count(*) AS x FROM (SELECT b FROM r UNION SELECT b FROM r)",
        f"{ROWS}, m (b) AS MATERIALIZED (SELECT b FROM r) SELECT count(*) AS x FROM m AS a, m AS c WHERE a.b = c.b",
        f"{ROWS} SELECT sum(w) AS x FROM (SELECT length(lag(b, 20) OVER ()) AS w FROM r)",
    ],
)
def test_sqlite_spills_temporary_data_to_disk(tmp_path: Path, sql: str) -> None:
    before = apsw.memory_used()
    apsw.memory_high_water(True)
    with opened(tmp_path, sql) as session:
        assert [cause for cause, _ in session.invoke(batch([DOCUMENT]))] == [0]
    assert apsw.memory_high_water() - before <= (MEGABYTES + 1) << 20


def test_memory_limit_applies_to_each_document(tmp_path: Path) -> None:
    with opened(tmp_path, "SELECT length(randomblob(20000000)) + $id AS x") as session:
        published = list(session.invoke(batch([{**DOCUMENT, "id": each} for each in range(8)])))
    assert [document["x"] for _, document in published] == [20_000_000 + each for each in range(8)]


def test_heap_limit_lasts_until_its_last_release() -> None:
    limit = apsw.hard_heap_limit(-1)
    HEAP.hold(100 << 20)
    first = apsw.hard_heap_limit(-1)
    assert 100 << 20 <= first - apsw.memory_used() <= 101 << 20
    HEAP.hold(1 << 20)
    assert apsw.hard_heap_limit(-1) == first  # what another holds is not taken away
    HEAP.release()
    assert apsw.hard_heap_limit(-1) == first
    HEAP.release()
    assert apsw.hard_heap_limit(-1) == limit


def test_session_that_fails_to_open_releases_its_memory_limit(tmp_path: Path) -> None:
    limit = apsw.hard_heap_limit(-1)
    with pytest.raises(LambdaError), opened(tmp_path, "SELECT $nope"):
        pass
    assert apsw.hard_heap_limit(-1) == limit


def test_a_session_releases_its_limit_even_if_its_database_is_closed(tmp_path: Path) -> None:
    spec = derivation("SELECT $id")
    limit = apsw.hard_heap_limit(-1)
    database = apsw.Connection(str(tmp_path / "state.db"))
    database.execute("BEGIN")
    session = SqliteConnector().open(spec, database, say_nothing)
    assert HEAP.held == 1
    database.close(True)

    with pytest.raises(apsw.ConnectionClosedError):
        session.close()
    with pytest.raises(apsw.ConnectionClosedError):
        SqliteConnector().open(spec, database, say_nothing)
    with pytest.raises(apsw.ConnectionClosedError), Watch(database, 60.0):
        pass

    assert HEAP.held == 0
    assert apsw.hard_heap_limit(-1) == limit


def test_other_shards_continue_after_a_memory_failure(tmp_path: Path) -> None:
    """One shard's lambda fails for want of memory again and again; another's, in its thread, never does."""
    done = threading.Event()
    counted: list[int] = []
    failed: list[BaseException] = []

    def work() -> None:
        insert = "INSERT INTO t VALUES (randomblob(1000)); SELECT $id, max(length(a)) AS n FROM t"
        try:
            while not done.is_set():
                folder = tmp_path / str(len(counted))
                folder.mkdir()
                with opened(folder, insert, "CREATE TABLE t (a)") as session:
                    counted.append(len(list(session.invoke(batch([DOCUMENT] * 200)))))
        except BaseException as exc:
            failed.append(exc)

    neighbour = threading.Thread(target=work)
    neighbour.start()
    try:
        for attempt in range(2):
            folder = tmp_path / f"large{attempt}"
            folder.mkdir()
            sql = f"{NUMBERS.format(3000)} SELECT group_concat(hex(randomblob(20000))) AS x FROM n"
            with opened(folder, sql) as session, pytest.raises(LambdaError, match="exceeded its memory limit"):
                list(session.invoke(batch([DOCUMENT])))
    finally:
        done.set()
        neighbour.join()
    assert failed == []
    assert counted
    assert set(counted) == {200}
