"""SQL of a catalog cannot touch what is the runtime's, and nothing of it is committed while the guard is on."""

from __future__ import annotations

import apsw
import pytest
from sqlite_derivation import BY_ID, database, derivation, run, say_nothing

from connectors.derive_sqlite import SqliteConnector
from derive.errors import Issue
from derive.lambda_sql.guard import Guard
from derive.position import Position
from derive.protocol.specs import ShuffleSpec

ANY = ShuffleSpec("any")
TABLES = "CREATE TABLE t (id PRIMARY KEY, a); CREATE TABLE u (id); CREATE TABLE rates (id, rate);"
TRIGGER = "CREATE TRIGGER g AFTER INSERT ON t BEGIN INSERT INTO u VALUES (new.id); END;"


def check(*lambdas: str, migrations: str = TABLES, shuffles: tuple[ShuffleSpec, ...] = ()) -> list[Issue]:
    return SqliteConnector().check([derivation(*lambdas, migrations=[migrations], shuffles=shuffles)])


OWN = "it has the runtime's own state"


@pytest.mark.parametrize(
    ("sql", "message", "column", "length"),
    [
        ("DROP TABLE flow_shard", f"may not use the table 'flow_shard': {OWN}", 12, 10),
        ("DROP TABLE IF EXISTS Flow_Shard", f"may not use the table 'flow_shard': {OWN}", 22, 10),
        ("DELETE FROM flow_shard", f"may not use the table 'flow_shard': {OWN}", 13, 10),
        ("SELECT * FROM flow_shard", f"may not use the table 'flow_shard': {OWN}", 15, 10),
        ("ALTER TABLE flow_shard RENAME TO x", f"may not use the table 'flow_shard': {OWN}", 13, 10),
        ("CREATE INDEX i ON flow_migrations (script)", f"may not use the table 'flow_migrations': {OWN}", 19, 15),
        ("UPDATE flow_migrations SET script = ''", f"may not use the table 'flow_migrations': {OWN}", 8, 15),
        ("INSERT INTO flow_migrations VALUES (9, '')", f"may not use the table 'flow_migrations': {OWN}", 13, 15),
        ("EXPLAIN COMMIT", "may not begin or end a transaction: the runtime owns the transaction and the database", 1, 7),
        ("EXPLAIN SAVEPOINT a", "may not use savepoints: the runtime owns the transaction and the database", 1, 7),
        ("EXPLAIN ATTACH 'x' AS x", "may not use ATTACH: the runtime owns the transaction and the database", 1, 7),
        ("EXPLAIN PRAGMA locking_mode = NORMAL", "may not use PRAGMA: the runtime owns the transaction and the database", 1, 7),
        ("CREATE TEMP TABLE x (a)", "may not create temporary objects: they end with the transaction", 1, 6),
        ("CREATE TEMP TRIGGER x AFTER INSERT ON t BEGIN SELECT 1; END", "may not create temporary objects: they end with the transaction", 1, 6),
        (
            "SELECT 1 AS total, Total_Changes() AS n",
            "may not call total_changes(): it also counts changes for other documents",
            20,
            13,
        ),
        ("SELECT load_extension('x')", "may not use load_extension(): extensions are not loaded", 8, 14),
        (
            "SELECT * FROM pragma_page_count",
            "may not read 'pragma_page_count': it shows internals that differ between machines",
            15,
            17,
        ),
    ],
)  # fmt: skip
def test_guard_refuses_statements_of_lambdas_and_migrations(sql: str, message: str, column: int, length: int) -> None:
    (issue,) = check(f"{sql};")
    expected = Issue("E525", f"the lambda of transform 'from0' {message}", Position("lambda.sql", 1, column, length))
    assert issue == expected

    (issue,) = check("SELECT 1", migrations=f"{TABLES}\n{sql};")
    expected = Issue("E521", f"migration 0 of 'acme/out' {message}", Position("0.sql", 2, column, length))
    assert issue == expected


@pytest.mark.parametrize(
    ("migration", "sql", "place"),
    [
        ("CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM flow_shard; END;", "INSERT INTO t VALUES (1, 2)", "g"),
        ("CREATE VIEW v AS SELECT * FROM flow_migrations;", "SELECT * FROM v", "v"),
    ],
)
def test_guard_refuses_effects_of_triggers_and_views(migration: str, sql: str, place: str) -> None:
    (issue,) = check(sql, migrations=TABLES + migration)
    assert issue.code == "E525"
    assert issue.message.endswith(f"{OWN} (through '{place}')")
    assert issue.position == Position("lambda.sql", 1, 1, 6)


@pytest.mark.parametrize(
    ("sql", "column"),
    [
        ("INSERT OR ROLLBACK INTO t VALUES (1, 2)", 11),
        ("UPDATE OR ROLLBACK t SET id = 1", 11),
        ("CREATE TABLE w (a UNIQUE ON CONFLICT ROLLBACK)", 38),
        ("CREATE TRIGGER g AFTER INSERT ON t BEGIN SELECT RAISE(ROLLBACK, 'no'); END;", 55),
    ],
)
def test_conflict_clauses_that_end_the_transaction_are_refused(sql: str, column: int) -> None:
    what = "may not use ROLLBACK to resolve a conflict: the runtime owns the transaction"
    hint = "use ABORT, the default: it fails, too"
    (issue,) = check(sql)
    expected = Issue("E525", f"the lambda of transform 'from0' {what}", Position("lambda.sql", 1, column, 8), hint)
    assert issue == expected
    (issue,) = check("SELECT 1", migrations=f"{TABLES}\n{sql}")
    assert issue == Issue("E521", f"migration 0 of 'acme/out' {what}", Position("0.sql", 2, column, 8), hint)


