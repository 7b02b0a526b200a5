"""Refills of tables: what is beside them, what replaces their rows, and what stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sql_databases import DATABASES, Database, commit, load, source

from connectors.kit import FIRST, Application, Applied, Binding, RefillingSession
from derive.errors import EndpointError, FencedError

BALANCES = source({"account": ["string"]}, {"balance": ["integer"], "note": ["null", "string"]})
OLD = [{"account": name, "balance": 1, "note": None} for name in ("a", "b", "c")]
NEW = [{"account": name, "balance": 2, "note": "new"} for name in ("b", "c", "d")]


pytestmark = pytest.mark.sampled(2)


@pytest.fixture(params=sorted(DATABASES))
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return DATABASES[request.param](tmp_path)


def binding(generation: str = FIRST, table: str = "balances", **said: Any) -> Binding:
    return replace(BALANCES.binding(table, **said), generation=generation)


def apply(database: Database, *bindings: Binding, completed: str = "", begun: bool = False) -> Applied:
    request = Application(
        database.materialization(*bindings),
        "1",
        begun=frozenset(range(len(bindings))) if begun else frozenset(),
        completed=frozenset({completed} - {""}),
    )
    applied = database.connector.apply(request)
    assert isinstance(applied, Applied)
    return applied


def store(database: Database, one: Binding, documents: list[dict[str, Any]], *, exists: bool = False) -> str:
    """Store documents; the identity of the rows that they are among."""
    with database.session(one) as session:
        commit(session, one, documents, exists=exists)
        assert isinstance(session, RefillingSession)
        return session.contents[0]


def balances(database: Database, table: str = "balances") -> dict[str, int]:
    rows = database.query(f'SELECT "account", "balance" FROM "{table}" WHERE "flow_document" IS NOT NULL')
    return {account: int(balance) for account, balance in rows}


def refilled(database: Database, generation: str = "second", **said: Any) -> tuple[Binding, str]:
    """A table with old rows that is being refilled with new ones."""
    apply(database, binding(**said))
    store(database, binding(**said), OLD)
    one = binding(generation, **said)
    applied = apply(database, one)
    assert applied.refilling == {0}
    assert store(database, one, NEW) == applied.contents[0] != ""
    return one, applied.contents[0]


def test_sessions_load_documents_from_the_refill(database: Database) -> None:
    one, _ = refilled(database)
    with database.session(one) as session:
        assert len(load(session, [("a",), ("b",)])) == 1


def test_refill_of_another_generation_starts_with_an_empty_table(database: Database) -> None:
    one, identity = refilled(database)
    other = binding("third")
    applied = apply(database, other)
    assert applied.refilling == {0}
    assert applied.contents[0] not in ("", identity)
    with pytest.raises(EndpointError, match="is no longer being refilled|the refill of the table"):
        database.open(one)
    with pytest.raises(EndpointError, match="no longer exists"):
        apply(database, one, completed=identity)
    assert balances(database) == {"a": 1, "b": 1, "c": 1}
    apply(database, other, completed=applied.contents[0])
    assert balances(database) == {}


def test_refill_is_dropped_if_the_rows_are_requested_again(database: Database) -> None:
    refilled(database)
    applied = apply(database, binding())
    assert (applied.refilling, applied.contents) == (frozenset(), ("",))
    assert "DROP TABLE" in applied.description
    assert apply(database, binding()).description == ""
    assert balances(database) == {"a": 1, "b": 1, "c": 1}


def test_refill_of_a_removed_binding_is_dropped(database: Database) -> None:
    refilled(database)
    assert "DROP TABLE" in apply(database, binding(table="others")).description
    assert apply(database, binding("second")).refilling == {0}


def test_refill_begins_again_when_a_field_is_added(database: Database) -> None:
    one, identity = refilled(database, leave_out=["note"])
    applied = apply(database, binding("second"))
    assert applied.contents[0] not in ("", identity)
    store(database, binding("second"), NEW)
    apply(database, binding("second"), completed=applied.contents[0])
    assert sorted(database.query('SELECT "note" FROM "balances"')) == [("new",)] * 3
    assert one.generation == "second"


def test_refill_keeps_rows_of_other_writers(tmp_path: Path) -> None:
    """They have no document, as nobody has stored them by the runtime."""
    database = DATABASES["postgres"](tmp_path)
    apply(database, binding())
    for column in ("balance", "flow_document"):
        database.query(f'ALTER TABLE "balances" ALTER COLUMN "{column}" DROP NOT NULL')
    database.query("""INSERT INTO "balances" ("account") VALUES ('somebody')""")
    store(database, binding(), OLD)
    applied = apply(database, binding("second"))
    store(database, binding("second"), NEW)
    apply(database, binding("second"), completed=applied.contents[0])
    assert sorted(database.query('SELECT "account" FROM "balances"')) == [("b",), ("c",), ("d",), ("somebody",)]


def test_completion_fails_while_foreign_keys_refer_to_deleted_rows(tmp_path: Path) -> None:
    """A foreign key refuses the replacement as a whole, and the rows stay until nothing refers to one that is gone."""
    database = DATABASES["postgres"](tmp_path)
    one, identity = refilled(database)
    database.query('CREATE TABLE "payments" ("account" text REFERENCES "balances")')
    database.query("""INSERT INTO "payments" VALUES ('a'), ('b')""")
    with pytest.raises(EndpointError, match="violates foreign key constraint") as caught:
        apply(database, one, completed=identity)
    assert caught.value.heals
    assert balances(database) == {"a": 1, "b": 1, "c": 1}
    database.query("""DELETE FROM "payments" WHERE "account" = 'a'""")
    apply(database, one, completed=identity)
    assert balances(database) == {"b": 2, "c": 2, "d": 2}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("generation", "begun", "is_refilled"), [(FIRST, False, False), ("second", True, False), ("second", False, True)]
)
def test_table_without_a_note_has_the_generation_of_its_stored_rows(
    database: Database, generation: str, *, begun: bool, is_refilled: bool
) -> None:
    """It was made before there were notes, or by somebody else."""
    apply(database, binding(""))
    store(database, binding(""), OLD)
    applied = apply(database, binding(generation), begun=begun)
    assert (applied.refilling == {0}) is is_refilled
    assert (applied.contents[0] != "") is is_refilled


def test_refill_without_earlier_rows_is_stored_into_the_table(database: Database) -> None:
    applied = apply(database, binding("tenth"))
    assert applied.refilling == set()
    assert applied.contents[0] == store(database, binding("tenth"), NEW) != ""
    assert balances(database) == {"b": 2, "c": 2, "d": 2}


def test_table_whose_checkpoints_are_lost_is_refilled(database: Database) -> None:
    """Without its note, the table does not show the history of its rows, nor the progress of a refill."""
    one, identity = refilled(database)
    database.query('DELETE FROM "flow_checkpoints"')
    applied = apply(database, one, begun=True)
    assert applied.refilling == {0}
    assert applied.contents[0] not in ("", identity)
    apply(database, one, completed=applied.contents[0])
    assert balances(database) == {}


def test_long_refill_names_are_distinguished(database: Database) -> None:
    """A refill's table has a name of its own, whatever the database's limit."""
    name = "b" * 63
    one, identity = refilled(database, table=name)
    apply(database, one, completed=identity)
    assert balances(database, name) == {"b": 2, "c": 2, "d": 2}
    assert apply(database, one).contents == (identity,)


def test_refill_restarts_after_its_table_is_dropped(database: Database) -> None:
    one, identity = refilled(database)
    with database.session(one) as session:
        other = apply(database, binding("third")).contents
        with pytest.raises((FencedError, EndpointError)):
            commit(session, one, NEW)
    again = apply(database, one).contents[0]
    assert again not in ("", identity, *other)
    assert balances(database) == {"a": 1, "b": 1, "c": 1}


def test_late_completion_does_not_complete_a_restarted_refill(database: Database) -> None:
    """The refill that is complete was dropped; the one of the same generation has yet to be stored."""
    one, identity = refilled(database)
    apply(database, binding())
    again = apply(database, one).contents[0]
    store(database, one, NEW[:1])
    with pytest.raises(EndpointError, match="no longer exists"):
        apply(database, one, completed=identity)
    assert balances(database) == {"a": 1, "b": 1, "c": 1}
    store(database, one, NEW[1:])
    apply(database, one, completed=again)
    assert balances(database) == {"b": 2, "c": 2, "d": 2}


VERSIONS = {"duckdb": "rowid", "postgres": "xmin", "sqlite": "NULL"}
"""For each database, what a row has another one of once it is written again."""


def test_equal_rows_are_not_written(database: Database) -> None:
    """Rows that a refill has stored with the same document and columns stay as they are."""
    apply(database, binding())
    store(database, binding(), OLD)
    if database.schema == () and "duckdb" not in database.config["path"]:
        database.query('CREATE TABLE "written" ("account")')
        for change in ("INSERT", "UPDATE"):
            database.query(
                f'CREATE TRIGGER "after {change}" AFTER {change} ON "balances" BEGIN'
                ' INSERT INTO "written" VALUES (new."account"); END'
            )
    version = next(column for name, column in VERSIONS.items() if name in database.connector.name)
    before = dict(database.query(f'SELECT "account", {version} FROM "balances"'))
    applied = apply(database, binding("second"))
    store(database, binding("second"), [OLD[0], {**OLD[1], "note": "new"}, NEW[2]])
    apply(database, binding("second"), completed=applied.contents[0])
    rows = database.query(f'SELECT "account", "note", {version} FROM "balances" ORDER BY "account"')
    assert [(account, note) for account, note, _ in rows] == [("a", None), ("b", "new"), ("d", "new")]
    assert rows[0][2] == before["a"]
    if version == "xmin":
        assert rows[1][2] != before["b"]
    if version == "NULL":
        assert database.query('SELECT "account" FROM "written" ORDER BY 1') == [("b",), ("d",)]


NUMBERS = source({"id": ["integer"]}, {"value": ["null", "number"], "some": ["null", "object", "number"]})
CHANGES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"value": 1}, {"value": 1.0}),
    ({"value": 1.0}, {"value": 1}),
    ({"value": 0.1 + 0.2}, {"value": 0.3}),
    ({"value": None}, {"value": 0}),
    ({"some": {"a": 1}}, {"some": {"a": 1.0}}),
    ({"some": {"a": 1, "b": 2}}, {"some": {"b": 2, "a": 1}}),
    ({"some": 1}, {"some": None}),
]
"""Documents that are equal for one comparison or another, and yet are others."""
ZEROS: tuple[dict[str, Any], dict[str, Any]] = ({"value": 0.0}, {"value": -0.0})
"""Numbers that DuckDB itself holds equal in every update."""


def test_rows_that_differ_in_any_way_are_written(database: Database) -> None:
    """Every difference of documents arrives, also that of numbers that the database holds equal."""
    one, changes = NUMBERS.binding("numbers"), CHANGES if "duckdb" in database.connector.name else [*CHANGES, ZEROS]
    first, second = (replace(one, generation=generation) for generation in (FIRST, "second"))
    apply(database, first)
    store(database, first, [{"id": number, **old} for number, (old, _) in enumerate(changes)])
    changed = [{"id": number, **new} for number, (_, new) in enumerate(changes)]
    applied = apply(database, second)
    store(database, second, changed)
    beside = database.query(f'SELECT * FROM "{refill_of(database, "numbers", applied)}" ORDER BY "id"')
    apply(database, second, completed=applied.contents[0])
    assert list(map(repr, database.query('SELECT * FROM "numbers" ORDER BY "id"'))) == list(map(repr, beside))


def test_columns_changed_by_another_client_are_written(database: Database) -> None:
    """Equal documents do not hide other differences of a row."""
    apply(database, binding())
    store(database, binding(), OLD)
    database.query("""UPDATE "balances" SET "balance" = 7 WHERE "account" = 'a'""")
    database.query("""UPDATE "balances" SET "note" = 'mine' WHERE "account" = 'b'""")
    applied = apply(database, binding("second"))
    store(database, binding("second"), OLD)
    apply(database, binding("second"), completed=applied.contents[0])
    assert balances(database) == {"a": 1, "b": 1, "c": 1}
    assert database.query('SELECT count("note") FROM "balances"') == [(0,)]


def refill_of(database: Database, table: str, applied: Applied) -> str:
    return f"{table}__refill_{applied.contents[0][:12]}"
