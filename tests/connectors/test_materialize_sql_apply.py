"""Tables made ready: created, changed without loss, or refused with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sql_databases import DATABASES, Database, Source, commit, load, source

from connectors.kit import ConstraintType
from derive.errors import EndpointError

BALANCES = source({"account": ["string"]}, {"balance": ["integer"], "note": ["string", "null"]})
RECOMMENDED = ConstraintType.LOCATION_RECOMMENDED
REQUIRED = ConstraintType.LOCATION_REQUIRED
OPTIONAL = ConstraintType.FIELD_OPTIONAL
FORBIDDEN = ConstraintType.FIELD_FORBIDDEN
UNSATISFIABLE = ConstraintType.UNSATISFIABLE


@pytest.fixture(params=sorted(DATABASES))
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return DATABASES[request.param](tmp_path)


def constraints(database: Database, some: Source, **resource: Any) -> dict[str, ConstraintType]:
    (validated,) = database.validate(some.proposed(**resource))
    return {name: constraint.type for name, constraint in validated.constraints.items()}


def reason(database: Database, some: Source, field: str) -> str:
    (validated,) = database.validate(some.proposed())
    return validated.constraints[field].reason


def test_constraints_of_fields_follow_their_types(database: Database) -> None:
    several = source(
        {"account": ["string"]},
        {"list": ["array"], "mixed": ["integer", "string"], "nothing": ["null"], "one": ["integer", "null"]},
    )

    assert constraints(database, several) == {
        "account": REQUIRED,
        "flow_document": REQUIRED,
        "list": OPTIONAL,
        "mixed": OPTIONAL,
        "nothing": FORBIDDEN,
        "one": RECOMMENDED,
    }
    assert constraints(database, several, delta_updates=True)["flow_document"] is RECOMMENDED


def test_applying_again_does_nothing(database: Database) -> None:
    binding = BALANCES.binding()

    planned = database.apply(binding, dry_run=True)
    assert "CREATE TABLE" in planned
    assert database.apply(binding, dry_run=True) == planned
    assert database.apply(binding) == planned
    assert database.apply(binding) == ""
    assert database.apply(binding, dry_run=True) == ""
    assert constraints(database, BALANCES) == {
        "account": REQUIRED,
        "balance": RECOMMENDED,
        "flow_document": REQUIRED,
        "note": RECOMMENDED,
    }


def test_apply_adds_a_field_and_omits_another(database: Database) -> None:
    before, after = BALANCES.binding(leave_out=["note"]), BALANCES.binding(leave_out=["balance"])
    database.apply(before)
    with database.session(before) as session:
        commit(session, before, [{"account": "ann", "balance": 3}])
    database.apply(after)
    with database.session(after) as session:
        commit(session, after, [{"account": "bob", "note": "new"}])

    assert sorted(database.query("SELECT account, balance, note FROM balances")) == [
        ("ann", 3, None),
        ("bob", None, "new"),
    ]


def test_apply_permits_null_for_a_field(database: Database) -> None:
    before = BALANCES.binding()
    after = source({"account": ["string"]}, {"balance": ["integer", "null"], "note": ["string", "null"]}).binding()
    database.apply(before)
    with database.session(before) as session:
        commit(session, before, [{"account": "ann", "balance": 3}])
    database.apply(after)
    with database.session(after) as session:
        commit(session, after, [{"account": "bob", "balance": None}])
        assert load(session, [("ann",)]) == ['{"account":"ann","balance":3}']

    assert sorted(database.query("SELECT account, balance FROM balances")) == [("ann", 3), ("bob", None)]


def test_a_column_of_another_type_is_refused(database: Database) -> None:
    texts = source({"account": ["string"]}, {"balance": ["string"], "note": ["string", "null"]})
    database.apply(BALANCES.binding())

    assert constraints(database, texts)["balance"] is UNSATISFIABLE
    assert "its column 'balance' has type" in reason(database, texts, "balance")
    with pytest.raises(EndpointError, match="table '.*balances' cannot have the field 'balance': its column"):
        database.apply(texts.binding())
    assert database.apply(texts.binding(leave_out=["balance"])) != ""


def test_another_key_is_refused(database: Database) -> None:
    database.apply(BALANCES.binding())
    other = source({"branch": ["string"]}, {"account": ["string"]})
    longer = source({"account": ["string"], "branch": ["string"]}, {})

    assert constraints(database, other)["branch"] is UNSATISFIABLE
    assert constraints(database, longer) == {"account": REQUIRED, "branch": UNSATISFIABLE, "flow_document": REQUIRED}
    assert "primary key (account)" in reason(database, longer, "branch")
    with pytest.raises(EndpointError, match="cannot have the field 'branch'"):
        database.apply(longer.binding())


def test_a_key_of_another_type_is_refused(database: Database) -> None:
    database.apply(BALANCES.binding())
    numbers = source({"account": ["integer"]}, {})
    nullable = source({"account": ["string", "null"]}, {})

    assert constraints(database, numbers)["account"] is UNSATISFIABLE
    assert constraints(database, nullable)["account"] is UNSATISFIABLE


def test_table_of_delta_updates_cannot_store_rows_by_key(database: Database) -> None:
    database.apply(BALANCES.binding("keyed"), BALANCES.binding("added", delta=True))

    assert constraints(database, BALANCES, table="keyed", delta_updates=True)["account"] is UNSATISFIABLE
    assert constraints(database, BALANCES, table="added")["account"] is UNSATISFIABLE
    assert constraints(database, BALANCES, table="added", delta_updates=True)["account"] is REQUIRED


NAMES = [
    *("select", 'quo"te', "quo'te", "back\\slash", "per%cent %s $1 ?1 :x", "semi; DROP TABLE flow_checkpoints; --"),
    *("a.b/c d", "äöü😀", "ctid", "rowid", "excluded", "Ünïcödé " * 20),
]


def test_fields_may_have_any_name(database: Database) -> None:
    keys: dict[str, Sequence[str]] = {name: ["string"] for name in NAMES}
    values: dict[str, Sequence[str]] = {f"{name} too": ["integer"] for name in (*NAMES, "balances")}
    binding = source(keys, values).binding()
    database.apply(binding)
    document = dict.fromkeys(keys, "x") | dict.fromkeys(values, 5)
    with database.session(binding) as session:
        commit(session, binding, [document])
        commit(session, binding, [document | dict.fromkeys(values, 6)], exists=True)
        assert len(load(session, [tuple("x" for _ in keys)])) == 1

    ((*row, _),) = database.query("SELECT * FROM balances")
    assert sorted(row, key=str) == [6] * len(values) + ["x"] * len(keys)
    assert database.apply(binding) == ""


@pytest.mark.sampled(1)
def test_tables_may_have_any_name(database: Database) -> None:
    for name in ("select", 'quo"te', "semi;colon", "a.b", "äöü😀", "With Space", "per%cent"):
        binding = BALANCES.binding(name)
        database.apply(binding)
        with database.session(binding) as session:
            commit(session, binding, [{"account": "x", "balance": 5}])
            assert len(load(session, [("x",)])) == 1
        assert database.apply(binding) == ""


def test_reserved_table_names_are_refused(database: Database) -> None:
    with pytest.raises(EndpointError, match="a table cannot have the name 'flow_checkpoints': this name is reserved"):
        database.validate(BALANCES.proposed("flow_checkpoints"))
    with pytest.raises(EndpointError, match="two bindings name the table 'balances'"):
        database.validate(BALANCES.proposed(), BALANCES.proposed())
    with pytest.raises(EndpointError, match="it has a NUL character"):
        database.validate(BALANCES.proposed("a\0b"))


def test_field_options_choose_the_column_type(database: Database) -> None:
    dated = source({"account": ["string"]}, {"at": ["string"], "balance": ["integer"]})
    dated.fields["at"] = replace(dated.fields["at"], format="date-time")
    config = {"at": {"type": "text"}, "balance": {"type": "json"}}
    binding = replace(dated.binding(), field_config=config)
    database.apply(binding)
    with database.session(binding) as session:
        commit(session, binding, [{"account": "ann", "at": "2026-01-01T00:00:00.123456789Z", "balance": 5}])

    ((_, at, balance, _),) = database.query("SELECT * FROM balances")
    assert (at, str(balance)) == ("2026-01-01T00:00:00.123456789Z", "5")
    for wrong in ({"balance": {"type": "text"}}, {"balance": {"type": "money"}}, {"balance": 5}):
        (validated,) = database.validate(replace(dated.proposed("other"), field_config=wrong))
        assert validated.constraints["balance"].type is UNSATISFIABLE


def test_table_with_additional_columns_stores_rows(database: Database) -> None:
    binding = BALANCES.binding()
    database.apply(binding)
    database.query("ALTER TABLE balances ADD COLUMN mine INTEGER")
    assert database.apply(binding) == ""
    with database.session(binding) as session:
        commit(session, binding, [{"account": "ann", "balance": 3}])

    assert database.query("SELECT account, mine FROM balances") == [("ann", None)]
