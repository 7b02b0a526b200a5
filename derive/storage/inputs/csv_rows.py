"""CSV input: a header with column names, and one document per row."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from derive.document.exact import parse_exact
from derive.document.pointer import JSON
from derive.errors import DocumentError
from derive.functions.types.jsonb import FEW_VALUES
from derive.protocol.specs import CollectionSpec
from derive.schema.shape import infer
from derive.storage.inputs.line import (
    MOST_DOCUMENT_BYTES,
    NOTHING_INGESTED,
    Line,
    sized,
    too_large,
    too_many_values,
)

_OTHER_THAN_TEXT = frozenset({"integer", "fractional", "boolean", "object", "array"})
_LARGEST_CELL = (1 << 31) - 1


def csv_rows(
    stream: BinaryIO, spec: CollectionSpec, name: str, most_bytes: int = MOST_DOCUMENT_BYTES
) -> Iterator[Line]:
    """Yield the documents of a CSV stream with a header: a column is a field with the type that the schema infers.

    An empty cell is omitted. A number becomes a JSON number if the schema allows numbers. A row of more than
    `most_bytes` is an error, and the stream ends at it.

    Raises:
        DocumentError: the header is empty, names a column twice, or lacks a required column; or the stream is not CSV
            in UTF-8.
    """
    csv.field_size_limit(_LARGEST_CELL)
    texts = _Texts(stream, most_bytes)
    reader = csv.reader(texts, strict=True)
    try:
        header = next(reader, [])
        _check_header(header, spec, name)
        columns = list(zip(header, _types(header, spec), strict=True))
        texts.size = 0
        for row in reader:
            size, texts.size = texts.size, 0
            if not row:
                continue  # a blank line
            if len(row) != len(columns):
                cells = "1 cell" if len(row) == 1 else f"{len(row)} cells"
                yield (
                    reader.line_num,
                    DocumentError(f"the line has {cells}, but the header names {len(columns)} columns"),
                )
                continue
            if size > FEW_VALUES and (error := too_many_values(map(str.encode, row), most_bytes)):
                yield reader.line_num, error
                continue
            document = {
                column: _typed(cell, kinds) for cell, (column, kinds) in zip(row, columns, strict=True) if cell != ""
            }
            yield reader.line_num, sized(document, size)
    except _TooLargeError:
        yield texts.lines, too_large(most_bytes, "the row")
    except csv.Error as exc:
        raise DocumentError(f"{name}:{reader.line_num}: the file is not CSV: {exc}", hint=NOTHING_INGESTED) from exc
    except UnicodeDecodeError as exc:
        raise DocumentError(f"{name}:{reader.line_num + 1}: the file is not UTF-8", hint=NOTHING_INGESTED) from exc


class _TooLargeError(Exception):
    """A row exceeds the size limit."""


class _Texts:
    """Lines of a stream as texts.

    Attributes:
        lines: number of lines read.
        size: number of bytes read since the attribute was set to 0.
    """

    def __init__(self, stream: BinaryIO, most_bytes: int) -> None:
        self._stream, self._most_bytes = stream, most_bytes
        self.lines = self.size = 0

    def __iter__(self) -> _Texts:
        return self

    def __next__(self) -> str:
        line = self._stream.readline(self._most_bytes - self.size + 3)
        if not line:
            raise StopIteration
        self.lines += 1
        if self.size + len(line) > self._most_bytes and self.size + len(line.rstrip(b"\r\n")) > self._most_bytes:
            raise _TooLargeError
        self.size += len(line)
        return line.decode("utf-8-sig") if self.lines == 1 else line.decode()


def _check_header(header: Sequence[str], spec: CollectionSpec, name: str) -> None:
    if not header:
        raise DocumentError(f"{name} has no header line", hint="the first line must name the columns")
    seen: set[str] = set()
    for column in header:
        if column in seen:
            # The first line of a file without a header is data.
            shown = f"'{column}'" if spec.redaction is None else "a column"
            raise DocumentError(f"{name}:1: the header names {shown} twice", hint=NOTHING_INGESTED)
        seen.add(column)
    missing = sorted(infer(spec.write_schema).required - set(header))
    if missing:
        listed = ", ".join(f"'{name}'" for name in missing)
        shown = f": {','.join(header)[:200]}" if spec.redaction is None else ""
        raise DocumentError(
            (
                f"{name}:1: '{spec.name}' requires {listed}, but the header does not name"
                f" {'it' if len(missing) == 1 else 'them'}{shown}"
            ),
            hint="the first line must name the columns",
        )


def _types(header: Sequence[str], spec: CollectionSpec) -> list[frozenset[str]]:
    """Return the types that the values of each column may have before redaction."""
    if spec.redaction is not None:
        members = map(infer(spec.input_schema).member, header)
        return [frozenset({"string"}) if member is None else member.types for member in members]
    types = {projection.field: projection.types for projection in spec.projections}
    return [types.get(column, frozenset({"string"})) for column in header]


def _typed(cell: str, types: frozenset[str]) -> JSON:
    if types & _OTHER_THAN_TEXT:
        try:
            value = parse_exact(cell.encode())
        except ValueError:
            return cell
        return cell if isinstance(value, str) else value
    return cell
