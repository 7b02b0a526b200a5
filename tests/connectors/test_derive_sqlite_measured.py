"""Measured copies of lambdas: they publish the same documents, keep the same state, and report branches."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlite_derivation import batch, database, derivation, say_nothing

from connectors.derive_sqlite import SqliteConnector
from derive.catalog import load
from derive.lambda_sql.branches import find_branches
from derive.protocol.specs import CatalogSpec, DerivationSpec, Document, IngestStep

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    {"id": 1, "sender": "a", "amount": 5},
    {"id": 2, "sender": "b", "amount": 500.5},
    {"id": 3, "sender": "a", "amount": 0},
]
TABLE = "CREATE TABLE t (id INTEGER PRIMARY KEY, end TEXT, amount REAL);"
# A lambda; the line and column, and the description, of each of its branches that DOCUMENTS do not reach.
LAMBDAS = [
    ("SELECT $id, $amount WHERE $amount > 100;", []),
    ("SELECT $id WHERE $amount > 1000", ["1:12 WHERE is never true"]),
    ("SELECT $id WHERE $amount >= 0 -- all\n;", ["1:12 WHERE is never false"]),
    ("SELECT $id WHERE NULL", ["1:12 WHERE is never true"]),
    ("SELECT $id WHERE 'x'; SELECT 2 AS id WHERE '1x';", ["1:12 WHERE is never true", "1:38 WHERE is never false"]),
    ("SELECT $id, CASE WHEN $amount > 9 THEN 'much' ELSE 'little' END AS n;", []),
    ("SELECT $id,\n  CASE $sender WHEN 'c' THEN 1 WHEN 'a' THEN 2 END AS n;", ["2:16 WHEN of CASE is never taken"]),
    (
        "SELECT $id, CASE WHEN $amount THEN CASE $id WHEN 9 THEN 1 WHEN 2 THEN 3 ELSE 4 END ELSE 5 END AS n;",
        ["1:45 WHEN of CASE is never taken"],
    ),
    ("SELECT $id, json_array(CASE WHEN $id = 1 THEN json('[1]') ELSE json_array($id) END) AS n;", []),
    # SQLite compares a subquery's column as a text if all arms are texts.
    ("SELECT $id, n = 5 AS n FROM (SELECT CASE WHEN $id = 1 THEN '5' ELSE '6' END AS n);", []),
    ("SELECT $id, CASE WHEN $id = 1 THEN 'A' COLLATE NOCASE ELSE 'b' END = 'a' AS n;", []),
    ("SELECT $id WHERE $id IS DISTINCT FROM 1 AND EXISTS (SELECT 1 WHERE $amount);", []),
    ("INSERT INTO t SELECT $id, 'x', CASE WHEN $amount = 5 THEN $amount END WHERE $id < 3 RETURNING id, amount;", []),
    ("INSERT INTO t VALUES ($id, CASE WHEN $id = 1 THEN 'x' ELSE 'y' END, $amount) RETURNING $id, $amount;", []),
    (
        """INSERT INTO t VALUES (1, NULL, 1) ON CONFLICT (id) DO UPDATE SET amount = CASE WHEN $id = 9 THEN 1 ELSE 2 END;
SELECT $id, count(*) AS n, max(CASE WHEN end THEN 1 ELSE amount END) AS most FROM t AS end WHERE end.id = 1;""",
        ["1:80 WHEN of CASE is never taken", "2:37 WHEN of CASE is never taken"],
    ),
    ('SELECT $id, "case when" AS n FROM (SELECT \'(\' AS "case when") /* CASE WHEN 1 THEN 2 END */;', []),
    # SQLite refuses the copy: the term of ORDER BY would not equal a column.
    ("SELECT CASE WHEN $id = 9 THEN 1 END AS n UNION SELECT 2 ORDER BY CASE WHEN $id = 9 THEN 1 END;", []),
    ("CREATE TRIGGER IF NOT EXISTS r AFTER DELETE ON t BEGIN SELECT CASE WHEN 0 THEN 1 END; END; SELECT $id;", []),
]


def outcome(spec: DerivationSpec, documents: list[Document], transform: int, reached: set[int] | None) -> str:
    """Return the publications and tables of lambdas; with `reached`, those of their measured copies."""
    connector, db = SqliteConnector(), database()
    if reached is None:
        session = connector.open(spec, db, say_nothing)
    else:
        session = connector.open_measured(spec, db, say_nothing, reached.add)
    published = list(session.invoke(batch(documents, [transform] * len(documents))))
    session.close()
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    return repr((published, [db.execute(f'SELECT * FROM "{name}"').fetchall() for name in sorted(tables)]))


@pytest.mark.parametrize(("sql", "missed"), LAMBDAS)
def test_measured_lambdas_publish_the_same_and_report_branches(sql: str, missed: list[str]) -> None:
    spec = derivation(sql, migrations=[TABLE])
    reached: set[int] = set()

    assert outcome(spec, DOCUMENTS, 0, reached) == outcome(spec, DOCUMENTS, 0, None)
    branches = SqliteConnector().branches(spec)
    assert [
        f"{branch.position.line}:{branch.position.column} {branch.what}"
        for branch in branches
        if branch.number not in reached
    ] == missed
    assert reached <= {branch.number for branch in branches}


@pytest.fixture(scope="module")
def examples() -> CatalogSpec:
    return load(ROOT / "flow.yaml")


def test_measured_lambdas_of_the_examples_publish_the_same(examples: CatalogSpec) -> None:
    steps = [step for test in examples.tests.values() for step in test.steps if isinstance(step, IngestStep)]
    measured = 0
    for spec in examples.derivations.values():
        for transform in spec.transforms if spec.connector == "sqlite" else ():
            for documents in (step.documents for step in steps if step.collection == transform.input.source):
                reached: set[int] = set()
                outcomes = [outcome(spec, list(documents), transform.index, numbers) for numbers in (reached, None)]
                assert outcomes[0] == outcomes[1], (spec.name, transform.name)
                measured += len(reached)
    assert measured > 5


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "SELECT CASE WHEN 1 THEN 2",
        "SELECT (1",
        "SELECT 1)",
        "SELECT CASE WHEN (1 THEN 2 END)",
        "END",
        "VALUES (END)",
    ],
)
def test_unsound_statements_have_no_branches(sql: str) -> None:
    assert find_branches(sql) == []
