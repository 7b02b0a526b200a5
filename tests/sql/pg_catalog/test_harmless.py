"""Queries about catalogs reach nothing but catalogs, whatever DuckDB has."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.errors import SqlError
from derive.sql.backends import Backend
from derive.sql.pg_catalog.functions import TABLE_MACROS, macros
from derive.sql.pg_catalog.objects import CatalogObjects, SessionFacts
from derive.sql.pg_catalog.query import answer, is_catalog_query, prepare

ALLOWED = {"gen_random_uuid", "generate_series", "json_each", "random", "range", "repeat", "unnest"}
OBJECTS = CatalogObjects()


def outcome(text: str) -> str:
    """The SQLSTATE with which a query fails, or `answered`."""
    assert is_catalog_query(text)
    try:
        answer(prepare(text, OBJECTS), OBJECTS)
    except SqlError as error:
        return error.sqlstate
    return "answered"


@cache
def reaching() -> list[str]:
    """DuckDB's functions that give rows, change something or are volatile, and are not PostgreSQL's here."""
    rows = duckdb.execute(
        "SELECT DISTINCT function_name FROM duckdb_functions()"
        " WHERE function_type IN ('table', 'table_macro', 'pragma') OR stability = 'VOLATILE'"
    ).fetchall()
    return sorted({name for (name,) in rows} - ALLOWED - macros().keys() - TABLE_MACROS.keys())


def test_the_functions_that_matter_are_among_them() -> None:
    known = {"read_csv", "read_text", "glob", "query", "query_table", "sleep_ms", "checkpoint", "enable_logging"}
    assert known <= set(reaching())


@given(
    name=st.sampled_from(reaching()),
    spelled=st.sampled_from(["{}", '"{}"', "main.{}", "system.main.{}", "{}/* x */", "{} ", "pg_catalog.{}"]),
    is_upper=st.booleans(),
    argument=st.sampled_from(["", "'/etc/passwd'", "1", "'select 1'"]),
    place=st.sampled_from(["SELECT * FROM {}, pg_class", "SELECT {} FROM pg_class", "SELECT 1 WHERE 1 IN (SELECT {})"]),
)
def test_no_function_reaches_further(name: str, spelled: str, is_upper: bool, argument: str, place: str) -> None:
    call = spelled.format(name.upper() if is_upper else name) + f"({argument})"
    text = place.format(call)
    assert outcome(text if "pg_class" in text else f"{text} AND current_user = ''") == "42883"


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [
        ("SELECT * FROM '/etc/passwd', pg_class", "42P01"),
        ("SELECT * FROM '/etc/x.csv', pg_class", "42501"),
        ('SELECT * FROM "/etc/x.csv", pg_class', "42501"),
        ("SELECT * FROM 'https://127.0.0.1:1/x.parquet', pg_class", "42501"),
        ("SELECT * FROM sqlite_scan('/x', 't'), pg_class", "42883"),
        ("SELECT * FROM objects, pg_class", "42P01"),
        ("SELECT getenv('HOME') FROM pg_class", "42883"),
        ("SELECT pg_read_file('/etc/passwd') FROM pg_class", "42883"),
        ("SELECT pg_ls_dir('/etc') FROM pg_class", "42883"),
        ("SELECT lo_import('/etc/passwd') FROM pg_class", "42883"),
        ("SELECT 1 FROM pg_class; ATTACH '/tmp/x.db'", "0A000"),
        ("SELECT 1 FROM pg_class; COPY pg_class TO '/tmp/x'", "0A000"),
        ("SELECT 1 FROM pg_class; INSTALL httpfs", "0A000"),
        ("SELECT 1 FROM pg_class; SET memory_limit = '9GB'", "0A000"),
        ("WITH x AS (DELETE FROM pg_type RETURNING 1) SELECT * FROM x", "25006"),
        ("WITH x AS (INSERT INTO pg_am (oid) VALUES (1) RETURNING 1) SELECT * FROM x", "25006"),
        ("WITH x AS (UPDATE pg_settings SET setting = '' RETURNING 1) SELECT * FROM x", "25006"),
    ],
)
def test_nothing_else_reaches_further(text: str, sqlstate: str) -> None:
    assert outcome(text) == sqlstate
    assert outcome("SELECT count(*) FROM pg_type") == "answered"


def test_a_query_that_needs_too_much_memory_fails_and_fills_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "SELECT max(s) FROM (SELECT DISTINCT repeat('x', 1000) || g AS s FROM pg_am, range(500000) t(g))"
    assert outcome(text) == "53200"
    assert list(tmp_path.iterdir()) == []


def test_the_user_is_the_one_who_asks() -> None:
    text = "SELECT current_user, session_user, user, current_role, count(*) FROM pg_roles WHERE rolname = current_user"
    query = prepare(text, OBJECTS)
    assert [column.name for column in query.columns] == [
        "current_user",
        "session_user",
        "user",
        "current_role",
        "count",
    ]
    for user in ("ann", "it's", "flow", "ann"):
        assert answer(query, OBJECTS, facts=SessionFacts(user=user)) == [(user, user, user, user, 1)]


def test_each_user_has_an_oid() -> None:
    """The owner has 10, and another user the same oid in each session, in `pg_roles` and `pg_stat_activity`."""
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    users = ("flow", "ann", "bob")
    backends = [
        Backend(number, user, "flow", "", None, begun, "idle", "SELECT 1") for number, user in enumerate(users, start=1)
    ]
    activity = prepare("SELECT usename, usesysid FROM pg_stat_activity ORDER BY pid", OBJECTS)
    seen = answer(activity, OBJECTS, facts=SessionFacts(backends=backends))
    assert [name for name, _ in seen] == list(users)
    assert seen[0][1] == 10
    assert len({oid for _, oid in seen}) == 3

    own = prepare("SELECT rolname, oid FROM pg_roles WHERE rolname = current_user", OBJECTS)
    for user, oid in seen:
        assert answer(own, OBJECTS, facts=SessionFacts(user=str(user))) == [(user, oid)]
