"""Times of Parquet's INT96, at any depth, of any year that RFC 3339 has."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from derive.document.pointer import JSON
from derive.errors import DocumentError
from derive.protocol.specs import CatalogSpec, CollectionSpec
from derive.storage.inputs.parquet_rows import parquet_rows

CATALOG = """
collections:
  p/rows: {schema: {type: object, properties: {id: {type: integer}}}, key: [/id]}
"""
MICROS = pa.timestamp("us")
FAR = datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001 (times of INT96 have no zone)


@pytest.fixture
def spec(catalog_of: Callable[..., CatalogSpec]) -> CollectionSpec:
    return catalog_of(CATALOG).collections["p/rows"]


def text_of(value: Any) -> JSON:
    """Return the JSON of a value, with nine digits for each time."""
    if isinstance(value, datetime.datetime):
        return f"{value.isoformat(timespec='microseconds')}000"
    if isinstance(value, dict):
        return {name: text_of(item) for name, item in value.items() if item is not None}
    return [text_of(item) for item in value] if isinstance(value, list) else value


def structure(kind: Any, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Generate values of an Arrow type."""
    if pa.types.is_struct(kind):
        fields = {kind.field(i).name: structure(kind.field(i).type, values) for i in range(kind.num_fields)}
        return st.none() | st.fixed_dictionaries(fields)
    if pa.types.is_map(kind):
        return st.none() | st.dictionaries(st.sampled_from("abc"), structure(kind.item_type, values))
    if pa.types.is_list(kind):
        return st.none() | st.lists(structure(kind.value_type, values), max_size=3)
    return st.none() | values


@pytest.mark.parametrize(
    "kind",
    [
        MICROS,
        pa.list_(MICROS),
        pa.struct([("a", MICROS), ("b", MICROS)]),
        pa.map_(pa.string(), MICROS),
        pa.list_(pa.struct([("a", pa.list_(MICROS)), ("m", pa.map_(pa.string(), pa.struct([("t", MICROS)])))])),
    ],
    ids=str,
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_times_of_int96_are_what_they_were(
    kind: Any, data: st.DataObject, spec: CollectionSpec, tmp_path: Path
) -> None:
    """A document holds the times that were written, of any year from 1 to 9999 and at any depth."""
    rows = data.draw(st.lists(structure(kind, st.datetimes() | st.just(FAR)), min_size=1, max_size=8))
    path = str(tmp_path / "x.parquet")
    table = pa.table({"id": pa.array(range(len(rows))), "v": pa.array(rows, kind)})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True, row_group_size=3, store_schema=False)

    documents = [document for _, document in parquet_rows(path, spec)]

    assert documents == [
        {"id": number} if row is None else {"id": number, "v": text_of(row)} for number, row in enumerate(rows)
    ]


def test_nanoseconds_of_int96_are_kept(spec: CollectionSpec, tmp_path: Path) -> None:
    path = str(tmp_path / "x.parquet")
    ticks = np.array([1_700_000_000_123_456_789, -1, 0], dtype=np.int64)
    pq.write_table(pa.table({"v": pa.array(ticks.view("datetime64[ns]"))}), path, use_deprecated_int96_timestamps=True)

    assert [document for _, document in parquet_rows(path, spec)] == [
        {"v": "2023-11-14T22:13:20.123456789"},
        {"v": "1969-12-31T23:59:59.999999999"},
        {"v": "1970-01-01T00:00:00.000000000"},
    ]


def test_a_time_of_int96_beyond_year_9999_is_an_error_of_its_row(spec: CollectionSpec, tmp_path: Path) -> None:
    path = str(tmp_path / "x.parquet")
    column = pa.array([0, 253_402_300_800_000_000, None], MICROS)
    pq.write_table(pa.table({"v": column}), path, use_deprecated_int96_timestamps=True)

    first, second, third = (document for _, document in parquet_rows(path, spec))

    assert first == {"v": "1970-01-01T00:00:00.000000000"}
    assert isinstance(second, DocumentError)
    assert second.message == "column 'v': a time beyond the years 1 to 9999"
    assert third == {}
