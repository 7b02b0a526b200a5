"""Parquet files to documents: each value is exact, or an error that names its row and column."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import World, examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from derive.document.exact import dump_exact, parse_exact
from derive.document.pointer import JSON
from derive.errors import DocumentError
from derive.protocol.specs import CatalogSpec, CollectionSpec
from derive.schema.shape import infer
from derive.storage.ingest import Ingestion
from derive.storage.inputs.line import UnfitError
from derive.storage.inputs.parquet_rows import converter, parquet_rows

CATALOG = """
collections:
  p/rows:
    schema: {type: object, properties: {id: {type: integer}, v: SCHEMA}}
    key: [/id]
"""


@pytest.fixture
def spec_of(catalog_of: Callable[..., CatalogSpec]) -> Callable[[str], CollectionSpec]:
    return lambda schema: catalog_of(CATALOG.replace("SCHEMA", schema)).collections["p/rows"]


def D(text: str) -> Decimal:  # noqa: N802 (as decimals are written)
    return Decimal(text)


UTC = datetime.UTC
IDENTIFIER = uuid.UUID("12345678-1234-5678-1234-567812345678")
STRUCT = pa.struct([("a", pa.int64()), ("b", pa.string())])


@pytest.mark.parametrize(
    ("kind", "schema", "value", "text"),
    [
        # Decimals that a JSON number of ours holds exactly
        (pa.decimal128(9, 2), "{type: number}", D("12.34"), "12.34"),
        (pa.decimal128(9, 2), "{type: number}", D("-0.10"), "-0.1"),
        (pa.decimal128(9, 2), "{type: number}", D("12.00"), "12.0"),
        (pa.decimal128(9, 2), "{type: integer}", D("12.00"), "12"),
        (pa.decimal128(9, 2), "{}", D("12.34"), "12.34"),
        (pa.decimal128(38, 0), "{type: number}", D("9" * 38), "9" * 38),
        (pa.decimal256(76, 0), "{type: integer}", D("-" + "9" * 76), "-" + "9" * 76),
        (pa.decimal128(38, 10), "{type: number}", D("0.1"), "0.1"),
        (pa.decimal128(38, 10), "{type: number}", D("12345678901234567890123456"), "12345678901234567890123456"),
        (pa.decimal32(5, 2), "{type: number}", D("1.25"), "1.25"),
        (pa.decimal64(15, 2), "{type: number}", D("1234567890123.25"), "1234567890123.25"),
        # … and others
        (pa.decimal128(38, 2), "{type: [number, string]}", D("12345678901234567.89"), '"12345678901234567.89"'),
        (pa.decimal128(38, 2), "{type: string}", D("12.30"), '"12.30"'),
        (pa.decimal128(38, 20), "{type: string}", D("0.00000000000000000001"), '"0.00000000000000000001"'),
        # Other numbers
        (pa.uint64(), "{}", (1 << 64) - 1, "18446744073709551615"),
        (pa.int64(), "{}", -(1 << 63), "-9223372036854775808"),
        (pa.float64(), "{}", 0.1, "0.1"),
        (pa.float64(), "{}", -0.0, "-0.0"),
        (pa.float32(), "{}", 0.1, "0.10000000149011612"),
        (pa.float16(), "{}", 1.5, "1.5"),
        (pa.bool_(), "{}", True, "true"),
        # Times
        (pa.timestamp("us", "UTC"), "{}", 1_700_000_000_123_456, '"2023-11-14T22:13:20.123456Z"'),
        (pa.timestamp("ns", "Europe/Berlin"), "{}", 1_700_000_000_123_456_789, '"2023-11-14T22:13:20.123456789Z"'),
        (pa.timestamp("ms"), "{}", -1, '"1969-12-31T23:59:59.999"'),
        (pa.date32(), "{}", datetime.date(1, 1, 1), '"0001-01-01"'),
        (pa.date64(), "{}", datetime.date(9999, 12, 31), '"9999-12-31"'),
        (pa.time32("ms"), "{}", 86_399_999, '"23:59:59.999"'),
        (pa.time64("ns"), "{}", 1, '"00:00:00.000000001"'),
        # Texts and bytes
        (pa.large_string(), "{}", "é\x00", '"é\\u0000"'),
        (pa.binary(), "{}", b"\xff\x00", '"/wA="'),
        (pa.binary(3), "{}", b"abc", '"YWJj"'),
        (pa.dictionary(pa.int32(), pa.string()), "{}", "a", '"a"'),
        (pa.uuid(), "{}", IDENTIFIER.bytes, '"12345678-1234-5678-1234-567812345678"'),
        (pa.json_(), "{}", '{"a":[1]}', '{"a":[1]}'),
        # What is nested
        (pa.list_(pa.int64()), "{}", [1, None, 3], "[1,null,3]"),
        (pa.list_(pa.int64(), 2), "{}", [1, 2], "[1,2]"),
        (pa.list_(pa.list_(STRUCT)), "{}", [[{"a": 1, "b": None}], [], None], '[[{"a":1}],[],null]'),
        (STRUCT, "{}", {"a": None, "b": "x"}, '{"b":"x"}'),
        (
            pa.struct([("d", pa.decimal128(38, 2))]),
            "{properties: {d: {type: string}}}",
            {"d": D("1.50")},
            '{"d":"1.50"}',
        ),
        (pa.list_(pa.decimal128(38, 2)), "{items: {type: string}}", [D("1.50")], '["1.50"]'),
        (pa.map_(pa.string(), pa.int64()), "{}", [("a", 1), ("b", None)], '{"a":1}'),
        (pa.map_(pa.int64(), STRUCT), "{}", [(7, {"a": 1, "b": "x"})], '{"7":{"a":1,"b":"x"}}'),
        (pa.list_(pa.float64()), "{}", [], "[]"),
    ],
    ids=str,
)
def test_parquet_values_are_kept(
    kind: Any, schema: str, value: Any, text: str, spec_of: Callable[[str], CollectionSpec], tmp_path: Path
) -> None:
    path = tmp_path / "x.parquet"
    column = pa.array([None, value, None, value], kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind)
    if isinstance(kind, pa.BaseExtensionType):
        column = pa.ExtensionArray.from_storage(kind, column)
    pq.write_table(pa.table({"id": pa.array([1, 2, 3, 4]), "v": column}), path)

    rows = [(number, dump_exact(row)) for number, row in parquet_rows(str(path), spec_of(schema))]

    assert rows == [
        (1, b'{"id":1}'),
        (2, b'{"id":2,"v":%b}' % text.encode()),
        (3, b'{"id":3}'),
        (4, b'{"id":4,"v":%b}' % text.encode()),
    ]


NO_NUMBER = "which JSON cannot express; write null for a missing number"


@pytest.mark.parametrize(
    ("kind", "schema", "value", "message"),
    [
        (pa.float64(), "{}", float("nan"), f"column 'v': NaN, {NO_NUMBER}"),
        (pa.float32(), "{}", float("-inf"), f"column 'v': -Infinity, {NO_NUMBER}"),
        (pa.float16(), "{}", float("inf"), f"column 'v': Infinity, {NO_NUMBER}"),
        (pa.list_(pa.struct([("x", pa.float64())])), "{}", [{"x": float("nan")}], f"column 'v': NaN, {NO_NUMBER}"),
        (
            pa.decimal128(38, 2),
            "{type: number}",
            D("12345678901234567.89"),
            "column 'v': 12345678901234567.89 has more digits than a number with a fraction keeps (it would be 1.23456",
        ),
        (
            pa.decimal128(38, 20),
            "{}",
            D("1.00000000000000000001"),
            "column 'v': 1.00000000000000000001 has more digits than a number with a fraction keeps (it would be 1.0); let",
        ),
        (pa.date32(), "{}", 2_932_897, "column 'v': a time beyond the years 1 to 9999"),
        (pa.timestamp("s"), "{}", 253_402_300_800, "column 'v': a time beyond the years 1 to 9999"),
        (pa.json_(), "{}", "{", "column 'v': a text that is not JSON, in a column of JSON: "),
        (pa.map_(pa.string(), pa.int64()), "{}", [("a", 1), ("a", 2)], "column 'v': a map with a key twice"),
    ],
    ids=str,
)
def test_a_value_without_a_json_form_is_reported_with_its_row_and_column(
    kind: Any, schema: str, value: Any, message: str, spec_of: Callable[[str], CollectionSpec], tmp_path: Path
) -> None:
    path = tmp_path / "x.parquet"
    column = pa.array([None, value], kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind)
    if isinstance(kind, pa.BaseExtensionType):
        column = pa.ExtensionArray.from_storage(kind, column)
    pq.write_table(pa.table({"id": pa.array([1, 2]), "v": column}), path)

    [(_, first), (number, error)] = parquet_rows(str(path), spec_of(schema))

    assert first == {"id": 1}
    assert number == 2
    assert isinstance(error, DocumentError)
    assert error.message.startswith(message)


def test_first_ten_errors_are_listed_and_nothing_is_ingested(
    catalog_of: Callable[..., CatalogSpec], tmp_path: Path
) -> None:
    world = World(tmp_path / "data", catalog_of(CATALOG.replace("SCHEMA", "{}")))
    spec = world.catalog.collections["p/rows"]
    path = tmp_path / "x.parquet"
    values = [float("nan") if number % 1000 == 999 else 1.5 for number in range(12_000)]
    pq.write_table(pa.table({"id": list(range(12_000)), "v": values}), path)

    with pytest.raises(DocumentError) as caught:
        Ingestion(world.store, spec).load("x.parquet", parquet_rows(str(path), spec))

    lines = caught.value.message.split("\n")
    assert lines[0] == "x.parquet: 12 documents are not valid:"
    assert lines[1] == f"  x.parquet:1000: column 'v': NaN, {NO_NUMBER}"
    assert lines[-1] == "  … and 2 more"
    assert not list((world.root / "collections").rglob("*.parquet"))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"v": pa.array([1], pa.duration("us"))}), "column 'v' has the type duration[us], which has no JSON"),
        (pa.table({"v": pa.array([[1]], pa.list_(pa.duration("s")))}), "column 'v' has the type duration[s], which"),
        (
            pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["v", "v"]),
            "x.parquet has two columns of one name: v, v",
        ),
    ],
)
def test_a_type_without_a_json_form_is_reported_once(
    table: Any, message: str, spec_of: Callable[[str], CollectionSpec], tmp_path: Path
) -> None:
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(DocumentError) as caught:
        list(parquet_rows(str(tmp_path / "x.parquet"), spec_of("{}")))
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: b"", "is not a readable Parquet file: Parquet file size is 0 bytes"),
        (lambda content: b"garbage" * 100, "is not a readable Parquet file: Parquet magic bytes not found in footer"),
        (lambda content: content[:-10], "is not a readable Parquet file: Parquet magic bytes not found in footer"),
        (lambda content: content[:100_000] + b"\x00" * 1000 + content[101_000:], "is damaged after its row "),
    ],
)
def test_file_that_is_not_parquet_is_reported(
    damage: Callable[[bytes], bytes], message: str, spec_of: Callable[[str], CollectionSpec], tmp_path: Path
) -> None:
    path = tmp_path / "x.parquet"
    texts = [str(uuid.uuid5(uuid.NAMESPACE_OID, str(number))) for number in range(20_000)]
    table = pa.table({"v": texts})
    pq.write_table(table, path, row_group_size=1000, compression="zstd", use_dictionary=False)
    path.write_bytes(damage(path.read_bytes()))

    with pytest.raises(DocumentError) as caught:
        list(parquet_rows(str(path), spec_of("{}")))

    assert caught.value.message.startswith(f"{path} {message}")
    assert caught.value.hint == "nothing of this file was ingested"


@given(st.integers(1, 38), st.data(), st.sampled_from(["number", "integer", "string", "any"]))
def test_a_decimal_is_exact_or_refused(precision: int, data: st.DataObject, wanted: str) -> None:
    """The stored text of a decimal has its exact value."""
    scale = data.draw(st.integers(0, precision))
    digits = data.draw(st.integers(-(10**precision) + 1, 10**precision - 1))
    value = Decimal(f"{digits}e-{scale}")
    kind = pa.decimal128(precision, scale)
    shape = infer({} if wanted == "any" else {"type": wanted})
    try:
        [found] = converter(kind, shape)(pa.array([value], kind))
    except UnfitError:
        assert wanted != "string"
        assert Decimal(repr(float(value))) != value
        return
    text = dump_exact(found)
    assert Decimal(text.decode().strip('"')) == value
    assert dump_exact(parse_exact(text)) == text  # it survives being read and written again
    if wanted == "string":
        assert orjson.loads(text) == str(value) or "E" in str(value)


INT96_CATALOG = """
collections:
  p/rows: {schema: {type: object, properties: {id: {type: integer}}}, key: [/id]}
"""
MICROS = pa.timestamp("us")
FAR = datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001 (times of INT96 have no zone)


@pytest.fixture
def spec(catalog_of: Callable[..., CatalogSpec]) -> CollectionSpec:
    return catalog_of(INT96_CATALOG).collections["p/rows"]


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
@settings(max_examples=examples(60, 10), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_times_of_int96_are_exact(kind: Any, data: st.DataObject, spec: CollectionSpec, tmp_path: Path) -> None:
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


def test_int96_time_beyond_year_9999_is_an_error_of_its_row(spec: CollectionSpec, tmp_path: Path) -> None:
    path = str(tmp_path / "x.parquet")
    column = pa.array([0, 253_402_300_800_000_000, None], MICROS)
    pq.write_table(pa.table({"v": column}), path, use_deprecated_int96_timestamps=True)

    first, second, third = (document for _, document in parquet_rows(path, spec))

    assert first == {"v": "1970-01-01T00:00:00.000000000"}
    assert isinstance(second, DocumentError)
    assert second.message == "column 'v': a time beyond the years 1 to 9999"
    assert third == {}