@pytest.mark.parametrize(
    "sql",
    [
        "REPLACE INTO t VALUES ($id, 1)",
        "INSERT OR REPLACE INTO t VALUES ($id, 1)",
        "INSERT OR IGNORE INTO t VALUES ($id, 1) RETURNING id",
        "INSERT OR FAIL INTO t VALUES ($id, 1)",
        "CREATE TABLE IF NOT EXISTS w (a); CREATE INDEX IF NOT EXISTS i ON t (a); ALTER TABLE u ADD COLUMN b; REINDEX",
        "SELECT flow_shard FROM (SELECT 1 AS flow_shard)",
        "SELECT * FROM texts WHERE texts MATCH $sender; INSERT INTO texts VALUES ($sender)",
    ],
)
def test_guard_allows_statements_within_the_transaction(sql: str) -> None:
    tables = f"{TABLES} CREATE VIRTUAL TABLE texts USING fts5(a);"
    assert check(sql, migrations=tables) == []
    session = SqliteConnector().open(derivation(sql, migrations=[tables]), database(), say_nothing)
    session.close()


def test_full_text_search_works_while_the_guard_is_on() -> None:
    spec = derivation(
        "INSERT INTO texts VALUES ($sender); SELECT count(*) AS n FROM texts WHERE texts MATCH 'ann'",
        migrations=["CREATE VIRTUAL TABLE texts USING fts5(a)"],
    )
    documents = [{"id": 1, "sender": "ann lee", "amount": 1}, {"id": 2, "sender": "ann", "amount": 1}]
    assert run(spec, documents) == [(0, {"n": 1}), (1, {"n": 2})]


@pytest.mark.parametrize(
    ("lambdas", "migrations", "message"),
    [
        (["INSERT INTO t VALUES ($id, 1)"], TABLES, "writes the table 't'"),
        (["SELECT $id;\nINSERT INTO t VALUES ($id, 1) RETURNING id"], TABLES, "writes the table 't'"),
        (["DELETE FROM t"], TABLES, "writes the table 't'"),
        (["UPDATE t SET a = 1"], TABLES, "writes the table 't'"),
        (["CREATE TABLE w (a)"], TABLES, "writes the table 'w'"),
        (["DROP TABLE t"], TABLES, "writes the table 't'"),
        (["INSERT INTO v VALUES ($id)"],
         TABLES + "CREATE VIEW v AS SELECT 1 AS id; CREATE TRIGGER g INSTEAD OF INSERT ON v"
         " BEGIN INSERT INTO t VALUES (new.id, 1); END;", "writes the table 't'"),
        (["SELECT count(*) AS n FROM t", "INSERT INTO t VALUES ($id, 1)"], TABLES,
         "reads the table 't', which the lambda of transform 'from1' writes"),
        (["SELECT (SELECT count(*) FROM v) AS n", "INSERT INTO t VALUES ($id, 1)"],
         TABLES + "CREATE VIEW v AS SELECT * FROM t;",
         "reads the table 't', which the lambda of transform 'from1' writes"),
        (["SELECT id FROM u", "INSERT INTO t VALUES ($id, 1)"], TABLES + TRIGGER,
         "reads the table 'u', which the lambda of transform 'from1' writes"),
    ],
)  # fmt: skip
def test_lambda_with_any_shuffle_may_not_use_state(lambdas: list[str], migrations: str, message: str) -> None:
    (issue,) = check(*lambdas, migrations=migrations, shuffles=(ANY,))
    assert issue.code == "E528"
    what = "the lambda of transform 'from0'"
    assert (
        issue.message
        == f"{what} {message}, but with 'shuffle: any' any shard may process a document, and each shard has a table of its own"
    )
    assert issue.hint == "shuffle by the fields that are the key of the table: shuffle: {key: [/field]}"
    assert issue.position == Position("lambda.sql", 2 if "\n" in lambdas[0] else 1, 1)


@pytest.mark.parametrize(
    ("lambdas", "shuffles"),
    [
        (["SELECT rate FROM rates WHERE id = $id"], (ANY,)),  # only migrations fill it
        (["SELECT rate FROM rates", "INSERT INTO t VALUES ($id, 1)"], (ANY, BY_ID)),
        (["WITH t AS (SELECT 1 AS id) SELECT id FROM t", "INSERT INTO t VALUES ($id, 1)"], (ANY, BY_ID)),  # not the table
        (["INSERT INTO t VALUES ($id, 1)", "SELECT id FROM t WHERE id = $id"], (BY_ID, BY_ID)),
    ],
)  # fmt: skip
def test_lambda_with_any_shuffle_may_read_constant_tables(
    lambdas: list[str], shuffles: tuple[ShuffleSpec, ...]
) -> None:
    migrations = (
        TABLES + "INSERT INTO rates VALUES (1, 2.5); CREATE TRIGGER r AFTER INSERT ON rates BEGIN SELECT 1; END;"
    )
    assert check(*lambdas, migrations=migrations, shuffles=shuffles) == []


def test_guard_prevents_commits() -> None:
    db = apsw.Connection(":memory:")
    db.execute("CREATE TABLE t (a UNIQUE); BEGIN; INSERT INTO t VALUES (1)").fetchall()
    guard = Guard(db)
    with guard:
        with pytest.raises(apsw.ConstraintError, match="UNIQUE"):
            db.execute("INSERT OR ROLLBACK INTO t VALUES (1)")
        assert not db.in_transaction
        with pytest.raises(apsw.ConstraintError):
            db.execute("INSERT INTO t VALUES (2)")
    assert db.execute("SELECT count(*) FROM t").get == 0
    db.execute("BEGIN; INSERT INTO t VALUES (3); COMMIT").fetchall()
    assert db.execute("SELECT a FROM t").get == 3
