"""The types in documents and Arrow are those of the page about SQL."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from derive.algebra.types import ARRAYS, CATALOG_TYPES, Type
from derive.functions.types.type_info import datum_of_text, text_of
from derive.relations.arrow import arrow_rows, arrow_type
from derive.relations.columns import RelationColumn
from derive.relations.tables.rows import TableRows
from derive.storage.table import Table, TableColumn

PAGE = Path(__file__).parents[2] / "docs" / "sql-queries.md"
LINE = re.compile(r"\| `([^`]+)` \| `([^`]+)` \| (\w+) \| `([^`]+)` \| `([^`]+)` \|")
LINES = LINE.findall(PAGE.read_text())


def test_all_types_are_on_the_page() -> None:
    known = set(Type) - {Type.UNKNOWN, *ARRAYS, *CATALOG_TYPES} | {Type.NUMERIC_ARRAY}
    assert {Type(name) for name, *_ in LINES} == known


@pytest.mark.parametrize(("name", "text", "schema", "document", "arrow"), LINES)
def test_types_in_documents(name: str, text: str, schema: str, document: str, arrow: str) -> None:
    kind = Type(name)
    table = Table(1, "sql/public/t", (TableColumn("v", name),), (), 0, 0)
    datum = datum_of_text(kind, text)
    rows = TableRows(table)
    ((written, _, _),) = rows.changes([((datum,), 1)])

    assert orjson.loads(written) == {"v": orjson.loads(document)}
    assert rows.rows([written]) == [(datum,)]
    assert text_of(kind, datum) == text
    properties = table.spec.read_schema["properties"]
    assert isinstance(properties, dict)
    assert properties["v"].get("type", "any") == schema
    assert str(arrow_type(kind)) == arrow
    (value,) = arrow_rows([RelationColumn("v", kind, True, "/v")], [(datum,)]).column("v").to_pylist()
    assert arrow not in {"string"} or value == text
