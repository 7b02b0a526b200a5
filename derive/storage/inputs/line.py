"""Numbered lines of an input: JSON Lines and CSV, and files that are compressed with gzip or zstd.

The content of a file, and not its name, shows the compression, because no JSON or CSV in UTF-8 begins like these
formats. So standard input can be compressed, too.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, BinaryIO, TypeAlias

from derive.document.exact import dump_exact, parse_exact
from derive.document.pointer import JSON
from derive.errors import DocumentError, UsageError, suggest
from derive.functions.types.jsonb import FEW_VALUES, exceeds_values, most_values
from derive.plural import counted
from derive.protocol.specs import CollectionSpec, Document
from derive.schema.shape import Types, infer

FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
"""Seconds since 1970 of the beginning of year 1 and the end of year 9999, the range of RFC 3339 and Python."""


class UnfitError(Exception):
    """A value or type without a JSON form; the text of the error gives the reason."""


Content: TypeAlias = "bytes | Document | DocumentError"
"""The JSON text of a document, the parsed document, or its error."""

Line: TypeAlias = tuple[int, Content]
"""A line number (or row number), from 1, and its content.

A large document is a text in every input format, so that the length of texts bounds a batch.
"""

NOTHING_INGESTED = "nothing of this file was ingested"
"""Hint of an error that ends an ingestion."""

MOST_DOCUMENT_BYTES = 128 << 20
"""Default limit for the size of a document in an input."""

_LARGE_BYTES = 16 << 10


def sized(document: Document, size: int) -> Content:
    """Return a document as the content of a line: as text if it is large.

    Args:
        document: the document.
        size: approximate size of its text, bytes.
    """
    if size < _LARGE_BYTES:
        return document
    try:
        return dump_exact(document)
    except DocumentError as exc:
        return exc


def too_large(limit: int, noun: str = "the document") -> DocumentError:
    """Return the error of a document beyond the size limit."""
    return DocumentError(
        f"{noun} has more than {_shown(limit)}, the limit of a document: --max-document-mib raises the limit"
    )


def too_many_values(texts: Iterable[bytes], limit: int) -> DocumentError | None:
    """Return the error of JSON texts with too many values for the memory of a parser; None for other texts.

    Args:
        texts: JSON text of a document, or of parts of it.
        limit: size limit of a document in bytes.
    """
    return too_many(limit) if exceeds_values(texts, most_values(limit)) else None


def too_many(limit: int) -> DocumentError:
    """Return the error of a document with too many values."""
    message = f"the document has more than {most_values(limit):,} values, the limit for {_shown(limit)}"
    return DocumentError(f"{message}: --max-document-mib raises the limit")


def _shown(limit: int) -> str:
    return f"{limit >> 20} MiB" if limit >= 1 << 20 and not limit % (1 << 20) else counted(limit, "byte")


BOM = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8."""


def json_lines(stream: BinaryIO, most_bytes: int = MOST_DOCUMENT_BYTES) -> Iterator[Line]:
    """Yield the documents of a JSON Lines stream; blank lines and a byte order mark are skipped.

    A line of more than `most_bytes` is an error, and the stream ends at it. A line of too many values is an error, too.
    """
    lines = iter(partial(stream.readline, most_bytes + 2), b"")
    for number, line in enumerate(lines, start=1):
        if len(line) > most_bytes and len(line.rstrip(b"\r\n")) > most_bytes:
            yield number, too_large(most_bytes, "the line")
            return
        text = line.removeprefix(BOM) if number == 1 else line
        if text and not text.isspace():
            yield number, (too_many_values([text], most_bytes) if len(text) > FEW_VALUES else None) or text


SUFFIXES = {".gz": "gzip", ".zst": "zstd"}
"""The codec of a file according to the suffix of its name."""

_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def unpacked(stream: io.BufferedReader, name: str) -> io.BufferedReader[Any]:
    """Return the decompressed content of a stream.

    Args:
        stream: the stream at its beginning; the caller closes it.
        name: name of the file, for messages and for its suffix.

    Raises:
        UsageError: the content contradicts the suffix, or the text is UTF-16.
        DocumentError: during reading: the compressed data is damaged or truncated.
    """
    codec = packed_as(stream.peek(4)[:4])
    promised = next((codec for suffix, codec in SUFFIXES.items() if name.endswith(suffix)), None)
    if promised and codec is None:
        raise UsageError(f"{name} is not {promised}, but its name says so", hint="rename the file")
    text = io.BufferedReader(_Unpacked(stream, codec, name), 1 << 17) if codec else stream
    if text.peek(2)[:2] in _UTF16:
        raise UsageError(f"{name} is UTF-16", hint="JSON and CSV are UTF-8: iconv -f utf-16 -t utf-8")
    return text


def packed_as(head: bytes) -> str | None:
    """Return the codec of compressed data by its first four bytes; None for other data."""
    return next((codec for magic, codec in _MAGIC.items() if head.startswith(magic)), None)


class _Unpacked(io.RawIOBase):
    """Decompresses on read, and counts the lines."""

    def __init__(self, stream: BinaryIO, codec: str, name: str) -> None:
        import pyarrow as pa

        self._source = pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), codec)
        self._codec = codec
        self._name = name
        self._lines = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            chunk: bytes = self._source.read(len(buffer))
        except OSError as exc:
            is_cut = "Truncated" in str(exc)
            what = (
                f"ends before its {self._codec} data is complete" if is_cut else f"is damaged {self._codec} data: {exc}"
            )
            raise DocumentError(
                f"{self._name} {what}; whole lines up to there: {self._lines:,}", hint=NOTHING_INGESTED
            ) from exc
        self._lines += chunk.count(b"\n")
        buffer[: len(chunk)] = chunk
        return len(chunk)


