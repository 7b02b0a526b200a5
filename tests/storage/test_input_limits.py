"""Inputs are read in pieces: memory is bounded by the limit of a document, whatever the file holds."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from collections.abc import Callable
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import World
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from derive.document.exact import parse_exact
from derive.errors import DocumentError
from derive.functions.types import jsonb
from derive.functions.types.jsonb import FEW_VALUES
from derive.protocol.specs import CatalogSpec, CollectionSpec
from derive.storage.ingest import Ingestion
from derive.storage.inputs.line import Line, csv_rows, json_lines, too_many_values, unpacked
from derive.storage.inputs.parquet_rows import parquet_rows

CATALOG = """
collections:
  i/rows: {schema: {type: object, required: [k], properties: {k: {type: integer}}}, key: [/k]}
"""
MIB = 1 << 20


@pytest.fixture
def spec(catalog_of: Callable[..., CatalogSpec]) -> CollectionSpec:
    return catalog_of(CATALOG).collections["i/rows"]


class Endless(io.RawIOBase):
    """A head, and then one byte for ever."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self.given = 0

    @override
    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece, self._head = self._head[: len(buffer)], self._head[len(buffer) :]
        piece = piece or b"x" * len(buffer)
        buffer[: len(piece)] = piece
        self.given += len(piece)
        return len(piece)


def shown(line: Line) -> tuple[int, Any]:
    number, content = line
    return number, content.message if isinstance(content, DocumentError) else content


LINE = "the line has more than 20 bytes, the limit of a document: --max-document-mib raises the limit"
ROW = "the row has more than 20 bytes, the limit of a document: --max-document-mib raises the limit"


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b'{"k":1,"v":"123456"}\n{}\n', [(1, b'{"k":1,"v":"123456"}\n'), (2, b"{}\n")]),
        (b'{"k":1,"v":"123456"}\r\n{}', [(1, b'{"k":1,"v":"123456"}\r\n'), (2, b"{}")]),
        (b'{"k":1,"v":"123456"}', [(1, b'{"k":1,"v":"123456"}')]),
        (b'{"k":1,"v":"1234567"}\n{}\n', [(1, LINE)]),
        (b'{"k":1,"v":"1234567"}', [(1, LINE)]),
        (b'{"k":1}\n{"k":1,"v":"12345678901234567890"}\n{}\n', [(1, b'{"k":1}\n'), (2, LINE)]),
        (b'\xef\xbb\xbf{"k":1}\n', [(1, b'{"k":1}\n')]),
    ],
)
def test_json_lines_end_at_a_line_beyond_the_limit(content: bytes, lines: list[Any]) -> None:
    assert list(map(shown, json_lines(io.BytesIO(content), 20))) == lines


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"k,v\n1,345678901234567890\n2,b\n", [(2, {"k": 1, "v": "345678901234567890"}), (3, {"k": 2, "v": "b"})]),
        (b"k,v\n1,3456789012345678901\n2,b\n", [(2, ROW)]),
        (b'k,v\n1,"\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n"\n', [(20, ROW)]),
        (b"k,v" + b",w" * 20 + b"\n1,2\n", [(1, ROW)]),
    ],
)
def test_csv_ends_at_a_row_beyond_the_limit(content: bytes, lines: list[Any], spec: CollectionSpec) -> None:
    assert list(map(shown, csv_rows(io.BytesIO(content), spec, "x", 20))) == lines


@pytest.mark.parametrize("head", [b'{"k":1}\n{"k":2,"v":"', b'k,v\n1,a\n2,"'])
def test_input_without_an_end_of_a_line_is_read_up_to_the_limit(head: bytes, spec: CollectionSpec) -> None:
    raw = Endless(head)
    stream = io.BufferedReader(raw)
    lines = list(csv_rows(stream, spec, "x", MIB) if head.startswith(b"k,v") else json_lines(stream, MIB))

    assert "more than 1 MiB, the limit of a document" in shown(lines[-1])[1]
    assert raw.given < 2 * MIB


