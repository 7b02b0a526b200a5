"""Law: however a schema evolves, a table that follows it holds every row as it was stored, column by column."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sql_databases import DATABASES, Database, Source, commit, load, source

from connectors.kit import ConstraintType
from derive.document.exact import parse_exact

WIDE = st.integers(-(2**80), 2**80)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "integer": WIDE | st.integers(-5, 5),
    "bounded": st.integers(-1000, 1000),
    "fractional": st.floats(allow_nan=False, allow_infinity=False),
    "string": st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5),
    "null": st.none(),
    "object": st.dictionaries(st.sampled_from("ab"), st.integers(0, 9), max_size=2),
}
KINDS = (
    ("boolean",),
    ("bounded",),
    ("integer",),
    ("string",),
    ("integer", "string"),
    ("bounded", "null"),
    ("null", "string"),
    ("integer", "null"),
    ("object", "null"),
    ("boolean", "integer", "null", "object", "string"),
)
FRACTIONS = (("fractional",), ("fractional", "null"))


@dataclass(frozen=True)
class Version:
    """A version of a collection, and rows that are stored while it lasts."""

    fields: dict[str, tuple[str, ...]]
    rows: Sequence[dict[str, Any]]

    @property
    def source(self) -> Source:
        values: dict[str, Sequence[str]] = {
            name: sorted({_plain(kind) for kind in kinds}) for name, kinds in self.fields.items()
        }
        bounded = {"minimum": -1000, "maximum": 1000}
        properties = {name: bounded if "bounded" in kinds else {} for name, kinds in self.fields.items()}
        return source({"id": ["integer"]}, values, schema={"type": "object", "properties": properties})


def _plain(kind: str) -> str:
    return "integer" if kind == "bounded" else kind


@st.composite
def versions(draw: st.DrawFn) -> list[Version]:
    drawn = []
    for _ in range(draw(st.integers(2, 5))):
        names = draw(st.sets(st.sampled_from(["a", "b", 'C "quoted"']), min_size=1))
        fields = {name: draw(st.sampled_from(KINDS + FRACTIONS)) for name in sorted(names)}
        row = st.fixed_dictionaries(
            {"id": st.integers(1, 6)}
            | {name: st.one_of([VALUES[kind] for kind in kinds]) for name, kinds in fields.items()}
        )
        rows = draw(st.lists(row, max_size=4, unique_by=lambda row: row["id"]))
        drawn.append(Version(fields, rows))
    return drawn


def evolve(database: Database, table: str, history: Sequence[Version]) -> None:
    """Follow the versions as a catalog's author would, who leaves out what cannot be, and compare after each."""
    stored: dict[int, dict[str, Any]] = {}
    documents: dict[int, dict[str, Any]] = {}
    for version in history:
        proposed = version.source.proposed(table)
        (validated,) = database.validate(proposed)
        refused = [
            name
            for name, constraint in validated.constraints.items()
            if constraint.type is ConstraintType.UNSATISFIABLE
        ]
        assert not {"id", "flow_document"} & set(refused)
        binding = version.source.binding(table, leave_out=refused)
        database.apply(binding)
        assert database.apply(binding) == ""
        with database.session(binding) as session:
            for exists in (False, True):
                rows = [row for row in version.rows if (row["id"] in documents) == exists]
                commit(session, binding, rows, exists=exists)
                documents |= {row["id"]: row for row in rows}
                for row in rows:
                    fresh = {name: value for name, value in row.items() if name not in refused}
                    stored[row["id"]] = stored.get(row["id"], {}) | fresh
            loaded = load(session, [(number,) for number in documents])
        assert sorted(parse_exact(text.encode())["id"] for text in loaded) == sorted(documents)
        assert all(parse_exact(text.encode()) in documents.values() for text in loaded)
        expected = {
            (number, name): value for number, row in stored.items() for name, value in row.items() if value is not None
        }
        held = columns(database, table)
        assert held.keys() == expected.keys()
        assert [key for key, value in expected.items() if not same(value, held[key])] == []


def columns(database: Database, table: str) -> dict[tuple[int, str], Any]:
    """Every value that is in a column, by the row's identity and the column's name."""
    (names, *rows) = database.table(table)
    identity = names.index("id")
    return {
        (int(row[identity]), name): value
        for row in rows
        for name, value in zip(names, row, strict=True)
        if value is not None and name != "flow_document"
    }


def same(value: Any, held: Any) -> bool:
    """Whether a column holds a value: numbers as any type of number, and anything as JSON text or what that is."""
    if type(value) is float:
        return float(held) == value
    if type(value) is int:
        return Decimal(held) == value
    if type(value) is bool and not isinstance(held, str):
        return bool(held) == value
    if type(value) is str:
        return held in (value, json.dumps(value, ensure_ascii=False))
    return bool(value == (parse_exact(held.encode()) if isinstance(held, str) else held))


_tables = count()


@pytest.fixture(scope="module", params=["postgres", "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Database:
    return DATABASES[request.param](Path(tmp_path_factory.mktemp("evolution")))


@pytest.fixture(scope="module")
def duckdb(tmp_path_factory: pytest.TempPathFactory) -> Database:
    return DATABASES["duckdb"](Path(tmp_path_factory.mktemp("evolution")))


@pytest.mark.sampled(1)
@settings(max_examples=15)
@given(history=versions())
def test_a_table_holds_every_row_as_it_was_stored(database: Database, history: list[Version]) -> None:
    evolve(database, f"table {next(_tables)}", history)


@settings(max_examples=4)  # each opens the file many times
@given(history=versions())
def test_so_does_one_of_duckdb(duckdb: Database, history: list[Version]) -> None:
    exact = [replace(version, rows=[row for row in version.rows if _are_doubles(row)]) for version in history]
    evolve(duckdb, f"table {next(_tables)}", exact)


def _are_doubles(row: dict[str, Any]) -> bool:
    return all(abs(value) <= 2**53 for value in row.values() if type(value) is int)
