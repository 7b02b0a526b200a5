"""Every source of chance, time, place and history in SQLite follows the document, is refused, or is on the page (L1)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from sqlite_derivation import BY_ID, batch, database, derivation, publish, run, say_nothing

from connectors.derive_sqlite import SqliteConnector
from derive.errors import Issue
from derive.lambda_sql.determinism import FOLLOWING, INNER_TABLES, MODULES, ORDINARY, PER_DOCUMENT, REFUSED_FUNCTIONS
from derive.lambda_sql.shuffle import ComputedShuffle
from derive.lambda_sql.statements import find_present
from derive.position import Position
from derive.protocol.specs import ShuffleSpec

PAGE = (Path(__file__).parents[2] / "docs" / "sql.md").read_text()
DOCUMENT = {"id": 3, "sender": "ann", "amount": 1}
ZONES = ("UTC", "America/New_York", "Asia/Tokyo", "Pacific/Chatham")


def check(*lambdas: str, migrations: str = "CREATE TABLE t (id, a)") -> list[Issue]:
    return SqliteConnector().check([derivation(*lambdas, migrations=[migrations])])


def test_sqlite_functions_are_all_classified() -> None:
    """A function that a new SQLite brings is noticed here, and refused until it is in one of the sets."""
    rows = apsw.Connection(":memory:").execute("SELECT DISTINCT name FROM pragma_function_list").fetchall()
    known = {*FOLLOWING, *PER_DOCUMENT, *ORDINARY, *REFUSED_FUNCTIONS}
    assert {name for (name,) in rows} - known == set()


def test_sqlite_functions_are_each_in_one_class() -> None:
    classes = [FOLLOWING, PER_DOCUMENT, ORDINARY, REFUSED_FUNCTIONS.keys()]
    assert sum(map(len, classes)) == len({name for names in classes for name in names})


def test_sqlite_modules_are_all_classified() -> None:
    rows = apsw.Connection(":memory:").execute("SELECT name FROM pragma_module_list").fetchall()
    unknown = {str(name) for (name,) in rows if not str(name).startswith("pragma_")} - MODULES - INNER_TABLES
    assert unknown == set()


def test_sqlite_collations_depend_on_nothing() -> None:
    rows = apsw.Connection(":memory:").execute("SELECT name FROM pragma_collation_list").fetchall()
    assert {name for (name,) in rows} == {"BINARY", "NOCASE", "RTRIM"}


@pytest.mark.parametrize("name", sorted(REFUSED_FUNCTIONS))
def test_refused_functions_are_documented(name: str) -> None:
    assert f"`{name}()`" in PAGE
    rows = apsw.Connection(":memory:").execute("SELECT max(narg) FROM pragma_function_list WHERE name = ?", (name,))
    count = rows.get
    if count is None:
        return  # this SQLite does not have it
    (issue,) = check(f"SELECT {name}({', '.join(['1'] * max(count, 0))})")
    assert issue.message == f"the lambda of transform 'from0' {REFUSED_FUNCTIONS[name]}"


def test_unknown_function_is_refused() -> None:
    db = database()
    db.create_scalar_function("moment", lambda *_: 1)
    with pytest.raises(Exception, match=r"may not call moment\(\): its result may depend on the machine"):
        SqliteConnector().open(derivation("SELECT moment() AS x"), db, say_nothing)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("between", ["", " ", " \ufeff", "/*(*/ ", "--(\n", "\f"])
@pytest.mark.parametrize("name", sorted(FOLLOWING - {"current_date", "current_time", "current_timestamp"}))
def test_time_and_random_functions_follow_the_document_in_any_spelling(name: str, between: str) -> None:
    arguments = {"timediff": "'now', '2023-11-14'", "strftime": "'%s'", "randomblob": "8"}.get(name, "")
    for spelled in (name, name.upper(), f'"{name}"', f"[{name}]", f"`{name}`"):
        sql = f"SELECT {spelled}{between}({arguments}) AS x"
        first = publish(sql, DOCUMENT)
        assert first == publish(sql, DOCUMENT)
        if name not in ("random", "randomblob"):
            assert first == publish(f"SELECT {name}({arguments}) AS x", DOCUMENT)


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("datetime(x'6e6f77')", "2023-11-14 22:13:20"),  # a BLOB is read as text
        ("datetime('now' || char(0) || 'x')", "2023-11-14 22:13:20"),  # and text up to a NUL
        ("timediff('subsec', '2023-11-14')", "+0000-00-00 22:13:20.123"),
        ("timediff(x'4e4f57', '2023-11-14')", "+0000-00-00 22:13:20.123"),
        ("datetime('2024-01-01 12:00', x'6c6f63616c74696d65')", "2024-01-01 12:00:00"),
        ("datetime('2024-01-01 12:00', 'LocalTime' || char(0))", "2024-01-01 12:00:00"),
    ],
)
def test_present_time_follows_the_document_in_any_spelling(sql: str, value: str) -> None:
    assert publish(f"SELECT {sql} AS x", DOCUMENT) == [{"x": value}]


_TIMES = [
    "'2024-07-01T02:00:00Z'",
    "'2024-03-10 02:30'",
    "1720000000.5",
    "'2024-02-31'",
    "'12:30'",
    "2460000.5",
    "NULL",
]
_MODIFIERS = [
    "'localtime'",
    "'utc'",
    "'localtime', 'utc'",
    "'unixepoch', 'localtime'",
    "'localtime', 'unixepoch'",
    "'auto', 'utc', '+1 month'",
    "'+1 day', 'localtime', 'weekday 1'",
    "'subsec', 'localtime'",
    "'localtime', 'start of month', 'utc'",
]
_CALLS = [
    call.format(f"{time}, {modifiers}")
    for time in _TIMES
    for modifiers in _MODIFIERS
    # SQLite makes something of a number beyond its days if it changes the time zone of it, and NULL otherwise.
    if time != "1720000000.5" or modifiers.startswith(("'unixepoch'", "'auto'"))
    for call in (
        "date({0})",
        "time({0})",
        "datetime({0})",
        "julianday({0})",
        "unixepoch({0})",
        "strftime('%F %T %s', {0})",
    )
]
_ORACLE = """
import apsw, json, sys
db = apsw.Connection(":memory:")
print(json.dumps([db.execute("SELECT " + call).get for call in json.load(sys.stdin)]))
"""


def _native(zone: str) -> list[object]:
    """Return the answer of SQLite itself in a time zone."""
    ran = subprocess.run(
        [sys.executable, "-c", _ORACLE],
        input=json.dumps(_CALLS),
        env={**os.environ, "TZ": zone},
        capture_output=True,
        text=True,
        check=True,
    )
    values: list[object] = json.loads(ran.stdout)
    return values


_OURS = """
import sys, json
sys.path.insert(0, sys.argv[1])
from sqlite_derivation import publish
calls = json.load(sys.stdin)
print(json.dumps([publish(f"SELECT {call} AS x", {"id": 3, "sender": "ann", "amount": 1})[0]["x"] for call in calls]))
"""


def _ours(zone: str) -> list[object]:
    ran = subprocess.run(
        [sys.executable, "-c", _OURS, str(Path(__file__).parent)],
        input=json.dumps(_CALLS),
        env={**os.environ, "TZ": zone},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    values: list[object] = json.loads(ran.stdout)
    return values


def test_localtime_and_utc_equal_sqlite_in_utc() -> None:
    """The oracle is SQLite in a process whose time zone is UTC."""
    expected = _native("UTC")
    assert expected != _native("America/New_York")
    assert [_ours(zone) for zone in ("UTC", "America/New_York")] == [expected, expected]


def test_a_computed_shuffle_does_not_see_the_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    from sqlite_derivation import script

    sql = "SELECT datetime('2024-07-01 12:00', 'localtime') || datetime('2024-07-01', $sender)"
    shuffle = ShuffleSpec("lambda", key_types=("string",), script=script(sql))
    spec = derivation("SELECT $id", shuffles=[shuffle])
    try:
        for zone in ZONES:
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            keys = ComputedShuffle(spec, spec.transforms[0]).keys(batch([{**DOCUMENT, "sender": "utc"}]))
            assert keys == [("2024-07-01 12:00:002024-07-01 00:00:00",)]
    finally:
        monkeypatch.undo()
        time.tzset()


KEPT = "may not use the present time in an index, a CHECK or a generated column: the result would become outdated"


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("CREATE INDEX i ON t (a) WHERE a > unixepoch('now')", "unixepoch"),
        ("CREATE UNIQUE INDEX i ON t (id, date())", "date"),
        ("CREATE INDEX i ON t (strftime('%s'))", "strftime"),
        ("CREATE INDEX i ON t (datetime(a, 'localtime'))", "datetime"),
        ("CREATE INDEX i ON t (datetime(coalesce(a, 'now')))", "datetime"),
        ("CREATE INDEX i ON t (timediff(a, 'now'))", "timediff"),
        ("CREATE TABLE w (a, CHECK (a < julianday('subsec')))", "julianday"),
        ("CREATE TABLE w (a CHECK (a < current_timestamp))", "current_timestamp"),
        ("CREATE TABLE w (a, b AS (unixepoch('now') - a))", "unixepoch"),
        ("CREATE TABLE w (a, b GENERATED ALWAYS AS (time(a, 'utc')) STORED)", "time"),
        ('ALTER TABLE t ADD COLUMN b AS (unixepoch("now"))', "unixepoch"),
        ("CREATE TABLE w (a DEFAULT (unixepoch('now')), CHECK (a > 0 AND [date]('NOW') > 1))", "date"),
    ],
)
def test_stored_expressions_may_not_read_the_clock(sql: str, name: str) -> None:
    (issue,) = check("SELECT 1 AS x", migrations=f"CREATE TABLE t (id, a); {sql}")
    assert issue.code == "E521"
    assert issue.message == f"migration 0 of 'acme/out' {KEPT}"
    assert issue.hint == "call the function in the lambda, or store its result in a column"
    place = find_present(sql)
    assert place is not None
    assert place[1] == name
    (issue,) = check(f"{sql};")
    assert (issue.code, issue.message) == ("E525", f"the lambda of transform 'from0' {KEPT}")


def test_issues_beside_a_broken_migration_are_those_that_no_table_can_mend() -> None:
    migrations = [
        "CREATE TABLE t (id, a",
        "CREATE INDEX i ON t (a)",  # follows from the first error
        "CREATE TABL u (a)",
        "INSERT INTO v VALUES (1); COMMIT",
        "COMMIT TRANSACTION",
    ]
    lambdas = ["SELECT a AS x FROM t", "SELEC 1", "SELECT $nothing", "SELECT x FROM v; SELECT $id AS x", "DETACH x"]

    issues = SqliteConnector().check([derivation(*lambdas, migrations=migrations)])

    assert [(issue.code, issue.message) for issue in issues] == [
        ("E521", "migration 0 of 'acme/out' is refused by SQLite: incomplete input"),
        ("E521", "migration 2 of 'acme/out' is refused by SQLite: near \"TABL\": syntax error"),
        ("E521", "migration 4 of 'acme/out' may not use COMMIT: the runtime owns the transaction and the database"),
        ("E522", "the lambda of transform 'from1' is refused by SQLite: near \"SELEC\": syntax error"),
        ("E523", "$nothing is not a field of 'acme/in', which transform 'from2' reads"),
        (
            "E525",
            "the lambda of transform 'from4' may not use DETACH: the runtime owns the transaction and the database",
        ),
    ]


@pytest.mark.parametrize("function", ["random()", "randomblob(4)", "current_date"])
@pytest.mark.parametrize("sql", ["CREATE INDEX i ON t ({})", "CREATE TABLE w (a, b AS ({}))"])
def test_stored_expressions_may_not_use_random_values(function: str, sql: str) -> None:
    (issue,) = check("SELECT 1 AS x", migrations=f"CREATE TABLE t (id, a); {sql.format(function)}")
    assert issue.code == "E521"


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE INDEX i ON t (date(a))",
        "CREATE INDEX i ON t (date(a, 'start of month', '+1 day'))",
        "CREATE INDEX i ON t (a) WHERE a <> 'now'",
        "CREATE TABLE w (a, at DEFAULT CURRENT_TIMESTAMP, b DEFAULT (unixepoch('now')), c AS (date(at)))",
        "CREATE TABLE w AS WITH n AS (SELECT date('now') AS d) SELECT d FROM n",
        "CREATE VIEW v AS SELECT * FROM t WHERE a > unixepoch('now')",
        "CREATE TRIGGER g AFTER INSERT ON t BEGIN UPDATE t SET a = unixepoch('now'); END",
    ],
)
def test_schema_statements_may_read_the_clock_when_they_run(sql: str) -> None:
    assert check("SELECT 1 AS x", migrations=f"CREATE TABLE t (id, a); {sql}") == []


TWO_KEYS = [{"id": 1, "sender": "ann", "amount": 1}, {"id": 2, "sender": "ben", "amount": 0}]


@pytest.mark.parametrize(
    ("sql", "values"),
    [
        # Of the document of another key, none of the numbers is seen.
        ("SELECT last_insert_rowid() AS x; INSERT INTO t (a) SELECT $sender WHERE $amount", [0, 0]),
        ("INSERT INTO t (a) SELECT $sender WHERE $amount; SELECT last_insert_rowid() > 0 AS x", [1, 0]),
        ("INSERT INTO t (a) SELECT $sender WHERE $amount; SELECT changes() AS x", [1, 0]),
        ("INSERT INTO t (a) SELECT 1 WHERE $amount RETURNING 1 AS x; SELECT last_insert_rowid() > 0 AS x", [1, 1, 0]),
        ("INSERT INTO t (a) SELECT $flow_document WHERE $amount; SELECT last_insert_rowid() > 0 AS x", [1, 0]),
    ],
)
def test_connection_counters_count_only_the_document(sql: str, values: list[int]) -> None:
    spec = derivation(sql, migrations=["CREATE TABLE t (id INTEGER PRIMARY KEY, a)"], shuffles=[BY_ID])
    assert [document["x"] for _, document in run(spec, TWO_KEYS)] == values


def test_connection_counters_count_only_the_document_with_alternating_transforms() -> None:
    sql = "INSERT INTO t (a) SELECT $sender WHERE $amount; SELECT last_insert_rowid() > 0 AS x"
    spec = derivation(sql, sql, migrations=["CREATE TABLE t (id INTEGER PRIMARY KEY, a)"])
    published = run(spec, [*TWO_KEYS, *TWO_KEYS], [0, 1, 1, 0])
    assert [document["x"] for _, document in published] == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("sql", "migrations"),
    [
        ("SELECT changes() AS x; INSERT INTO t VALUES (1, 2)", ""),
        ("CREATE TABLE w (a); SELECT changes() AS x", ""),
        ("INSERT INTO t VALUES (1, 2)", "CREATE TRIGGER g AFTER INSERT ON t BEGIN UPDATE t SET a = changes(); END"),
        ("SELECT x FROM v", "CREATE VIEW v AS SELECT changes() AS x"),
    ],
)
def test_changes_function_before_a_change_of_the_document_is_refused(sql: str, migrations: str) -> None:
    (issue,) = check(sql, migrations=f"CREATE TABLE t (id, a); {migrations}")
    message = "may not call changes() before it has changed a row: it would count changes for another document"
    assert (issue.code, issue.message) == ("E525", f"the lambda of transform 'from0' {message}")


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        *[
            (sql, "may not create temporary objects: they end with the transaction")
            for sql in (
                "CREATE TABLE temp.x (a)",
                'CREATE TABLE "TEMP" . x (a)',
                "CREATE TABLE IF NOT EXISTS [Temp].x AS SELECT 1 AS a",
                "CREATE VIEW temp.x AS SELECT 1 AS a",
                "CREATE VIRTUAL TABLE temp.x USING fts5(a)",
                "CREATE TEMPORARY TABLE x (a)",
                "CREATE TEMP VIEW x AS SELECT 1 AS a",
                "CREATE TEMP TRIGGER x AFTER INSERT ON t BEGIN SELECT 1; END",
                "CREATE TRIGGER temp.x AFTER INSERT ON t BEGIN SELECT 1; END",
            )
        ],
        *[
            (f"CREATE VIRTUAL TABLE x USING {module}", f"may not create a table of the module '{module}'")
            for module in ("dbstat", "DBSTAT", "csv", "sqlite_dbpage")
        ],
        ("EXPLAIN SELECT 1", "may not use EXPLAIN"),
        ("EXPLAIN QUERY PLAN SELECT 1", "may not use EXPLAIN"),
        ("/* so */ explain VACUUM", "may not use EXPLAIN"),
        ("ANALYZE", "may not use ANALYZE"),
        ("ANALYZE t", "may not use ANALYZE"),
        ("SELECT * FROM dbstat", "may not read 'dbstat'"),
        ("SELECT * FROM pragma_function_list", "may not read 'pragma_function_list'"),
        ("PRAGMA user_version", "may not use PRAGMA"),
        ("\ufeffVACUUM", "may not use VACUUM"),
        ("ATTACH ':memory:' AS x", "may not use ATTACH"),
    ],
)
def test_forbidden_sources_are_refused_in_any_spelling(sql: str, message: str) -> None:
    (issue,) = check(f"{sql};")
    assert issue.code == "E525"
    assert issue.message.startswith(f"the lambda of transform 'from0' {message}")
    (issue,) = check("SELECT 1 AS x", migrations=f"CREATE TABLE t (id, a); {sql};")
    assert issue.code == "E521"
    assert issue.message.startswith(f"migration 0 of 'acme/out' {message}")


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE t RENAME TO w",
        "ALTER TABLE t RENAME a TO b",
        "ALTER TABLE t DROP COLUMN a",
        "ALTER TABLE t ADD COLUMN b DEFAULT 1 CHECK (b > 0)",
        "CREATE INDEX i ON t (a); REINDEX; REINDEX i; DROP INDEX i",
        "CREATE VIEW v AS SELECT 1 AS a; DROP VIEW v; DROP TABLE t",
        "CREATE VIRTUAL TABLE f USING fts5(a); INSERT INTO f VALUES ('x'); SELECT rank, bm25(f) FROM f('x'); DROP TABLE f",
        "CREATE VIRTUAL TABLE r USING rtree(id, a, b); INSERT INTO r VALUES (1, 2, 3); SELECT * FROM r; DROP TABLE r",
        "CREATE VIRTUAL TABLE g USING geopoly(a); INSERT INTO g (_shape) VALUES ('[[0,0],[1,0],[1,1],[0,0]]'); SELECT 1",
        "CREATE VIRTUAL TABLE q USING fts4(a); INSERT INTO q VALUES ('x'); SELECT offsets(q) FROM q WHERE q MATCH 'x'",
    ],
)
def test_internal_statements_of_modules_are_allowed(sql: str) -> None:
    assert check("SELECT 1 AS x", migrations=f"CREATE TABLE t (id, a); {sql}") == []


def test_clock_functions_in_a_schema_are_reported_at_their_position() -> None:
    sql = "CREATE TABLE t (id, a);\n  CREATE INDEX i ON t (a) WHERE a > unixepoch('now')"
    (issue,) = check("SELECT 1 AS x", migrations=sql)
    assert issue.position == Position("0.sql", 2, 37, 9)


KEY = ShuffleSpec("key", ("/sender",), (None,), ("string",))
TABLES = """
    CREATE TABLE t (sender TEXT PRIMARY KEY, n INTEGER);
    CREATE TABLE c (n);
    INSERT INTO c VALUES (0);
    CREATE TABLE l (id INTEGER PRIMARY KEY, sender, a);
    CREATE TABLE r (item PRIMARY KEY, rate);
    INSERT INTO r VALUES ('tea', 2);
    CREATE VIEW v AS SELECT n FROM t;
