"""JSON Lines and CSV as they come: packed, with byte order marks, with headers that say too little or too much."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pytest
from conftest import World
from typing_extensions import override

from derive.errors import DocumentError, FlowError
from derive.protocol.specs import CatalogSpec, CollectionSpec
from derive.storage.capability.table import Capability
from derive.storage.ingest import Ingestion
from derive.storage.inputs.line import Line, csv_rows, json_lines, unpacked
from derive.storage.store import Store

CATALOG = """
collections:
  i/rows:
    schema:
      type: object
      required: [id, name]
      properties: {id: {type: integer}, name: {type: string}, amount: {type: number}, more: {}}
    key: [/id]
"""
JSONL = b'{"id":1,"name":"a"}\n\n{"id":2,"name":"b"}\n'
BOM = b"\xef\xbb\xbf"


@pytest.fixture
def spec(catalog_of: Callable[..., CatalogSpec]) -> CollectionSpec:
    return catalog_of(CATALOG).collections["i/rows"]


@pytest.fixture
def world(catalog_of: Callable[..., CatalogSpec], tmp_path: Path) -> World:
    return World(tmp_path / "data", catalog_of(CATALOG), wall=1_000_000)


def stream(content: bytes) -> io.BufferedReader:
    return io.BufferedReader(io.BytesIO(content))


def gz(content: bytes) -> bytes:
    """The same bytes in every process that collects these tests: gzip would note the time."""
    return gzip.compress(content, mtime=0)


def zstd(content: bytes) -> bytes:
    packed: bytes = pa.compress(content, "zstd", asbytes=True)
    return packed


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.jsonl", JSONL),
        ("x.jsonl.gz", gz(JSONL)),
        ("x.jsonl.zst", zstd(JSONL)),
        ("x.ndjson.gz", gz(JSONL[:20]) + gz(JSONL[20:])),  # as `cat a.gz b.gz` makes it
        ("x.zst", zstd(JSONL[:20]) + zstd(JSONL[20:])),
        ("standard input", gz(JSONL)),
        ("x.jsonl", zstd(JSONL)),
        ("x.jsonl", BOM + JSONL),
        ("x.jsonl.gz", gz(BOM + JSONL)),
    ],
)
def test_json_lines_are_read_compressed_or_plain(name: str, content: bytes) -> None:
    assert list(json_lines(unpacked(stream(content), name))) == [
        (1, b'{"id":1,"name":"a"}\n'),
        (3, b'{"id":2,"name":"b"}\n'),
    ]


@pytest.mark.parametrize("content", [b"", BOM, b"\n", BOM + b"\n\n", gz(b"")])
def test_empty_inputs_have_no_documents(content: bytes) -> None:
    assert list(json_lines(unpacked(stream(content), "x.jsonl"))) == []


MANY = b'{"id":1,"name":"a"}\n' * 100_000


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.gz", b"garbage", "x.gz is not gzip, but its name says so"),
        ("x.zst", b"", "x.zst is not zstd, but its name says so"),
        ("x.jsonl", "{}".encode("utf-16"), "x.jsonl is UTF-16"),
        ("x.gz", gz(MANY)[:-9], "x.gz ends before its gzip data is complete; "),
        ("x.gz", gz(MANY)[:1000], "x.gz ends before its gzip data is complete; "),
        ("x.zst", zstd(MANY)[:-9], "x.zst ends before its zstd data is complete; "),
        ("x.gz", gz(MANY) + b"garbage", "x.gz is damaged gzip data: "),
        ("x.gz", b"\x1f\x8bgarbage", "x.gz is damaged gzip data: "),
        ("x.zst", b"\x28\xb5\x2f\xfdgarbage", "x.zst is damaged zstd data: "),
    ],
)
def test_damaged_compressed_data_is_reported(name: str, content: bytes, message: str) -> None:
    with pytest.raises(FlowError) as caught:
        list(json_lines(unpacked(stream(content), name)))

    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("content", "documents"),
    [
        (BOM + b"id,name,amount\n7,12,1.5\n", [(2, {"id": 7, "name": "12", "amount": 1.5})]),
        (b'name,id,amount\r\n"a,\r\nb",8,\r\n', [(3, {"name": "a,\r\nb", "id": 8})]),
        (b"id,name,more\n1,a,[1]\n", [(2, {"id": 1, "name": "a", "more": [1]})]),
        (b"id,name\n123456789012345678901234567890,x\n", [(2, {"id": 123456789012345678901234567890, "name": "x"})]),
        (b"id,name\n", []),
        (b"id,name\n\n1,a\n\n", [(3, {"id": 1, "name": "a"})]),
        (b'id,name\n1,"' + b"x" * 200_000 + b'"\n', [(2, b'{"id":1,"name":"' + b"x" * 200_000 + b'"}')]),
    ],
)
def test_csv_rows_are_documents(content: bytes, documents: list[Line], spec: CollectionSpec) -> None:
    assert list(csv_rows(stream(content), spec, "x.csv")) == documents


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "x.csv has no header line"),
        (b"\n1,a\n", "x.csv has no header line"),
        (b"id,name,id\n1,a,2\n", "x.csv:1: the header names 'id' twice"),
        (b"1,a\n2,b\n", "x.csv:1: 'i/rows' requires 'id', 'name', but the header does not name them: 1,a"),
        (b"id;name\n2;b\n", "x.csv:1: 'i/rows' requires 'id', 'name', but the header does not name them: id;name"),
        (b"id,nom\n2,b\n", "x.csv:1: 'i/rows' requires 'name', but the header does not name it: id,nom"),
        (b"id,name\n1,a\n2,\xe9t\xe9\n", "x.csv:3: the file is not UTF-8"),
        (b'id,name\n1,a\n2,"b\n3,c\n', "x.csv:4: the file is not CSV: unexpected end of data"),
        (b'id,name\n1,"a"b\n', "x.csv:2: the file is not CSV: ',' expected after '\"'"),
    ],
)
def test_invalid_csv_header_is_reported_once(content: bytes, message: str, spec: CollectionSpec) -> None:
    with pytest.raises(DocumentError) as caught:
        list(csv_rows(stream(content), spec, "x.csv"))

    assert caught.value.message == message


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b'id;"name"\n', "another character is between the columns: --delimiter ';'"),
        (b"id\tname\n", "another character is between the columns: --delimiter tab"),
        (b"id;nom\n", "the first line must name the columns"),
        (b"id,nom\n", "did you mean 'name'?"),
        (b"1,bob smith\n", "the first line must name the columns"),
    ],
)
def test_header_with_another_separator_has_a_hint(content: bytes, hint: str, spec: CollectionSpec) -> None:
    with pytest.raises(DocumentError) as caught:
        list(csv_rows(stream(content), spec, "x.csv"))

    assert caught.value.hint == hint


def ingest(spec: CollectionSpec, world: World, lines: Iterator[Line]) -> str:
    with pytest.raises(DocumentError) as caught:
        Ingestion(world.store, spec).load("x", lines)
    return caught.value.message


def test_numbers_without_json_form_are_reported_with_their_position(spec: CollectionSpec, world: World) -> None:
    written = f"{world.catalog.source}:7:72"
    rows = b"id,name,amount\n1,a,NaN\n2,b,Infinity\n3,c,1,2\n4,d\n"
    assert ingest(spec, world, csv_rows(stream(rows), spec, "x")) == (
        "x: 4 documents are not valid:\n"
        "  x:2: document [1] of 'i/rows' fails its schema at '/amount': \"NaN\" is not of type \"number\""
        f" (keyword /properties/amount/type), which is at {written}\n"
        "  x:3: document [2] of 'i/rows' fails its schema at '/amount': \"Infinity\" is not of type \"number\""
        f" (keyword /properties/amount/type), which is at {written}\n"
        "  x:4: the line has 4 cells, but the header names 3 columns\n"
        "  x:5: the line has 2 cells, but the header names 3 columns"
    )
    lines = b'{"id":1,"name":"a","amount":NaN}\n{"id":1,"name":"a","amount":1e999}\n'
    assert ingest(spec, world, json_lines(stream(lines))) == (
        "x: 2 documents are not valid:\n"
        "  x:1: not JSON: unexpected character, expected a JSON value in column 29\n"
        "  x:2: not JSON: number is infinity when parsed as double in column 29"
    )


def test_documents_that_are_nested_too_deeply_are_reported(spec: CollectionSpec, world: World) -> None:
    """Readers accept deeper documents than writers."""
    lines = [
        b'{"id":%d,"name":"a","more":%b}' % (depth, b"[" * depth + b"]" * depth) for depth in (249, 250, 1000, 2000)
    ]
    assert ingest(spec, world, json_lines(stream(b"\n".join(lines)))) == (
        "x: 3 documents are not valid:\n"
        "  x:2: it is nested more than 250 levels deep\n"
        "  x:3: it is nested more than 250 levels deep\n"
        "  x:4: not JSON: depth limit exceeded in column 1054"
    )
    assert ingest(spec, world, json_lines(stream(b"\n".join(lines[:3])))) == (
        "x: 2 documents are not valid:\n"
        "  x:2: it is nested more than 250 levels deep\n"
        "  x:3: it is nested more than 250 levels deep"
    )
    assert Ingestion(world.store, spec).load("x", json_lines(stream(lines[0]))) == 1


def test_an_input_that_cannot_be_read_is_reported(spec: CollectionSpec, world: World) -> None:

    def broken() -> Iterator[Line]:
        yield 1, b'{"id":1,"name":"a"}'
        raise OSError(5, "Input/output error")

    assert ingest(spec, world, broken()) == "x cannot be read: Input/output error"


def test_an_input_that_pauses_does_not_lose_its_capability(spec: CollectionSpec, world: World) -> None:
    """While it waits for the next line, its lease is made to end; nobody but the background renews it."""
    other = apsw.Connection(str(world.root / "metadata.db"))
    other.set_busy_timeout(10_000)

    def paused() -> Iterator[Line]:
        yield 1, b'{"id":1,"name":"a"}'
        ended = 1
        other.execute("UPDATE capability SET expires = ?", (ended,))
        while other.execute("SELECT expires FROM capability").get == ended:
            pass
        assert world.store.seal([spec.name], 9_000_000) == {spec.name: 1_000_000}
        yield 2, b'{"id":2,"name":"b"}'

    assert Ingestion(world.store, spec, renew_seconds=0.001).load("x", paused()) == 2
    other.close()
    assert world.store.seal([spec.name], 9_500_000) == {spec.name: 9_500_000}


class InterruptedStore(Store):
    """Ctrl-C comes as soon as documents are committed."""

    @override
    def update_and_downgrade(self, *args: Any, **kwargs: Any) -> Capability:
        super().update_and_downgrade(*args, **kwargs)
        raise KeyboardInterrupt


def test_ctrl_c_after_the_commit_undoes_nothing(world: World, spec: CollectionSpec) -> None:
    store = InterruptedStore(world.root, wall=lambda: world.wall, durable=False)
    with pytest.raises(KeyboardInterrupt):
        Ingestion(store, spec).load("rows", [(1, {"id": 1, "name": "a"})])
    store.close()
    world.store.seal_now([spec.name])

    assert [row[3] for row in world.rows(spec.name)] == ['{"id":1,"name":"a"}']
