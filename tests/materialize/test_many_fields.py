"""More fields than an endpoint has room for: some are left out, and that is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from edited_sources import ENDPOINTS, Endpoint
from postgres_server import server

from connectors.materialize_postgres.endpoint import explain
from derive.errors import EndpointError
from derive.materialize.fields import FieldSelection, select_fields
from derive.position import Position
from derive.protocol.materialization import Constraint, ConstraintType
from derive.protocol.specs import FieldsSpec, ProjectionSpec

AT = Position("flow.yaml", 1, 1)
MOST = {"sqlite": 2000, "duckdb": 1000, "postgres": 1600}


@pytest.fixture(params=MOST)
def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Endpoint]:
    for opened in ENDPOINTS[request.param](tmp_path):
        yield opened
        opened.close()


def many(count: int) -> dict[str, Any]:
    return {
        "properties": {"v": {"type": "integer"}, **{f"w{number:04}": {"type": "integer"} for number in range(count)}}
    }


@pytest.mark.sampled(1)
def test_table_gets_as_many_columns_as_permitted(endpoint: Endpoint) -> None:
    """It is stored, and goes on; what is added later finds no room, and what is there stays."""
    endpoint.edit({"o": many(2100)})
    endpoint.ingest("o", [{"k": 1, "v": 2, "w0000": 3, "w2099": 4}])
    assert endpoint.run() == {"o": None}
    assert endpoint.rows("o") == {1: 2} or endpoint.rows("o") == {1: "2"}
    wider = many(2100)
    wider["properties"] = {"a": {"type": "integer"}, **wider["properties"]}
    endpoint.edit({"o": wider})
    endpoint.ingest("o", [{"k": 2, "v": 7}])
    assert endpoint.run() == {"o": None}
    assert [int(value) for _, value in sorted(endpoint.rows("o").items())] == [2, 7]


def selection(most: int, stored: tuple[str, ...] = (), include: tuple[str, ...] = ()) -> FieldSelection:
    names = ["flow_document", "a/b", "c", "d", "id"]
    pointers = ["", "/a/b", "/c", "/d", "/id"]
    projections = [
        ProjectionSpec(name, pointer, frozenset({"integer"})) for name, pointer in zip(names, pointers, strict=True)
    ]
    constraints = {name: Constraint(ConstraintType.LOCATION_RECOMMENDED, "") for name in names}
    constraints |= {name: Constraint(ConstraintType.LOCATION_REQUIRED, "") for name in ("id", "flow_document")}
    wanted = FieldsSpec(AT, include={name: {} for name in include})
    selected = select_fields(["/id"], projections, constraints, wanted, stored, most)
    assert isinstance(selected, FieldSelection)
    return selected


@pytest.mark.parametrize(
    ("most", "stored", "include", "values", "left_out"),
    [
        (0, (), (), ("a/b", "c", "d"), ()),
        (5, (), (), ("a/b", "c", "d"), ()),
        (4, (), (), ("c", "d"), ("a/b",)),
        (3, (), (), ("c",), ("d", "a/b")),
        (3, ("d",), (), ("d",), ("c", "a/b")),
        (3, (), ("a/b",), ("a/b",), ("c", "d")),
        (2, (), (), (), ("c", "d", "a/b")),
    ],
)
def test_stored_and_requested_fields_precede_deep_ones(
    most: int, stored: tuple[str, ...], include: tuple[str, ...], values: tuple[str, ...], left_out: tuple[str, ...]
) -> None:
    selected = selection(most, stored, include)
    assert (selected.values, selected.left_out) == (values, left_out)


COLUMNS = ", ".join(f"c{number} text" for number in range(1600))
LIMITS = [
    pytest.param(f"CREATE TEMP TABLE t ({COLUMNS}, more text)", "at most 1,600 columns", id="columns"),
    pytest.param(
        f"CREATE TEMP TABLE t ({COLUMNS}); INSERT INTO t VALUES ({', '.join(['repeat(md5(random()::text), 2)'] * 1600)})",
        "a row may have 8,160 bytes",
        id="row",
    ),
    pytest.param(
        "CREATE TEMP TABLE t (k text PRIMARY KEY);"
        " INSERT INTO t SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 1000)",
        "keys of a table may have about 2,700 bytes",
        id="key",
    ),
    pytest.param(
        f"CREATE TEMP TABLE t ({COLUMNS}, PRIMARY KEY ({', '.join(f'c{number}' for number in range(33))}))".replace(
            ", c1599 text", ""
        ),
        "at most 32 columns",
        id="columns of a key",
    ),
    pytest.param("SELECT repeat(repeat('x', 1000000), 1100)", "values may have 1 GB", id="value"),
]


@pytest.mark.parametrize(("sql", "hint"), LIMITS)
def test_limits_of_postgresql_have_hints(sql: str, hint: str) -> None:
    with server().connect() as connection, pytest.raises(psycopg.Error) as raised:
        connection.execute(sql.encode())
    error = explain("here", raised.value)
    assert isinstance(error, EndpointError)
    assert error.hint is not None
    assert hint in error.hint