def test_oversized_compressed_line_is_not_decompressed_completely(world: World, spec: CollectionSpec) -> None:
    packed = gzip.compress(b'{"k":1}\n{"k":2,"v":"' + bytes(64 * MIB) + b'"}\n', mtime=0)
    stream: Any = io.BufferedReader(io.BytesIO(packed))

    with pytest.raises(DocumentError) as caught:
        Ingestion(world.store, spec).load("x", json_lines(unpacked(stream, "x"), MIB))

    assert caught.value.message == (
        "x: 1 document is not valid:\n"
        "  x:2: the line has more than 1 MiB, the limit of a document: --max-document-mib raises the limit"
    )


@pytest.fixture
def world(catalog_of: Callable[..., CatalogSpec], tmp_path: Path) -> World:
    return World(tmp_path / "data", catalog_of(CATALOG), wall=1_000_000)


def test_all_invalid_documents_are_counted(world: World, spec: CollectionSpec) -> None:
    """A file that is wrong in several batches has all of its documents counted, whatever is wrong with them."""
    wrong = [b"{}", b"{", b'{"k":"a"}', b"[]"]
    lines = [(number, wrong[number % len(wrong)]) for number in range(1, 12_002)]

    with pytest.raises(DocumentError, match="x: 12,001 documents are not valid") as caught:
        Ingestion(world.store, spec).load("x", iter(lines))

    assert caught.value.message.endswith("… and 11,991 more")


def test_wrong_times_are_counted_in_all_batches(world: World, spec: CollectionSpec) -> None:
    lines = [(number, b'{"k":1,"at":"no"}') for number in range(1, 12_002)]

    with pytest.raises(DocumentError, match="x: 12,001 documents are not valid"):
        Ingestion(world.store, spec, clock="/at").load("x", iter(lines))


def texts(kind: str, rows: int, mib: int) -> Any:
    """Return a column of one large text, repeated by a dictionary at some depth."""
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, dtype=np.int32)), pa.array(["x" * (mib * MIB)]))
    if kind == "flat":
        return column
    if kind == "list":
        return pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), column)
    return pa.StructArray.from_arrays([column], names=["t"])


@pytest.mark.parametrize("kind", ["flat", "list", "struct"])
def test_parquet_batches_are_limited_in_bytes(kind: str, spec: CollectionSpec, tmp_path: Path) -> None:
    """A small file of large rows needs memory for few of them at once."""
    rows, mib = 3_000, 4
    path = tmp_path / "x.parquet"
    table = pa.table({"k": pa.array(range(rows), pa.int64()), "s": texts(kind, rows, mib)})
    pq.write_table(table, path, compression="zstd")
    assert path.stat().st_size < 100_000
    before = pa.total_allocated_bytes()

    for number, content in islice(parquet_rows(str(path), spec), 20):
        assert isinstance(content, bytes)
        assert len(content) > mib * MIB
        assert parse_exact(content)["k"] == number - 1

    assert pa.default_memory_pool().max_memory() - before < 500 * MIB


def test_oversized_parquet_row_is_an_error_of_its_row(spec: CollectionSpec, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"k": [1, 2, 3], "s": ["a", "x" * 3 * MIB, "b"]}), path)

    assert list(map(shown, parquet_rows(str(path), spec, MIB))) == [
        (1, {"k": 1, "s": "a"}),
        (2, "the row has more than 1 MiB, the limit of a document: --max-document-mib raises the limit"),
        (3, {"k": 3, "s": "b"}),
    ]


MEASURED = """
import sys, resource
from pathlib import Path
from derive.catalog import load
from derive.storage.inputs.line import json_lines
from derive.storage.inputs.line import unpacked
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with open(sys.argv[1], "rb") as file:
    lines = list(json_lines(unpacked(file, sys.argv[1])))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10, lines[-1][1])
"""


def test_memory_for_a_line_beyond_the_limit_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(600):
            file.write(bytes(MIB))

    done = subprocess.run([sys.executable, "-c", MEASURED, str(path)], capture_output=True, text=True, check=True)

    mebibytes, message = done.stdout.split(" ", 1)
    assert message.startswith("the line has more than 128 MiB")
    assert int(mebibytes) < 450


