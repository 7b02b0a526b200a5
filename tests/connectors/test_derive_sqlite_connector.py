"""Checking a derivation finds everything wrong with its SQL."""

from __future__ import annotations

import pytest
from sqlite_derivation import AT, database, derivation, say_nothing

from connectors.derive_sqlite import SqliteConnector
from derive.errors import Issue, LambdaError
from derive.position import Position
from derive.protocol.authoring import DeriveAuthoring
from derive.protocol.entry_points import find_authoring, find_runtime


def check(*lambdas: str | None, migrations: tuple[str, ...] = ()) -> list[Issue]:
    connector: DeriveAuthoring = SqliteConnector()
    return connector.check([derivation(*lambdas, migrations=migrations)])


def test_connector_is_installed_under_its_name() -> None:
    assert isinstance(find_authoring("sqlite"), SqliteConnector)
    assert isinstance(find_runtime("sqlite"), SqliteConnector)


def test_a_sound_derivation_has_no_issues() -> None:
    assert check("INSERT INTO t VALUES ($id) RETURNING $sender", "-- nothing", migrations=("CREATE TABLE t (a)",)) == []


def test_all_issues_of_all_transforms_are_found() -> None:
    found = check("SELECT $amuont, $sneder;\nSELECT x;", None, "COMMIT")
    what = "is not a field of 'acme/in', which transform 'from0' reads"
    assert found == [
        Issue("E523", f"$amuont {what}", Position("lambda.sql", 1, 8, 7), "did you mean $amount?"),
        Issue("E523", f"$sneder {what}", Position("lambda.sql", 1, 17, 7), "did you mean $sender?"),
        Issue(
            "E522",
            "the lambda of transform 'from0' is refused by SQLite: no such column: x",
            Position("lambda.sql", 2, 8, 1),
        ),
        Issue("E526", "transform 'from1' of 'acme/out' needs a lambda", AT),
        Issue(
            "E525",
            "the lambda of transform 'from2' may not use COMMIT: the runtime owns the transaction and the database",
            Position("lambda.sql", 1, 1, 6),
        ),
    ]


ONE_DOCUMENT = "a lambda gets one document, whose fields are parameters such as $amount"


@pytest.mark.parametrize(
    ("text", "column", "size", "hint"),
    [
        ("SELECT $id WHERE amount > 100", 18, 6, "did you mean $amount?"),
        ("SELECT $id WHERE Ammount > 100", 18, 7, "did you mean $amount?"),
        ("SELECT unheard", 8, 7, None),
        ("SELECT $id AS n FROM orders", 22, 6, ONE_DOCUMENT),
        ("SELECT $id FROM main.[orders]", 22, 1, ONE_DOCUMENT),
        ('SELECT $id FROM "shop/orders"', 17, 1, ONE_DOCUMENT),
        ("-- customer\nSELECT $id FROM customer", 17, 8, "did you mean 'customers'?"),
        ("SELECT $id FROM flow_migration", 17, 14, ONE_DOCUMENT),
    ],
)
def test_field_that_is_written_like_a_column_has_a_hint(text: str, column: int, size: int, hint: str | None) -> None:
    (issue,) = check(text, migrations=("CREATE TABLE customers (id INTEGER)",))

    assert (issue.code, issue.position.column, issue.position.length, issue.hint) == ("E522", column, size, hint)


def test_parameter_is_found_after_a_longer_one() -> None:
    (issue,) = check("SELECT $id, $sender, $send")
    assert issue.position == Position("lambda.sql", 1, 22, 5)


def test_unknown_parameter_error_lists_known_parameters() -> None:
    (issue,) = check("SELECT $somethingElse")
    assert issue.hint == "known: $amount, $flow_document, $flow_published_at, $id, $sender"


def test_lambdas_are_not_checked_after_a_failed_migration() -> None:
    (issue,) = check("SELECT * FROM t", migrations=("CREATE TABEL t (a)",))
    assert (issue.code, issue.position) == ("E521", Position("0.sql", 1, 8, 5))


@pytest.mark.parametrize("sql", ["SELECT x", "SELECT $x", "BEGIN", "SELECT '\0'"])
def test_lambdas_that_check_refuses_cannot_be_opened(sql: str) -> None:
    (issue,) = check(sql)
    with pytest.raises(LambdaError) as caught:
        SqliteConnector().open(derivation(sql), database(), say_nothing)
    assert (caught.value.message, caught.value.position) == (issue.message, issue.position)
