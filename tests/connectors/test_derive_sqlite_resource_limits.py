"""SQL that takes too long for one document is interrupted; many documents may take as long as they like."""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import pytest
from sqlite_derivation import batch, database, derivation, run, say_nothing

from connectors.derive_sqlite import SqliteConnector
from derive.errors import LambdaError
from derive.lambda_sql.guard import Watch
from derive.lambda_sql.shuffle import ComputedShuffle
from derive.position import Position, Script
from derive.protocol.specs import ShuffleSpec

LONG = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) SELECT max(i) FROM n"
ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE $id > 1) SELECT max(i) AS i FROM n"
TRANSFERS = [{"id": each, "sender": "ann", "amount": 1} for each in (1, 2, 3)]


def ticking(seconds: float) -> Iterator[float]:
    """A clock that goes on by so many seconds whenever it is looked at."""
    now = 0.0
    while True:
        now += seconds
        yield now


def execute(seconds: float, documents: int) -> list[int]:
    """Run a long statement for documents, with a clock on which each look takes so many of the watch's 60 seconds."""
    db = apsw.Connection(":memory:")
    watch = Watch(db, 60.0, ticking(seconds).__next__)
    left = iter(range(documents))
    cursor = db.cursor()
    watch.begin(cursor, left)
    with watch:
        return [row[0] for row in cursor.executemany(f"{LONG} WHERE ? >= 0", ((each,) for each in left))]


def test_time_limit_applies_to_each_document() -> None:
    # A statement is looked at some forty times: 40 seconds for each document.
    assert execute(1.0, 5) == [20000] * 5
    with pytest.raises(apsw.InterruptError):
        execute(3.0, 1)


@pytest.mark.parametrize(
    ("sql", "line"),
    [
        (ENDLESS, 1),
        (f"SELECT $sender;\n{ENDLESS}", 2),
        (f"INSERT INTO t VALUES ($id);\n{ENDLESS};\nDELETE FROM t", 2),
        # An interrupted write takes the whole transaction along, and with it the tables.
        (f"INSERT INTO t VALUES ($id);\nINSERT INTO t {ENDLESS};\nDELETE FROM t", 2),
        # Which of the two, nobody can tell.
        (f"SELECT $id;\nINSERT INTO t {ENDLESS};\nINSERT INTO t {ENDLESS}", 1),
    ],
)
def test_endless_lambda_is_an_error_with_a_hint(sql: str, line: int) -> None:
    spec = derivation(sql, migrations=["CREATE TABLE t (id)"], seconds=0.05)
    with pytest.raises(LambdaError) as caught:
        run(spec, TRANSFERS)
    assert caught.value.message == (
        "the lambda of transform 'from0' failed: it took longer than 0.05 s;"
        ' the document was {"id":2,"sender":"ann","amount":1}'
    )
    assert caught.value.hint == "to raise the limit: --sqlite-timeout SECONDS"
    assert caught.value.position == Position("lambda.sql", line, 1)


def test_endless_migration_is_an_error() -> None:
    spec = derivation("SELECT 1", migrations=["\n" + ENDLESS.replace("$id", "2")], seconds=0.05)
    (issue,) = SqliteConnector().check([spec])
    assert issue.message == "migration 0 of 'acme/out' fails: it took longer than 0.05 s"
    assert issue.hint == "to raise the limit: --sqlite-timeout SECONDS"
    assert issue.position == Position("0.sql", 2, 1)


def test_endless_shuffle_is_an_error() -> None:
    script = Script(ENDLESS, ENDLESS, Position("shuffle.sql"))
    shuffle = ShuffleSpec("lambda", key_types=("integer",), script=script)
    spec = derivation("SELECT 1", shuffles=[shuffle], seconds=0.05)
    with pytest.raises(LambdaError, match=r"failed: it took longer than 0.05 s; the document was {\"id\":2") as caught:
        ComputedShuffle(spec, spec.transforms[0]).keys(batch(TRANSFERS))
    assert caught.value.hint == "to raise the limit: --sqlite-timeout SECONDS"
    assert ComputedShuffle(spec, spec.transforms[0]).keys(batch(TRANSFERS[:1])) == [(1,)]


def test_closed_session_removes_its_watch() -> None:
    db = database()
    session = SqliteConnector().open(derivation("SELECT 1", seconds=0.001), db, say_nothing)
    session.close()
    assert db.execute(LONG).get == 20000
    db.execute("COMMIT")
