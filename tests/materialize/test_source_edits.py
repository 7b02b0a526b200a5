"""Edits of a source under what is materialized of it: the endpoint has what the collection has, or the task waits.

Every type of a field that is edited to every other one, into every endpoint; and every reduction to every other one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from edited_sources import ENDPOINTS, Endpoint, sqlite
from test_materialize_sql_session import same

from derive.catalog import load
from derive.engine.reset import reset
from derive.errors import EndpointError, StorageError, UnacceptedError

VALUES: dict[str, Any] = {
    "integer": 7,
    "number": 1.5,
    "string": "x",
    "boolean": True,
    "null": None,
    "array": [1],
    "object": {"a": 1},
}
"""A value of each type."""
MOMENT = "2024-01-01T00:00:00Z"
BEFORE: dict[str, tuple[dict[str, Any], Any]] = {
    "integer": ({"type": "integer"}, 1),
    "bounded": ({"type": "integer", "minimum": 0, "maximum": 9}, 3),
    "number": ({"type": "number"}, 2.5),
    "string": ({"type": "string"}, "y"),
    "boolean": ({"type": "boolean"}, False),
    "date": ({"type": "string", "format": "date"}, "2024-01-01"),
    "moment": ({"type": "string", "format": "date-time"}, MOMENT),
    "nullable": ({"type": ["string", "null"]}, "z"),
    "digits": ({"type": ["integer", "string"], "format": "integer"}, 12),
}
"""By a name of the test, the schema of a field that has a column, and a value."""


@pytest.fixture
def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Endpoint]:
    for opened in ENDPOINTS[request.param](tmp_path):
        yield opened
        opened.close()


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Endpoint]:
    for opened in sqlite(tmp_path):
        yield opened
        opened.close()


def is_held(value: Any, held: Any) -> bool:
    """Whether an endpoint has a value, in whatever form it has such."""
    if value is None or held is None:
        return value is held
    if value == MOMENT:
        return str(held).startswith(MOMENT[:10])
    return held == value or str(held).lower() == str(value).lower() or same(value, held)


def widened(schema: dict[str, Any], more: str) -> dict[str, Any]:
    """A schema that allows another type as well."""
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return {"type": list(dict.fromkeys([*types, more]))}


WHOLE = ("jsonl", "webhook")
"""Endpoints that have whole documents, and nothing else."""
CASES = [(kind, before) for kind in ENDPOINTS for before in BEFORE if kind not in WHOLE or before == "integer"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("endpoint", "before"), CASES, indirect=["endpoint"])
def test_column_equals_its_field_or_the_task_stops(before: str, endpoint: Endpoint) -> None:
    """A field that may have another type: what is new is stored; or nothing is, and it can be excluded."""
    schema, old = BEFORE[before]
    names = {f"o{number}": more for number, more in enumerate(VALUES)}
    endpoint.edit({name: {"properties": {"v": schema}} for name in names})
    for name in names:
        endpoint.ingest(name, [{"k": 1, "v": old}, {"k": 2, "v": old}])
    assert endpoint.run() == dict.fromkeys(names)
    stored = {name: endpoint.rows(name) for name in names}
    if set(stored["o0"].values()) == {None}:
        return  # nothing recommends to have it there
    assert [rows for rows in stored.values() if not all(is_held(old, value) for value in rows.values())] == []

    edited = {name: {"properties": {"v": widened(schema, more)}} for name, more in names.items()}
    endpoint.edit(edited)
    for name, more in names.items():
        endpoint.ingest(name, [{"k": 1, "v": VALUES[more]}, {"k": 3, "v": VALUES[more]}])
    errors = endpoint.run()
    for name, error in errors.items():
        if error is None:
            contents, rows = endpoint.contents(name), endpoint.rows(name)
            assert rows.keys() == contents.keys(), (name, names[name])
            assert [key for key in contents if not is_held(contents[key], rows[key])] == [], (names[name], rows)
        else:
            assert isinstance(error, EndpointError)
            assert "the connector no longer accepts the field 'v': its column 'v' has type" in error.message
            assert error.hint == "to continue without the field: exclude it"
            assert endpoint.rows(name) == stored[name]
    endpoint.edit(edited, without=[name for name, error in errors.items() if error is not None])
    assert endpoint.run() == dict.fromkeys(names)


STRATEGIES: dict[str, dict[str, Any]] = {
    "none": {},
    "sum": {"reduce": {"strategy": "sum"}},
    "minimize": {"reduce": {"strategy": "minimize"}},
    "maximize": {"reduce": {"strategy": "maximize"}},
    "firstWriteWins": {"reduce": {"strategy": "firstWriteWins"}},
    "lastWriteWins": {"reduce": {"strategy": "lastWriteWins"}},
}


def reduced(strategy: str, **more: Any) -> dict[str, Any]:
    properties = {"v": {"type": "integer", **STRATEGIES[strategy]}}
    return {"reduce": {"strategy": "merge"}, "properties": properties, **more}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("before", STRATEGIES)
def test_an_edited_reduction_waits_until_rows_are_stored_again(before: str, table: Endpoint) -> None:
    """From a reduction to each other one: raising `backfill`, or a reset, gives what the collection has."""
    afters = {f"o{number}": after for number, after in enumerate(STRATEGIES)}
    table.edit({name: reduced(before) for name in afters})
    for name in afters:
        table.ingest(name, [{"k": 1, "v": 5}, {"k": 1, "v": 3}, {"k": 2, "v": 1}])
    assert table.run() == dict.fromkeys(afters)
    stored = {name: table.rows(name) for name in afters}
    assert stored == {name: table.contents(name) for name in afters}

    edited = {name: reduced(after) for name, after in afters.items()}
    table.edit(edited)
    for name in afters:
        table.ingest(name, [{"k": 1, "v": 4}, {"k": 3, "v": 7}])
    for _ in range(2):
        errors = table.run()
        for name, after in afters.items():
            if after == before:
                assert errors[name] is None
                assert table.rows(name) == table.contents(name)
            else:
                assert isinstance(errors[name], UnacceptedError)
                what = f"the reduction of '/v' of 'm/{name}' was edited from {before} to {after}"
                assert what in str(errors[name])
                assert table.rows(name) == stored[name]

    table.edit(edited, backfill=1)
    assert table.run() == dict.fromkeys(afters)
    assert {name: table.rows(name) for name in afters} == {name: table.contents(name) for name in afters}
    table.edit({name: reduced("sum") for name in afters}, backfill=1)
    reset(table.world.catalog, table.world.store, list(table.world.catalog.tasks))
    assert table.run() == dict.fromkeys(afters)
    assert {name: table.rows(name) for name in afters} == {name: table.contents(name) for name in afters}


def test_accepted_reduction_applies_and_is_recorded(table: Endpoint) -> None:
    table.edit({"o": reduced("sum")})
    table.ingest("o", [{"k": 1, "v": 5}, {"k": 1, "v": 3}])
    assert table.run() == {"o": None}
    table.edit({"o": reduced("maximize")})
    table.ingest("o", [{"k": 1, "v": 9}])
    assert table.run(is_accepted=True) == {"o": None}
    assert table.rows("o") == {1: 9}
    for _ in range(2):
        assert table.run() == {"o": None}
        state = table.world.store.task("s/o")
        assert state is not None
        assert [edit.message for edit in state.edits] == [
            "the reduction of '/v' of 'm/o' was edited from sum to maximize, and the rows of 'm/o -> o' are reduced by both"
        ]
    table.edit({"o": reduced("maximize")}, backfill=1)
    assert table.run() == {"o": None}
    state = table.world.store.task("s/o")
    assert state is not None
    assert state.edits == ()


ONWARD = {
    "a field more": reduced("sum", additionalProperties=True)
    | {
        "properties": {
            "v": {"type": "integer", "reduce": {"strategy": "sum"}},
            "w": {"type": "integer", "reduce": {"strategy": "sum"}},
        }
    },
    "moved to $defs": {
        "reduce": {"strategy": "merge"},
        "properties": {"v": {"$ref": "#/$defs/v"}},
        "$defs": {"v": {"type": "integer", "reduce": {"strategy": "sum"}}},
    },
    "said in allOf": {
        "allOf": [{"reduce": {"strategy": "merge"}}],
        "properties": {"v": {"type": "integer", "allOf": [{"reduce": {"strategy": "sum"}}]}},
    },
    "a title": reduced("sum", title="Sums"),
    "a wider type": {
        "reduce": {"strategy": "merge"},
        "properties": {"v": {"type": "number", "reduce": {"strategy": "sum"}}},
    },
}


@pytest.mark.parametrize("what", ONWARD)
def test_other_schema_edits_do_not_stop_the_task(what: str, table: Endpoint) -> None:
    table.edit({"o": reduced("sum")})
    table.ingest("o", [{"k": 1, "v": 5}])
    assert table.run() == {"o": None}
    table.edit({"o": ONWARD[what]})
    table.ingest("o", [{"k": 1, "v": 3}, {"k": 2, "v": 3}])
    assert table.run() == {"o": None}
    assert table.rows("o") == table.contents("o") == {1: 8, 2: 3}


WAITING = {
    "merge is gone": (
        {"properties": {"v": {"type": "integer"}}},
        "the reduction of whole documents of 'm/o' was edited from merge to none",
    ),
    "merge deletes": (
        reduced("sum") | {"reduce": {"strategy": "merge", "delete": True}},
        'from merge to merge {"delete":true}',
    ),
    "on a condition": (
        reduced("none") | {"if": {"required": ["v"]}, "then": {"properties": {"v": {"reduce": {"strategy": "sum"}}}}},
        "the reduction of '/v' of 'm/o' was edited from sum to sum if {",
    ),
    "the field is gone": (
        {"reduce": {"strategy": "merge"}},
        "the schema of 'm/o' no longer has the field 'v', which 'm/o -> o' has stored",
    ),
}


@pytest.mark.parametrize("what", WAITING)
def test_edits_that_leave_outdated_rows_wait(what: str, table: Endpoint) -> None:
    schema, message = WAITING[what]
    table.edit({"o": reduced("sum")})
    table.ingest("o", [{"k": 1, "v": 5}])
    assert table.run() == {"o": None}
    table.edit({"o": schema})
    table.ingest("o", [{"k": 1, "v": 3}])
    error = table.run()["o"]
    assert isinstance(error, UnacceptedError)
    assert message in error.message
    assert table.rows("o") == {1: 5}
    table.edit({"o": reduced("sum")})
    assert table.run() == {"o": None}
    assert table.rows("o") == {1: 8}


def test_key_of_stored_documents_cannot_change(table: Endpoint) -> None:
    table.edit({"o": reduced("sum")})
    table.ingest("o", [{"k": 1, "v": 5}])
    assert table.run() == {"o": None}
    path = table.world.root.parent / "flow.yaml"
    text = path.read_text().replace('"key": ["/k"]', '"key": ["/k", "/w"]').replace('["k"]', '["k", "w"]')
    path.write_text(text.replace('"properties": {', '"properties": {"w": {"type": "integer"}, '))
    table.world.catalog = load(path)
    with pytest.raises(StorageError, match="was stored with key"):
        table.run()
    assert table.rows("o") == {1: 5}
