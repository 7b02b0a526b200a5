"""Joins of a table by a key: which joins read only the partners of the other side, and equal results."""

from __future__ import annotations

from pathlib import Path

import pytest
from sql_world import Client, SqlWorld

from derive.sql.coordinator import Coordinator
from derive.sql.execution.keyed_joins import find
from derive.sql.preparation import plan

TABLES = (
    "CREATE TABLE t (a int PRIMARY KEY, b text, c int, d int, UNIQUE (d, c)); CREATE TABLE s (a int, b text, c bigint)"
    "; CREATE VIEW v AS SELECT a, b FROM t WHERE c > 0"
)
MERGE = "MERGE INTO t USING {} WHEN MATCHED THEN UPDATE SET b = 'x'"
INSERT = " WHEN NOT MATCHED THEN INSERT VALUES (s.a)"
JOINS = {
    MERGE.format("s ON t.a = s.a"): (0, (0,)),
    MERGE.format("s ON s.c = t.a"): (0, (2,)),  # whose type has the same data
    MERGE.format("s ON t.a = s.a") + INSERT: (0, (0,)),
    MERGE.format("(VALUES (1, 2)) s (a, b) ON s.b = t.c AND t.b <> 'y' AND s.a = t.d") + INSERT: (1, (0, 1)),
    MERGE.format("(SELECT a FROM s GROUP BY a) s ON s.a = t.a"): (0, (0,)),
    "UPDATE t SET b = s.b FROM s WHERE s.a = t.a AND s.b > 'x'": (0, (0,)),
    "DELETE FROM t USING s WHERE t.a = s.a": (0, (0,)),
    "SELECT t.b FROM s LEFT JOIN t ON t.a = s.a": (0, (0,)),
    "SELECT count(*) FROM s, t WHERE t.a = s.a": (0, (0,)),
    "SELECT v.b FROM v JOIN s USING (a)": (0, (0,)),
}
OTHERS = [
    MERGE.format("s ON t.a = s.a OR s.b = 'x'"),
    MERGE.format("s ON t.a = s.a::numeric"),
    MERGE.format("s ON t.c = s.a"),  # a part of a key
    MERGE.format("s ON t.a = s.a") + " WHEN NOT MATCHED BY SOURCE THEN DELETE",
    MERGE.format("t AS s ON t.a = s.a"),
    "SELECT t.b FROM t LEFT JOIN s ON t.a = s.a",
    "SELECT t.b FROM t FULL JOIN s ON t.a = s.a",
    "SELECT t.b FROM t JOIN s ON t.a = s.a WHERE s.a < (SELECT max(a) FROM t)",
    "SELECT 1 FROM s JOIN (SELECT count(*) AS n FROM t) u ON u.n = s.c",
]


def test_joins_of_a_key_are_found(tmp_path: Path) -> None:
    async def check(coordinator: Coordinator) -> None:
        await Client(coordinator).script(TABLES)
        objects, keys = coordinator.objects, coordinator.commits.keys
        found = {}
        for text in (*JOINS, *OTHERS):
            planned = plan(text, (), objects)
            query = planned.write.query if planned.write else planned.query
            assert query is not None
            relation = coordinator.maintained.expanded(query.relation, coordinator.objects)
            join = find(relation, lambda identifier: next(iter(keys.keyed([identifier])), None))
            if join is not None:
                found[text] = (join.number, join.columns)
        assert found == JOINS

    SqlWorld(tmp_path).within(check)


@pytest.mark.parametrize("is_explicit", [False, True])
async def test_keyed_joins_equal_evaluations(coordinator: Coordinator, *, is_explicit: bool) -> None:
    """The partners are rows of the time of the read, with the changes of the transaction."""
    client = Client(coordinator)
    await client.script(TABLES)
    await client("INSERT INTO t SELECT n, 'b' || n, n, n FROM generate_series(1, 50) n")
    await client("INSERT INTO s VALUES (3, 'x', 0), (7, 'y', 0), (7, 'z', 0), (99, 'w', 0), (NULL, 'v', 0)")
    if is_explicit:
        await client("BEGIN")
    await client("DELETE FROM t WHERE a = 3")
    await client("INSERT INTO t VALUES (99, 'new', 1, 99)")
    for text in (
        "SELECT s.b, t.b FROM s LEFT JOIN t ON t.a = s.a ORDER BY 1",
        "SELECT v.b, s.b FROM v JOIN s ON v.a = s.a ORDER BY 2",
        "UPDATE t SET c = t.c + 1000 FROM s WHERE s.a = t.a RETURNING t.a, t.c",
        (
            "MERGE INTO t USING (SELECT DISTINCT a FROM s) s ON t.a = s.a WHEN MATCHED THEN DELETE"
            " WHEN NOT MATCHED AND s.a IS NOT NULL THEN INSERT VALUES (s.a) RETURNING merge_action(), t.a"
        ),
    ):
        unkeyed = text.replace("= s.a", "+ 0 = s.a").replace("s.a = t.a", "s.a = t.a + 0")
        await client("SAVEPOINT p") if is_explicit else await client("BEGIN")
        expected = sorted(await client(unkeyed), key=repr)
        await client("ROLLBACK TO p") if is_explicit else await client("ROLLBACK")
        assert sorted(await client(text), key=repr) == expected
        assert expected
