"""`console_log` in lambdas: messages with transform and document, which change no result."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sqlite_derivation import batch, database, derivation, run

from connectors.derive_sqlite import SqliteConnector
from connectors.derive_sqlite.check import check_sql
from connectors.derive_sqlite.console import MOST_MESSAGES
from derive.protocol.derive import Level
from derive.protocol.specs import DerivationSpec, Document


def said(spec: DerivationSpec, documents: Sequence[Document], *, as_columns: bool = False) -> list[tuple[Level, str]]:
    """Return the messages of lambdas that read documents in turns."""
    messages: list[tuple[Level, str]] = []
    session = SqliteConnector().open(spec, database(), lambda level, text: messages.append((level, text)))
    read = batch(documents, [index % len(spec.transforms) for index in range(len(documents))])
    for _ in (session.invoke_columns(read) if as_columns else None) or session.invoke(read):
        pass
    session.close()
    return messages


def published(spec: DerivationSpec, documents: Sequence[Document]) -> list[tuple[int, Document]]:
    """Return the published documents of lambdas that write messages."""
    session = SqliteConnector().open(spec, database(), lambda _, __: None)
    pairs = list(session.invoke(batch(documents)))
    session.close()
    return pairs


@pytest.mark.parametrize("as_columns", [False, True])
def test_message_names_transform_and_document(as_columns: bool) -> None:
    spec = derivation("SELECT console_log($id) AS id;", "SELECT $id WHERE console_log('text ' || $id) IS NULL;")

    assert said(spec, [{"id": 1}, {"id": 2}, {"id": 3}], as_columns=as_columns) == [
        ("info", "1  (transform 'from0', document {\"id\":1})"),
        ("info", "text 2  (transform 'from1', document {\"id\":2})"),
        ("info", "3  (transform 'from0', document {\"id\":3})"),
    ]


@pytest.mark.parametrize(
    ("sql", "shown"),
    [("NULL", "null"), ("1.5", "1.5"), ("x'01'", '"AQ=="'), ("''", ""), ("json_array(1, 'a')", '[1,"a"]')],
)
def test_message_shows_any_value(sql: str, shown: str) -> None:
    [(level, text)] = said(derivation(f"SELECT $id WHERE console_log({sql}) IS NULL"), [{"id": 1}])

    assert (level, text.partition("  (")[0]) == ("info", shown)


def test_messages_of_statements_and_migrations_come_in_order() -> None:
    lambda_ = "INSERT INTO t VALUES (console_log($id)) RETURNING x AS id; SELECT console_log(x + 1) AS id FROM t;"
    spec = derivation(lambda_, migrations=["CREATE TABLE t (x); INSERT INTO t VALUES (console_log(7)); DELETE FROM t;"])

    assert [text.partition("  ")[0] for _, text in said(spec, [{"id": 1}])] == ["7", "1", "2"]
    assert said(spec, [{"id": 1}])[0][1] == "7  (in a migration)"


def test_results_are_the_same_with_and_without_messages() -> None:
    for sql in (
        "SELECT $id, {} AS twice",
        "INSERT INTO t VALUES ($id, {}) RETURNING $id, y",
        "SELECT {} AS id WHERE $id <> 2",
    ):
        migrations = ["CREATE TABLE t (x, y)"]
        plain = derivation(sql.format("$id * 2"), migrations=migrations)
        logged = derivation(sql.format("console_log($id * 2)"), migrations=migrations)
        documents: list[Document] = [{"id": id_} for id_ in (1, 2, 3)]
        assert published(logged, documents) == run(plain, documents)


def test_messages_of_one_document_are_bounded() -> None:
    many = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 1000) SELECT $id FROM n WHERE console_log(x) < 0"
    messages = said(derivation(many), [{"id": 1}, {"id": 2}])

    assert len(messages) == 2 * (MOST_MESSAGES + 1)
    assert messages[MOST_MESSAGES] == (
        "warn",
        "further messages of this document are left out  (transform 'from0', document {\"id\":1})",
    )
    [(_, text)] = said(derivation("SELECT $id WHERE console_log(hex(zeroblob(100000))) IS NULL"), [{"id": "x" * 9000}])
    assert len(text) < 6000


@pytest.mark.parametrize(
    "migration",
    [
        "CREATE TABLE t (x, CHECK (console_log(x)))",
        "CREATE TABLE t (x, y AS (console_log(x)))",
        "CREATE TABLE t (x); CREATE INDEX i ON t (console_log(x))",
        "CREATE TABLE t (x); CREATE TRIGGER u AFTER INSERT ON t BEGIN SELECT console_log(1); END; INSERT INTO t VALUES (1)",
    ],
)
def test_message_of_a_stored_expression_is_refused(migration: str) -> None:
    [issue] = check_sql(derivation("SELECT $id", migrations=[migration]))

    assert issue.code == "E521"


def test_log_function_is_the_logarithm_of_sqlite() -> None:
    assert run(derivation("SELECT log(100) AS id"), [{"id": 1}]) == [(0, {"id": 2.0})]