SMALL = st.recursive(
    st.none() | st.integers(-9, 9) | st.text(alphabet='",[{\\\\x:}]', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='",[{\\\\', max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(document=SMALL, is_spaced=st.booleans())
def test_values_are_counted_outside_of_strings(document: Any, is_spaced: bool) -> None:
    """Commas and brackets in strings are no values, whatever is escaped there; an empty array counts as two."""
    text = json.dumps(document, separators=(", ", ": ") if is_spaced else (",", ":"), ensure_ascii=False)

    assert jsonb._count_values(text.encode()) == marks(document)


def marks(value: Any) -> int:
    """The brackets and commas of a document's structure."""
    if not isinstance(value, (list, dict)):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(len(value) - 1, 0) + sum(map(marks, inner))


def test_a_string_across_parts_is_one_string(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonb, "_PART_BYTES", 3)
    assert jsonb._count_values(b'["a,b,[{\\"",[1,"]"],{}]') == 6


@pytest.mark.parametrize("make", [lambda text: text, lambda text: b'"k","v"\n1,"%b"\n' % text.replace(b'"', b'""')])
def test_documents_of_too_many_values_are_not_parsed(spec: CollectionSpec, make: Callable[[bytes], bytes]) -> None:
    """They are told with their line, and the documents behind them are read; commas of a string are none."""
    limit = 16 * FEW_VALUES + 16
    many = b"[%b]" % b",".join([b"[]"] * (FEW_VALUES // 2 + 2))
    text = b'["%b"]' % (b"," * 2 * FEW_VALUES)
    is_csv = make(b"") != b""

    def read(content: bytes) -> list[Any]:
        stream = io.BytesIO(make(content))
        lines = csv_rows(stream, spec, "x.csv", limit) if is_csv else json_lines(stream, limit)
        return [content for _, content in lines]

    (error,) = read(many)
    assert isinstance(error, DocumentError)
    assert error.message == (
        f"the document has more than {FEW_VALUES + 1:,} values, the limit for 16,000,016 bytes: --max-document-mib raises"
        " the limit"
    )
    (content,) = read(text)
    assert not isinstance(content, DocumentError)
    assert too_many_values([many], 2 * limit) is None


def test_values_in_all_cells_of_a_row_are_counted(spec: CollectionSpec) -> None:
    cell = b"[%b]" % b",".join([b"1"] * (FEW_VALUES // 2))
    (found,) = csv_rows(io.BytesIO(b'k,a,b,c\n1,"%b","%b","%b"\n' % (cell, cell, cell)), spec, "x.csv", 16 * FEW_VALUES)
    assert isinstance(found[1], DocumentError)


MANY = FEW_VALUES + 1


def as_json(counts: list[int]) -> Any:
    texts = [f"[{','.join(['1'] * count)}]" for count in counts]
    return pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts, pa.string()))


def as_map(counts: list[int]) -> Any:
    offsets, total = pa.array([0, *accumulate(counts)], pa.int32()), sum(counts)
    return pa.MapArray.from_arrays(offsets, np.arange(total, dtype=np.int32), np.ones(total, dtype=np.int8))


COLUMNS: dict[str, Callable[[list[int]], Any]] = {
    "JSON": as_json,
    "JSON in a struct": lambda counts: pa.StructArray.from_arrays([as_json(counts)], ["a"]),
    "bits of a list": lambda counts: pa.array([[True] * count for count in counts]),
    "a list in a list": lambda counts: pa.array([[[1] * count] for count in counts], pa.list_(pa.list_(pa.int8()))),
    "a map": as_map,
}
"""Columns of Parquet whose values have many values, which is no matter of their bytes."""


@pytest.mark.parametrize("name", COLUMNS)
def test_rows_of_parquet_with_too_many_values_are_not_converted(
    name: str, spec: CollectionSpec, tmp_path: Path
) -> None:
    """Rows with too many values are errors, and rows around them are read; many rows of some values are read in turn."""
    pq.write_table(pa.table({"k": [1, 2, 3], "v": COLUMNS[name]([1, MANY, 1])}), tmp_path / "x.parquet")
    (_, first), (_, second), (_, third) = parquet_rows(str(tmp_path / "x.parquet"), spec, 16 * FEW_VALUES)
    assert isinstance(second, DocumentError)
    assert second.message.startswith("the document has more than 1,000,000 values")
    for content, key in ((first, 1), (third, 3)):
        document = parse_exact(content) if isinstance(content, bytes) else content
        assert isinstance(document, dict)
        assert document["k"] == key
