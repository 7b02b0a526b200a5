"""Rows of tables as columns equal rows that are converted one by one."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from derive.algebra.types import Row, Type
from derive.functions.types.jsonb import jsonb_datum
from derive.functions.types.type_info import datum_of_text
from derive.relations.table_rows import StoredRow, TableRows
from derive.storage.segments.columns import compile_fields
from derive.storage.segments.texts import parse_texts
from derive.storage.table_types import Table, TableColumn

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.sampled_from(
    [",", '","', '"', "\\", "\n", "null", "}"]
)
DATA: dict[Type, st.SearchStrategy[Any]] = {
    Type.BIGINT: st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-300, 300),
    Type.TEXT: TEXTS,
    Type.DOUBLE: st.floats().map(lambda number: "NaN" if math.isnan(number) else number) | st.sampled_from([0.0, -0.0, 3.0]),
    Type.REAL: st.floats(width=32, allow_nan=False),
    Type.BOOLEAN: st.integers(0, 1),
    Type.NUMERIC: st.decimals(-99, 99, places=2).map(lambda number: datum_of_text(Type.NUMERIC, str(Decimal(number)))),
    Type.JSONB: (TEXTS.map(lambda text: text.replace("\0", "")) | st.none() | st.lists(st.integers(0, 2))).map(jsonb_datum),
}  # fmt: skip
NAMES = ["a", 'b"', "ü"]


@st.composite
def tables(draw: st.DrawFn) -> tuple[Table, list[Row]]:
    kinds = draw(st.lists(st.sampled_from(list(DATA)), min_size=1, max_size=3))
    columns = tuple(TableColumn(name, kind.value) for name, kind in zip(NAMES, kinds, strict=False))
    key = draw(st.lists(st.sampled_from([column.pointer for column in columns]), unique=True))
    rows = st.tuples(*(st.none() | DATA[kind] if draw(st.booleans()) else DATA[kind] for kind in kinds))
    return Table(1, "sql/public/t", columns, tuple(key), 0, 0), draw(st.lists(rows, min_size=1, max_size=5))


@given(tables())
def test_bulk_changes_equal_changes(drawn: tuple[Table, list[Row]]) -> None:
    table, rows = drawn
    converter = TableRows(table)
    for diffs in ((), [-1] * len(rows)):
        bulk = converter.bulk(rows, diffs)
        assert bulk is not None
        assert len(bulk) == len(rows)
        ((diff, texts, keys, fields),) = bulk.batches()
        written = list(zip(texts.to_pylist(), keys.to_pylist(), [diff] * len(rows), strict=True))
        assert written == converter.changes(zip(rows, diffs or [1] * len(rows), strict=True))
        assert fields == compile_fields(table.spec)(parse_texts(texts))


def test_retractions_precede_insertions_of_other_rows() -> None:
    table = TableRows(Table(1, "sql/public/t", (TableColumn("a", "text"),), ("/a",), 0, 0))
    bulk = table.bulk([("x",), ("y",), ("z",)], [1, -1, 1])
    assert bulk is not None
    batches = [(batch.diff, batch.texts.to_pylist()) for batch in bulk.batches()]
    assert batches == [(-1, ['{"a":"y"}']), (1, ['{"a":"x"}', '{"a":"z"}'])]
    assert table.bulk([("x",), ("x",)], [-1, 1]) is None
    assert table.bulk([("x",), ("y",)], [-1, 2]) is None
    assert table.bulk([("x",), StoredRow(("{}", b""))]) is None
