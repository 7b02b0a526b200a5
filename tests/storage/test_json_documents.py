"""Streams of JSON documents: arrays, and documents with any whitespace within and between them."""

from __future__ import annotations

import io
import random
from typing import Any

import orjson
import pytest
from typing_extensions import override

from derive.errors import DocumentError
from derive.storage.inputs.json_documents import is_one_document, json_documents


class Trickle(io.BytesIO):
    """A stream that gives few bytes at a time, as a pipe may."""

    def __init__(self, content: bytes, rng: random.Random) -> None:
        super().__init__(content)
        self._rng = rng
        self.largest = 0

    @override
    def read(self, size: int | None = -1, /) -> bytes:
        self.largest = max(self.largest, size or 0)
        return super().read(self._rng.randint(1, 7))


def shown(content: bytes, most_bytes: int = 1 << 20) -> list[Any]:
    """Return the documents, with the texts of those that are no JSON, and the messages of errors."""
    result: list[Any] = []
    for number, line in json_documents(io.BytesIO(content), most_bytes):
        if isinstance(line, DocumentError):
            result.append((number, line.message))
            continue
        assert isinstance(line, bytes)
        try:
            result.append((number, orjson.loads(line)))
        except ValueError:
            result.append((number, line))
    return result


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b" \n\t\r\n", []),
        (b"[]", []),
        (b"\xef\xbb\xbf[\n]\n[ ]", []),
        (b'{"a":1}', [(1, {"a": 1})]),
        (b'{"a":1}{"b":[{}]}\n\n{"c":\n"}"}', [(1, {"a": 1}), (1, {"b": [{}]}), (3, {"c": "}"})]),
        (b'[\n{"a":1},\n\n{"b":{\n"c":[1,2]}}\n,{}]', [(2, {"a": 1}), (4, {"b": {"c": [1, 2]}}), (6, {})]),
        (b'[{"a":1}] {"b":2} [{"c":3}]', [(1, {"a": 1}), (1, {"b": 2}), (1, {"c": 3})]),
        (rb'{"a":"\"}{\\"}{"\\\"":1}', [(1, {"a": '"}{\\'}), (1, {'\\"': 1})]),
        (b'[[1,{"a":1}],2,null]', [(1, [1, {"a": 1}]), (1, 2), (1, None)]),
        (b'[{"a":1} {"b":2}]', [(1, {"a": 1}), (1, "expected ',' or ']', but found '{' in column 10")]),
        (b'[{"a":1},\n ]', [(1, {"a": 1}), (2, "expected a document, but found ']' in column 2")]),
        (b'[\n,{"a":1}]', [(2, "expected a document, but found ',' in column 1")]),
        (b'{"a":1},{"b":2}', [(1, {"a": 1}), (1, "expected a document, but found ',' in column 8")]),
        (b'\n[{"a":1},\n', [(2, {"a": 1}), (3, "the array that begins in line 2 does not end")]),
        (b'{"a":1]}', [(1, b'{"a":1]'), (1, "expected a document, but found '}' in column 8")]),
        (b'{"a":1}\n{"b":[2}\n{"c":3}', [(1, {"a": 1}), (2, b'{"b":[2}\n{"c":3}')]),
        (b'{"a":"b\n', [(1, b'{"a":"b\n')]),
        (b'[\n  {"a": x}]', [(2, b'  {"a": x}')]),  # with its columns
    ],
)
def test_documents_of_a_stream_have_the_lines_where_they_begin(content: bytes, expected: list[Any]) -> None:
    assert shown(content) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"a":"0123456789"}', [(1, {"a": "0123456789"})]),
        (b'{}\n{"a":"0123456789A"}{}', [(1, {}), (2, "the document has more than 18 bytes, the limit of a document: --max-document-mib raises the limit")]),
        (b'[{"a":"' + b"x" * 999, [(1, "the document has more than 18 bytes, the limit of a document: --max-document-mib raises the limit")]),
        (b"1" * 99, [(1, "the document has more than 18 bytes, the limit of a document: --max-document-mib raises the limit")]),
    ],
)  # fmt: skip
def test_stream_ends_at_a_document_beyond_the_limit(content: bytes, expected: list[Any]) -> None:
    assert shown(content, 18) == expected


@pytest.mark.parametrize("seed", range(20))
def test_documents_do_not_depend_on_the_parts_of_the_stream(seed: int) -> None:
    rng = random.Random(seed)
    texts = ["}", '"', "\\", "{[", "a\n", "é", ""]
    documents = [
        {rng.choice(texts): rng.choice([rng.choice(texts), [{}], {"x": [rng.choice(texts)]}, 1])} for _ in range(20)
    ]
    option = rng.choice([0, orjson.OPT_INDENT_2])
    is_array = rng.random() < 0.5
    between = [rng.choice([b"", b" ", b"\n", b"\r\n\t"]) for _ in documents]
    parts = [space + orjson.dumps(document, option=option) for space, document in zip(between, documents, strict=True)]
    content = b"[" + b",".join(parts) + b"]" if is_array else b"".join(parts)

    lines = list(json_documents(Trickle(content, rng)))

    assert [orjson.loads(text) for _, text in lines if isinstance(text, bytes)] == documents
    assert lines == list(json_documents(io.BytesIO(content)))


def test_stream_is_read_in_parts_of_bounded_size() -> None:
    stream = Trickle(b'[{"a":1}' + b',\n{"a":1}' * 2_000 + b"]", random.Random(0))

    assert sum(1 for _ in json_documents(stream)) == 2_001
    assert stream.largest == 1 << 18


@pytest.mark.parametrize(
    ("line", "is_one"),
    [(b'{"a":"{"}', True), (b'{"a":1}{"b":2}', True), (b"{", False), (b'[{"a":1}]', False), (b'{"a":NaN}', True), (b"x", True)],
)  # fmt: skip
def test_first_line_decides_between_lines_and_a_stream(line: bytes, is_one: bool) -> None:
    assert is_one_document(line) == is_one
