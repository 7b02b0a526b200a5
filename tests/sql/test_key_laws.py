"""Laws of keys: concurrent transactions against a model; no duplicate key, and no lost acknowledged row."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given, settings
from hypothesis import strategies as st
from sql_world import Client, SqlWorld

from derive.errors import SqlError
from derive.sql.coordinator import Coordinator

KEYS, VALUES = st.integers(0, 4), st.integers(0, 3)
STATEMENTS = st.one_of(
    st.tuples(st.just("INSERT INTO t VALUES ({}, {}, '{}')"), KEYS, VALUES),
    st.tuples(st.just("INSERT INTO t VALUES ({}, {}, '{}') ON CONFLICT DO NOTHING"), KEYS, VALUES),
    st.tuples(
        st.just("INSERT INTO t VALUES ({}, {}, '{}') ON CONFLICT (k) DO UPDATE SET v = excluded.v"), KEYS, VALUES
    ),
    st.tuples(st.just("INSERT INTO t SELECT {} + 5, {}, '{}'"), KEYS, VALUES),
    st.tuples(st.just("UPDATE t SET k = k + 1 WHERE k >= {} AND v <> {} AND name <> '{}'"), KEYS, VALUES),
    st.tuples(st.just("UPDATE t SET v = {1} WHERE k = {0} AND name <> '{2}'"), KEYS, VALUES),
    st.tuples(st.just("DELETE FROM t WHERE k = {} AND v <> {} AND name <> '{}'"), KEYS, VALUES),
)
TRANSACTIONS = st.lists(STATEMENTS, min_size=1, max_size=3)
CLIENTS = st.lists(st.lists(TRANSACTIONS, max_size=4), min_size=2, max_size=3)


@dataclass
class Outcomes:
    """The names of rows that committed transactions have inserted, and the SQLSTATEs of failures."""

    inserted: list[str] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)


async def run_client(client: Client, number: int, transactions: list[list[tuple[str, int, int]]], to: Outcomes) -> None:
    """Run transactions; each inserted row has a name of its own."""
    for place, statements in enumerate(transactions):
        inserted: list[str] = []
        try:
            if len(statements) > 1:
                await client("BEGIN")
            for at, (text, key, value) in enumerate(statements):
                name = f"{number}.{place}.{at}"
                tag = await client.tag(text.format(key, value, name))
                if tag == "INSERT 0 1" and "UPDATE" not in text:
                    inserted.append(name)
            if len(statements) > 1:
                await client("COMMIT")
        except SqlError as error:
            to.failures[error.sqlstate] += 1
            if len(statements) > 1:
                await client("ROLLBACK")
        else:
            to.inserted += inserted


async def all_clients(coordinator: Coordinator, clients: list[list[list[tuple[str, int, int]]]]) -> Outcomes:
    outcomes = Outcomes()
    await Client(coordinator)("CREATE TABLE t (k int PRIMARY KEY, v int, name text UNIQUE)")
    await asyncio.gather(
        *(
            run_client(Client(coordinator), number, transactions, outcomes)
            for number, transactions in enumerate(clients)
        )
    )
    return outcomes


@settings(max_examples=6, deadline=None)
@given(CLIENTS)
def test_concurrent_transactions_keep_keys_unique(clients: list[list[list[tuple[str, int, int]]]]) -> None:
    """Law: no two rows have one key at any time, and failures are conflicts."""
    with TemporaryDirectory() as folder:
        world = SqlWorld(Path(folder))

        async def work(coordinator: Coordinator) -> tuple[Outcomes, list[tuple[str | None, ...]]]:
            outcomes = await all_clients(coordinator, clients)
            return outcomes, await Client(coordinator)("SELECT k, name FROM t")

        outcomes, rows = world.within(work)
        again = world.script("SELECT k, name FROM t", "INSERT INTO t SELECT k, v, name || 'x' FROM t WHERE false")[0]

    assert len({key for key, _ in rows}) == len({name for _, name in rows}) == len(rows)
    assert sorted(again, key=repr) == sorted(rows, key=repr)
    assert outcomes.failures.keys() <= {"23505", "40001"}
    has_deletions = any(
        "DELETE" in text for transactions in clients for statements in transactions for text, _, _ in statements
    )
    if not has_deletions:
        assert set(outcomes.inserted) <= {name for _, name in rows}


@settings(max_examples=5, deadline=None)
@given(st.lists(STATEMENTS, max_size=12), st.integers(1, 4))
@example(
    [
        ("INSERT INTO t VALUES ({}, {}, '{}')", 0, 0),
        ("UPDATE t SET k = k + 1 WHERE k >= {} AND v <> {} AND name <> '{}'", 0, 1),
        ("INSERT INTO t VALUES ({}, {}, '{}')", 0, 0),
    ],
    2,
)
def test_transactions_equal_single_statements(statements: list[tuple[str, int, int]], size: int) -> None:
    """Law: without other clients, statements in transactions have the outcomes of single statements."""
    texts = [text.format(key, value, at) for at, (text, key, value) in enumerate(statements)]

    async def outcomes(coordinator: Coordinator, table: str, *, in_blocks: bool) -> list[object]:
        client = Client(coordinator)
        await client(f"CREATE TABLE {table} (k int PRIMARY KEY, v int, name text UNIQUE)")
        results: list[object] = []
        for at, text in enumerate(texts):
            if in_blocks and at % size == 0:
                await client("BEGIN")
            if in_blocks:
                await client("SAVEPOINT s")
            own = text.replace(" t ", f" {table} ")
            try:
                results.append(await client.tag(own))
            except SqlError as error:
                results.append((error.sqlstate, error.detail))
                if in_blocks:
                    await client("ROLLBACK TO s")
            if in_blocks and (at % size == size - 1 or at == len(texts) - 1):
                await client("COMMIT")
        return [*results, *sorted(await client(f"TABLE {table}"), key=repr)]

    async def work(coordinator: Coordinator) -> tuple[list[object], list[object]]:
        alone = await outcomes(coordinator, "a", in_blocks=False)
        return alone, await outcomes(coordinator, "b", in_blocks=True)

    with TemporaryDirectory() as folder:
        alone, in_blocks = SqlWorld(Path(folder)).within(work)

    assert in_blocks == alone
