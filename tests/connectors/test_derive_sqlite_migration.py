"""Migrations run once, in the runtime's transaction, and may not change."""

from __future__ import annotations

import apsw
import pytest
from sqlite_derivation import AT, database, script

from connectors.derive_sqlite.session import apply_migrations
from derive.errors import LambdaError
from derive.lambda_sql.guard import Guard, Watch
from derive.position import Position


def migrate(db: apsw.Connection, *texts: str) -> None:
    migrations = tuple(script(text, f"{index}.sql") for index, text in enumerate(texts))
    apply_migrations(Guard(db), Watch(db, 60.0), migrations, "acme/out", AT)


def test_only_appended_migrations_are_run() -> None:
    db = database()
    migrate(db, "CREATE TABLE t (a); INSERT INTO t VALUES (1)")
    migrate(db, "CREATE TABLE t (a); INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2), (3) RETURNING a; -- done")
    assert db.execute("SELECT a FROM t").fetchall() == [(1,), (2,), (3,)]
    assert db.execute("SELECT script_index FROM flow_migrations").fetchall() == [(0,), (1,)]
    assert db.in_transaction


def test_rollback_undoes_migrations() -> None:
    db = database()
    migrate(db, "CREATE TABLE t (a)")
    db.execute("ROLLBACK; BEGIN")
    migrate(db, "CREATE TABLE t (a, b)")
    assert db.execute("SELECT count(*) FROM pragma_table_info('t')").get == 2


@pytest.mark.parametrize(
    ("before", "after", "message", "position"),
    [
        (  # edited
            ["CREATE TABLE t (a);"],
            ["CREATE TABLE t (a, b);"],
            "migration 0 of 'acme/out' was applied and has been edited since: the applied text continues here with ');'",
            Position("0.sql", 1, 18),
        ),
        (  # lengthened
            ["CREATE TABLE t (a);"],
            ["CREATE TABLE t (a); CREATE TABLE u (a);"],
            "migration 0 of 'acme/out' was applied and has been edited since: the applied text ends here",
            Position("0.sql", 1, 21),
        ),
        (  # removed
            ["CREATE TABLE t (a);", "CREATE TABLE u (a);"],
            ["CREATE TABLE t (a);"],
            "migration 1 of 'acme/out' was applied and is no longer in the catalog: 'CREATE TABLE u (a);'",
            AT,
        ),
        (  # moved
            ["CREATE TABLE t (a);", "CREATE TABLE u (a);"],
            ["CREATE TABLE u (a);", "CREATE TABLE t (a);"],
            "migration 0 of 'acme/out' was applied and has been edited since: the applied text continues here with 't (a);'",
            Position("0.sql", 1, 14),
        ),
        (  # is refused by SQLite
            [],
            ["CREATE TABLE t (a);\nINSERT INTO u VALUES (1)"],
            "migration 0 of 'acme/out' is refused by SQLite: no such table: u",
            Position("0.sql", 2, 13, 1),
        ),
        (  # fails as it runs
            [],
            ["CREATE TABLE t (a UNIQUE);\n-- twice\nINSERT INTO t VALUES (1), (1)"],
            "migration 0 of 'acme/out' fails: UNIQUE constraint failed: t.a",
            Position("0.sql", 3, 1),
        ),
        (  # would end the transaction
            [],
            ["CREATE TABLE t (a); COMMIT"],
            "migration 0 of 'acme/out' may not use COMMIT: the runtime owns the transaction and the database",
            Position("0.sql", 1, 21, 6),
        ),
        (  # no document is there
            [],
            ["CREATE TABLE t (a); INSERT INTO t VALUES ($id)"],
            "migration 0 of 'acme/out' has a parameter $id, but a migration runs without a document",
            Position("0.sql", 1, 43, 3),
        ),
    ],
)
def test_a_migration_that_cannot_run_is_an_error(
    before: list[str], after: list[str], message: str, position: Position
) -> None:
    db = database()
    migrate(db, *before)
    with pytest.raises(LambdaError) as caught:
        migrate(db, *after)
    assert (caught.value.message, caught.value.position) == (message, position)
