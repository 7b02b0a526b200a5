"""Many rows in one statement: constraints, rows read back, and later changes of single rows."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from sql_world import Client, SqlWorld

from derive.algebra.types import Type
from derive.sql.coordinator import Coordinator
from derive.sql.parser.statement import ConstraintKind
from derive.sql.planner.interfaces import Constraint, NamedColumn, NamedRelation, RelationKind
from derive.sql.transactions.key_index import KeyChanges
from derive.sql.transactions.writes import InsertedRows, Write

COUNT = 25_000
CREATE = "CREATE TABLE t (a bigint PRIMARY KEY, b text, u int UNIQUE, c double precision NOT NULL CHECK (c >= 0))"
ROWS = """SELECT i AS a, nullif(i % 3, 1)::text || ',"' AS b, nullif(i, i / 2 * 2) AS u, i / 4.0 AS c
FROM generate_series(0, {}) AS g(i)"""
FAILURES = [
    (f"INSERT INTO t SELECT i, 'x', NULL, 1 FROM generate_series({COUNT - 1}, {2 * COUNT}) AS g(i)", "23505"),
    (f"INSERT INTO t SELECT i + 100000, 'x', i, 1 FROM generate_series(1, {COUNT}) AS g(i)", "23505"),
    (f"INSERT INTO t SELECT i % {COUNT} + 100000, 'x', NULL, 1 FROM generate_series(1, {2 * COUNT}) AS g(i)", "23505"),
    (f"INSERT INTO t SELECT i + 100000, 'x', NULL, 5 - i FROM generate_series(1, {COUNT}) AS g(i)", "23514"),
    (f"INSERT INTO t SELECT i + 100000, 'x', NULL, nullif(i, 7) FROM generate_series(1, {COUNT}) AS g(i)", "23502"),
]


def test_many_rows_are_inserted_like_few(tmp_path: Path) -> None:
    async def check(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        await client(CREATE)
        assert await client.tag(f"INSERT INTO t {ROWS.format(COUNT - 1)}") == f"INSERT 0 {COUNT}"
        for text, code in FAILURES:
            assert await client.fails(text) == code
        await client.script(
            "UPDATE t SET c = 0 WHERE a = 4", "DELETE FROM t WHERE a = 5", "INSERT INTO t VALUES (5, '', 6, 0)"
        )
        assert await client(f"CREATE TABLE expected AS {ROWS.format(COUNT - 1)}") == []
        differences = "SELECT * FROM t EXCEPT ALL SELECT * FROM expected ORDER BY 1"
        assert await client(differences) == [("4", None, None, "0"), ("5", "", "6", "0")]

    world = SqlWorld(tmp_path)
    world.within(check)

    async def check_again(coordinator: Coordinator) -> None:
        client = Client(coordinator)
        assert await client("SELECT count(*), count(b), count(u) FROM t") == [(str(COUNT), "16667", "12500")]
        assert await client.fails("INSERT INTO t VALUES (9, '', NULL, 1)") == "23505"
        assert await client.tag("DELETE FROM t WHERE a > 2") == f"DELETE {COUNT - 3}"
        assert await client("SELECT a FROM t ORDER BY a") == [("0",), ("1",), ("2",)]
        await client("INSERT INTO t VALUES (9, '', NULL, 1)")

    world.within(check_again)


COLUMNS = (NamedColumn("a", Type.INTEGER), NamedColumn("b", Type.TEXT))
KEYS = tuple(Constraint(f"k{names}", ConstraintKind.UNIQUE, names) for names in (("a",), ("b", "a")))
TABLE = NamedRelation(1, "t", COLUMNS, RelationKind.TABLE, constraints=KEYS)
WRITES = st.lists(
    st.tuples(
        st.integers(1, 2),
        st.tuples(st.none() | st.integers(0, 2), st.sampled_from(["x", "y", None])),
        st.just(1) | st.sampled_from([1, -1]),
    )
)


@given(st.lists(WRITES, max_size=3))
def test_writes_change_keys_like_single_rows(groups: list[list[Write]]) -> None:
    together, singly = KeyChanges(TABLE), KeyChanges(TABLE)
    for writes in groups:
        rows = [row for table, row, _ in writes if table == 1]
        is_inserted = all(diff == 1 and table == 1 for table, _, diff in writes)
        together.add_writes(InsertedRows(1, rows) if is_inserted else writes)
        singly.add((row, diff) for table, row, diff in writes if table == 1)
    for number in range(len(KEYS)):
        assert list(together.changed(number)) == list(singly.changed(number))
        assert together.added(number) == singly.added(number)