_OTHER_THAN_TEXT = frozenset({"integer", "fractional", "boolean", "object", "array"})
_LARGEST_CELL = (1 << 31) - 1


def csv_rows(
    stream: BinaryIO,
    spec: CollectionSpec,
    name: str,
    most_bytes: int = MOST_DOCUMENT_BYTES,
    delimiter: str = ",",
    *,
    skipped: int = 0,
) -> Iterator[Line]:
    """Yield the documents of a CSV stream with a header: a column is a field with the type that the schema infers.

    An empty cell is omitted. A number becomes a JSON number if the schema allows numbers. A row of more than
    `most_bytes` is an error, and the stream ends at it. `skipped` lines of the file between the header and the other
    rows are not in the stream.

    Raises:
        DocumentError: the header is empty, names a column twice, or lacks a required column; or the stream is not CSV
            in UTF-8.
    """

    def types_of(header: list[str]) -> list[Types]:
        _check_header(header, spec, name)
        return _types(header, spec)

    return typed_rows(stream, types_of, name, most_bytes, delimiter, skipped=skipped)


def typed_rows(
    stream: BinaryIO,
    types_of: Callable[[list[str]], list[Types]],
    name: str,
    most_bytes: int = MOST_DOCUMENT_BYTES,
    delimiter: str = ",",
    *,
    skipped: int = 0,
) -> Iterator[Line]:
    """Yield the documents of a CSV stream with a header, as `csv_rows`.

    Args:
        stream: the text.
        types_of: returns the JSON types of the columns in the header, or raises an error.
        name: name of the file, for messages.
        most_bytes: size limit of a row.
        delimiter: the character between cells.
        skipped: number of lines of the file that the stream lacks after the header.
    """
    csv.field_size_limit(_LARGEST_CELL)
    texts = _Texts(stream, most_bytes)
    reader = csv.reader(texts, strict=True, delimiter=delimiter)
    try:
        header = next(reader, [])
        columns = list(zip(header, types_of(header), strict=True))
        texts.size = 0
        for row in reader:
            size, texts.size = texts.size, 0
            if not row:
                continue  # a blank line
            if len(row) != len(columns):
                cells = counted(len(row), "cell")
                yield (
                    skipped + reader.line_num,
                    DocumentError(f"the line has {cells}, but the header names {counted(len(columns), 'column')}"),
                )
                continue
            if size > FEW_VALUES and (error := too_many_values(map(str.encode, row), most_bytes)):
                yield skipped + reader.line_num, error
                continue
            document = {
                column: _typed(cell, kinds) for cell, (column, kinds) in zip(row, columns, strict=True) if cell != ""
            }
            yield skipped + reader.line_num, sized(document, size)
    except _TooLargeError:
        yield skipped + texts.lines, too_large(most_bytes, "the row")
    except csv.Error as exc:
        line = skipped + reader.line_num
        raise DocumentError(f"{name}:{line}: the file is not CSV: {exc}", hint=NOTHING_INGESTED) from exc
    except UnicodeDecodeError as exc:
        line = skipped + reader.line_num + 1
        raise DocumentError(f"{name}:{line}: the file is not UTF-8", hint=NOTHING_INGESTED) from exc


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


def check_columns(header: Sequence[str], name: str, *, is_shown: bool = True) -> None:
    """Raise an error for a header that is empty or names a column twice.

    Args:
        header: the first line.
        name: name of the file.
        is_shown: whether the message may have values: the first line of a file without a header is data.

    Raises:
        DocumentError: the header is empty or names a column twice.
    """
    if not header:
        raise DocumentError(f"{name} has no header line", hint="the first line must name the columns")
    seen: set[str] = set()
    for column in header:
        if column in seen:
            shown = f"'{column}'" if is_shown else "a column"
            raise DocumentError(f"{name}:1: the header names {shown} twice", hint=NOTHING_INGESTED)
        seen.add(column)


def _check_header(header: Sequence[str], spec: CollectionSpec, name: str) -> None:
    check_columns(header, name, is_shown=spec.redaction is None)
    missing = sorted(infer(spec.write_schema).required - set(header))
    if missing:
        listed = ", ".join(f"'{name}'" for name in missing)
        shown = f": {','.join(header)[:200]}" if spec.redaction is None else ""
        raise DocumentError(
            (
                f"{name}:1: '{spec.name}' requires {listed}, but the header does not name"
                f" {'it' if len(missing) == 1 else 'them'}{shown}"
            ),
            hint=separator_hint(header, missing)
            or (_spelling_hint(header, spec, missing) if spec.redaction is None else None)
            or "the first line must name the columns",
        )


def separator_hint(header: Sequence[str], missing: Sequence[str] = ()) -> str | None:
    """Return a hint if the header has one column, and names several with another separator; None otherwise.

    Args:
        header: the columns.
        missing: columns that have to be among the several columns.
    """
    for separator, shown in {";": "';'", "|": "'|'", ",": "','", "\t": "tab"}.items():
        names = {name.strip('" ') for name in header[0].split(separator)}
        if len(header) == 1 and len(names) > 1 and names.issuperset(missing):
            return f"another character is between the columns: --delimiter {shown}"
    return None


def _spelling_hint(header: Sequence[str], spec: CollectionSpec, missing: Sequence[str]) -> str | None:
    """Return a hint if unknown columns of the header are spelt like missing columns; None otherwise."""
    unknown = set(header) - set(infer(spec.write_schema).properties)
    guesses = {suggest(column, missing) for column in unknown if column}
    meant = " and ".join(f"'{name}'" for name in missing if name in guesses)
    return f"did you mean {meant}?" if meant else None


def _types(header: Sequence[str], spec: CollectionSpec) -> list[Types]:
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
