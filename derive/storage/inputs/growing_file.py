"""Growing files of JSON Lines and CSV: their complete lines after a position.

A line is complete when its line break is in the file, and a row of CSV when it also ends outside of quotes. The
checksum of a position covers the first and the last bytes before it, so a file that was replaced or truncated is
recognized. The checksum is compared after the lines were read: lines that a truncation has replaced meanwhile are not
returned.
"""

from __future__ import annotations

import csv
import io
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from derive.errors import DocumentError
from derive.protocol.specs import CollectionSpec
from derive.storage.inputs.line import Line, csv_rows, json_lines, packed_as
from derive.storage.metadata.followed import FilePosition

PIECE_BYTES = 4 << 20
"""Number of bytes of a file that are read at once."""

_MARK_BYTES = 4096
"""Size of each end of the content before a position that its checksum covers."""

NOTHING_LOST = "the lines before it are ingested; mend the file, and its other lines are ingested"
"""Hint of a defect in a followed file."""


@dataclass(frozen=True, slots=True)
class LineFormat:
    """Format of a growing file.

    Attributes:
        is_csv: whether lines are CSV with a header; else each line is a JSON document.
        delimiter: the character between cells of CSV.
        most_bytes: size limit of a line or row.
    """

    is_csv: bool
    delimiter: str
    most_bytes: int


@dataclass(frozen=True, slots=True)
class FilePart:
    """Complete lines of a growing file.

    Attributes:
        name: name of the file, for messages.
        before: stored position of the file; None for a file without one.
        begin: position at which the part begins.
        lines: function that returns the documents of the part with their line numbers.
        after: function that returns the position after a number of lines of the file; None for the whole part.
    """

    name: str
    before: FilePosition | None
    begin: FilePosition
    lines: Callable[[], Iterator[Line]]
    after: Callable[[int | None], FilePosition]


def opened(path: str) -> int:
    """Return a descriptor of a file; the opening of a pipe does not wait."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def is_at(descriptor: int, position: FilePosition) -> bool:
    """Return true if a file begins with the content that was read before a position."""
    if os.fstat(descriptor).st_size < position.offset:
        return False
    return _checksum(position.offset, *_marks(descriptor, position.offset)) == position.checksum


def next_part(
    descriptor: int, name: str, form: LineFormat, spec: CollectionSpec, move: tuple[FilePosition | None, FilePosition]
) -> FilePart | None:
    """Return the complete lines after a position, about `PIECE_BYTES` at most; None without complete lines.

    Args:
        descriptor: the open file.
        name: name of the file, for messages.
        form: format of the file.
        spec: the collection.
        move: the stored position, and the position at which to begin.

    Raises:
        DocumentError: the file is compressed, or its next line is too long.
        OSError: the file cannot be read.
    """
    before, begin = move
    if begin.offset == 0 and (codec := packed_as(os.pread(descriptor, 4, 0))):
        raise DocumentError(f"{name} is {codec} data, which cannot be followed", hint="write it without compression")
    header = _header(descriptor, form) if form.is_csv and begin.offset else b""
    data = _complete(descriptor, name, form, begin)
    if not data:
        return None
    head, tail = _marks(descriptor, begin.offset)

    def lines() -> Iterator[Line]:
        stream = io.BytesIO(header + data)
        skipped = begin.lines - header.count(b"\n")
        if form.is_csv:
            return csv_rows(stream, spec, name, form.most_bytes, form.delimiter, skipped=skipped)
        return ((number + skipped, content) for number, content in json_lines(stream, form.most_bytes))

    def after(line: int | None) -> FilePosition:
        read = data if line is None else data[: _end_of(data, line - begin.lines)]
        offset = begin.offset + len(read)
        checksum = _checksum(offset, (head + read)[:_MARK_BYTES], (tail + read)[-_MARK_BYTES:])
        return replace(begin, offset=offset, lines=begin.lines + read.count(b"\n"), checksum=checksum)

    return FilePart(name, before, begin, lines, after)


def _complete(descriptor: int, name: str, form: LineFormat, begin: FilePosition) -> bytes:
    """Return the bytes of complete lines."""
    size = PIECE_BYTES
    while True:
        data = os.pread(descriptor, size, begin.offset)
        if (end := complete_bytes(data, form)) or len(data) < size:
            return data[:end]
        if len(data) > form.most_bytes:
            line = begin.lines + 1
            raise DocumentError(f"{name}:{line}: a line has more than {form.most_bytes:,} bytes", hint=NOTHING_LOST)
        size *= 2


def complete_bytes(data: bytes, form: LineFormat) -> int:
    r"""Return the size of the complete lines at the beginning of some bytes.

    >>> complete_bytes(b'a,"b\nc"\nd,"e\n', LineFormat(is_csv=True, delimiter=",", most_bytes=100))
    8
    """
    end = data.rfind(b"\n") + 1
    if not form.is_csv or b'"' not in data:
        return end
    rows = _Rows(data[:end])
    try:
        for _ in csv.reader(rows, strict=True, delimiter=form.delimiter):
            rows.mark = rows.read
    except csv.Error as exc:
        return rows.mark if str(exc) == "unexpected end of data" else end  # other errors belong to the reader of rows
    return rows.mark


class _Rows:
    """Lines of CSV as texts.

    Attributes:
        read: number of bytes read.
        mark: number of bytes in complete rows.
    """

    def __init__(self, data: bytes) -> None:
        self._lines = io.BytesIO(data)
        self.read = self.mark = 0

    def __iter__(self) -> _Rows:
        return self

    def __next__(self) -> str:
        line = self._lines.readline()
        if not line:
            raise StopIteration
        self.read += len(line)
        return line.decode(errors="replace")


def _header(descriptor: int, form: LineFormat) -> bytes:
    """Return the first row of CSV, which was complete before."""
    size = 1 << 14
    while True:
        rows = _Rows(os.pread(descriptor, size, 0))
        list(islice(csv.reader(rows, delimiter=form.delimiter), 1))
        data = os.pread(descriptor, rows.read, 0)
        if data.endswith(b"\n") or rows.read < size:
            return data
        size *= 2


def _end_of(data: bytes, lines: int) -> int:
    """Return the size of a number of lines at the beginning of some bytes."""
    end = 0
    for _ in range(lines):
        end = data.index(b"\n", end) + 1
    return end


def _marks(descriptor: int, offset: int) -> tuple[bytes, bytes]:
    """Return the first bytes of a file, and the last bytes before an offset."""
    size = min(offset, _MARK_BYTES)
    return os.pread(descriptor, size, 0), os.pread(descriptor, size, offset - size)


def _checksum(offset: int, head: bytes, tail: bytes) -> int:
    return zlib.crc32(tail, zlib.crc32(head)) if offset > _MARK_BYTES else zlib.crc32(head)