"""
ALL_ROWS = (
    "reads all rows of '{}' on its shard, including rows of other keys: its result depends on the number of shards"
)
ALL_KEYS = "reads all keys of '{}' on its shard: its result depends on the number of shards"
ROW_IDS = "publishes row ids of '{}', which depend on rows of other keys"
WRITE_T = "INSERT INTO t VALUES ($sender, 1)"
WRITE_L = "INSERT INTO l (sender, a) VALUES ($sender, $amount)"


@pytest.mark.parametrize(
    ("sql", "message", "column"),
    [
        (f"{WRITE_T}; SELECT count(*) AS n FROM t", ALL_ROWS.format("t"), 36),
        (f"{WRITE_T}; SELECT $id, max(n) AS m FROM t WHERE n < $amount", ALL_ROWS.format("t"), 36),
        (f"{WRITE_T}; SELECT $id, (SELECT sum(n) FROM t) AS m", ALL_ROWS.format("t"), 36),
        (f"{WRITE_T}; SELECT sender, n FROM t", ALL_KEYS.format("t"), 36),
        (f"{WRITE_T}; SELECT sum(n) AS n FROM v", ALL_ROWS.format("t"), 36),
        ("UPDATE c SET n = n + 1 RETURNING $id, n", ALL_ROWS.format("c"), 1),
        (f"{WRITE_L}; DELETE FROM l WHERE a < 3", ALL_ROWS.format("l"), 54),
        (f"{WRITE_L} RETURNING id", ROW_IDS.format("l"), 1),
        ("INSERT INTO l (sender, a) VALUES ($sender, CAST(x'ff' AS TEXT)) RETURNING id", ROW_IDS.format("l"), 1),
        (f"{WRITE_L}; SELECT last_insert_rowid() AS x", ROW_IDS.format("l"), 54),
        (f"{WRITE_L}; SELECT oid AS x FROM l WHERE sender = $sender", ROW_IDS.format("l"), 54),
        ("INSERT INTO l (a) SELECT a + 1 FROM l", ALL_ROWS.format("l"), 1),
    ],
)  # fmt: skip
def test_check_notes_a_lambda_that_reads_other_keys(sql: str, message: str, column: int) -> None:
    (issue,) = SqliteConnector().check([derivation(sql, migrations=[TABLES], shuffles=[KEY])])
    assert issue.is_note
    assert (issue.code, issue.message) == ("N528", f"the lambda of transform 'from0' {message}")
    assert (issue.position.line, issue.position.column) == (1, column)


@pytest.mark.parametrize(
    "sql",
    [
        f"{WRITE_T} ON CONFLICT DO UPDATE SET n = n + 1 RETURNING $id, n",
        f"{WRITE_T}; SELECT n FROM t WHERE sender = $sender",
        "UPDATE t SET n = n + 1 WHERE sender IS $sender; SELECT n FROM t JOIN l USING (sender) WHERE t.sender == $sender",
        f"{WRITE_L}; SELECT a FROM l WHERE sender = $sender ORDER BY id",
        f"{WRITE_L}; SELECT sum(a) OVER (ORDER BY id) AS s FROM l WHERE $sender = sender",
        "INSERT INTO l (id, sender, a) VALUES ($id, $sender, $amount) RETURNING id",
        f"WITH x AS (SELECT n FROM t WHERE sender = $sender) SELECT * FROM x; {WRITE_T}",
        "SELECT rate FROM r WHERE item = 'tea'; SELECT count(*) AS n FROM r",  # the same on every shard
        # It is not seen which key these rows are of.
        "INSERT INTO l (sender, a) VALUES (lower($sender), $amount); SELECT count(*) AS c FROM l",
        "INSERT INTO l (a) VALUES ($flow_document); SELECT count(*) AS c FROM l",
    ],
)
def test_check_has_no_note_for_a_lambda_of_its_own_key(sql: str) -> None:
    assert SqliteConnector().check([derivation(sql, migrations=[TABLES], shuffles=[KEY])]) == []


def test_check_has_no_note_if_there_is_one_key() -> None:
    sql = f"{WRITE_T}; SELECT count(*) AS n FROM t"
    for shuffle in (ShuffleSpec("key"), ShuffleSpec("lambda")):
        spec = derivation(sql, migrations=[TABLES], shuffles=[shuffle])
        assert [issue for issue in SqliteConnector().check([spec]) if issue.is_note] == []
