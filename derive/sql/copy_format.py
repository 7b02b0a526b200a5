"""Formats of COPY: PostgreSQL's text, CSV and binary."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from derive.algebra.types import Datum, Row, Type, TypeModifier
from derive.errors import SqlError
from derive.functions.scalar.casts import fitted
from derive.functions.types.type_info import (
    READ_IN_ZONE,
    binary_function,
    datum_in_zone,
    datum_of_binary,
    datum_of_text,
    text_function,
)
from derive.sql.copy_columns import columns_of_lines, data_of
from derive.sql.parser.statement import CopyFormat
from derive.sql.results import CopyOut, ResultColumn

SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_HEADER = struct.Struct("!Ii")
_COUNT, _SIZE = struct.Struct("!h"), struct.Struct("!i")
_NULL, _TRAILER = _SIZE.pack(-1), _COUNT.pack(-1)
_CRITICAL_FLAGS = 0xFFFF0000
_NO_OIDS = "The format with oids is of PostgreSQL before version 12."


class BinaryCopyOut:
    """Encoder of rows; the signature precedes the first output.

    Args:
        columns: columns of the rows.
    """

    def __init__(self, columns: Sequence[ResultColumn]) -> None:
        self._encoders = [binary_function(column.type, column.modifier) for column in columns]
        self._count = _COUNT.pack(len(columns))
        self._signature = SIGNATURE + _HEADER.pack(0, 0)

    def lines(self, rows: Sequence[Row]) -> list[bytes]:
        """Return the bytes of each row."""
        return [self._begun(self._row(row)) for row in rows]

    def end(self) -> bytes:
        """Return the trailer after the last row."""
        return self._begun(_TRAILER)

    def _begun(self, data: bytes) -> bytes:
        signature, self._signature = self._signature, b""
        return signature + data

    def _row(self, row: Row) -> bytes:
        parts = [self._count]
        for datum, encode in zip(row, self._encoders, strict=True):
            if datum is None:
                parts.append(_NULL)
            else:
                data = encode(datum)
                parts += (_SIZE.pack(len(data)), data)
        return b"".join(parts)


class BinaryCopyIn:
    """Decoder of rows from a client.

    Args:
        relation: name of the target relation, for messages.
        columns: columns of each row.

    Methods raise `SqlError`: 22P04 for an invalid format; 22P03 and others for invalid values.
    """

    def __init__(self, relation: str, columns: Sequence[ResultColumn]) -> None:
        self._relation, self._columns = relation, columns
        self._rest = b""
        self._has_begun = self._is_ended = False
        self._rows = 0

    def feed(self, piece: bytes) -> list[Row]:
        """Return the rows that are complete with one more piece."""
        if self._is_ended and piece:
            raise self._error("received copy data after EOF marker")
        data = self._rest + piece
        at = 0
        if not self._has_begun:
            at = self._begin(data)
        rows: list[Row] = []
        while self._has_begun and not self._is_ended:
            row, end = self._row(data, at)
            if end is None:
                break
            at = end
            if row is not None:
                rows.append(row)
        if self._is_ended and at < len(data):
            raise self._error("received copy data after EOF marker")
        self._rest = data[at:]
        return rows

    def finish(self) -> list[Row]:
        """Check that the data are complete."""
        if not self._has_begun:
            raise self._error("COPY file signature not recognized")
        # bytes that are too few for a count begin no row, and the trailer is optional
        if len(self._rest) >= _COUNT.size:
            raise self._error("unexpected EOF in COPY data")
        return []

    def _begin(self, data: bytes) -> int:
        """Read the header if it is complete, and return the offset of the first row."""
        if not SIGNATURE.startswith(data[: len(SIGNATURE)]):
            raise self._error("COPY file signature not recognized")
        at = len(SIGNATURE) + _HEADER.size
        if len(data) < at:
            return 0
        flags, size = _HEADER.unpack_from(data, len(SIGNATURE))
        if flags & _CRITICAL_FLAGS:
            hint = _NO_OIDS if flags & (1 << 16) else None
            raise self._error("unrecognized critical flags in COPY file header", hint)
        if size < 0:
            raise self._error("invalid COPY file header (missing length)")
        if len(data) < at + size:
            return 0
        self._has_begun = True
        return int(at + size)

    def _row(self, data: bytes, at: int) -> tuple[Row | None, int | None]:
        """Return a row and its end. The end is None if the row is incomplete, and the row is None at the trailer."""
        if len(data) < at + _COUNT.size:
            return None, None
        count = _COUNT.unpack_from(data, at)[0]
        at += _COUNT.size
        if count == -1:
            self._is_ended = True
            return None, at
        if count != len(self._columns):
            raise self._error(f"row field count is {count}, expected {len(self._columns)}", row=self._rows + 1)
        values: list[bytes | None] = []
        for _ in range(count):
            if len(data) < at + _SIZE.size:
                return None, None
            size = _SIZE.unpack_from(data, at)[0]
            at += _SIZE.size
            if size < -1:
                raise self._error("invalid field size", row=self._rows + 1)
            if size > len(data) - at:
                return None, None
            values.append(None if size == -1 else data[at : at + size])
            at += max(size, 0)
        self._rows += 1
        return tuple(map(self._datum, values, self._columns)), at

    def _datum(self, value: bytes | None, column: ResultColumn) -> Datum:
        if value is None:
            return None
        try:
            datum = datum_of_binary(column.type, value)
            return fitted(column.type, column.modifier, datum) if column.modifier else datum
        except SqlError as exc:
            where = f"COPY {self._relation}, line {self._rows}, column {column.name}"
            raise SqlError(exc.sqlstate, exc.message, detail=where) from exc

    def _error(self, message: str, hint: str | None = None, *, row: int | None = None) -> SqlError:
        where = f"COPY {self._relation}" + (f", line {row}" if row else "")
        return SqlError("22P04", message, detail=where, hint=hint)


_LETTERS = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_ESCAPED = re.compile(rb"[\\\b\f\n\r\t\v]")
_ESCAPES = {value: b"\\" + letter for letter, value in _LETTERS.items()} | {b"\\": b"\\\\"}
_UNESCAPED = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_END = b"\\."
_MARKER = re.compile(rb"(?<!\\)(?:\\\\)*\\\.")
_SHOWN_CHARACTERS = 100


# Output


def copy_out(form: CopyFormat, columns: Sequence[ResultColumn]) -> CopyOut:
    """Return the encoder of rows with these columns."""
    if form.name == "binary":
        written = BinaryCopyOut(columns)
        return CopyOut(written.lines, end=written.end, is_binary=True)
    delimiter, null, end = form.delimiter.encode(), form.null.encode(), b"\n"
    write = _csv_value(form, len(columns)) if form.name == "csv" else _text_value(form)
    texts = [text_function(column.type, column.modifier) for column in columns]

    def line(row: Row) -> bytes:
        values = zip(row, texts, strict=True)
        return delimiter.join(null if datum is None else write(text(datum).encode()) for datum, text in values) + end

    header = delimiter.join(write(column.name.encode()) for column in columns) + end if form.has_header else None
    return CopyOut(lambda rows: [line(row) for row in rows], header)


def _text_value(form: CopyFormat) -> Callable[[bytes], bytes]:
    delimiter = form.delimiter.encode()

    def write(value: bytes) -> bytes:
        escaped = _ESCAPED.sub(lambda match: _ESCAPES[match[0]], value)
        return escaped if delimiter == b"\t" else escaped.replace(delimiter, b"\\" + delimiter)

    return write


def _csv_value(form: CopyFormat, width: int) -> Callable[[bytes], bytes]:
    quote, escape, null = (text.encode() for text in (form.quote, form.escape, form.null))
    quoted = re.compile(b"[" + re.escape(form.delimiter.encode() + quote) + rb"\r\n]")

    def write(value: bytes) -> bytes:
        if value != null and not quoted.search(value) and not (width == 1 and value == _END):
            return value
        if escape != quote:
            value = value.replace(escape, escape * 2)
        return quote + value.replace(quote, escape + quote) + quote

    return write


# Input


class CopyIn:
    """Decoder of rows from a client.

    Args:
        form: format of the data.
        relation: name of the target relation, for messages.
        columns: name and type of each value of a line.
        lines: number of lines before these data.
        modifiers: type modifiers of the columns; empty for none.
        zone: time zone of times without a zone; None for UTC.

    Attributes:
        lines: number of lines so far.

    Methods raise `SqlError`: 22P04 for an invalid format; 22P02 and others for invalid values; 22021 for text that is
    not UTF-8.
    """

    def __init__(
        self,
        form: CopyFormat,
        relation: str,
        columns: Sequence[tuple[str, Type]],
        lines: int = 0,
        modifiers: Sequence[TypeModifier | None] = (),
        zone: str | None = None,
    ) -> None:
        self._form = form
        self._zone = zone
        self._relation = relation
        self._columns = columns
        self._modifiers = modifiers or (None,) * len(columns)
        self._rest = b""
        self.lines = lines
        self._end: bytes | None = None
        self._is_ended = False
        self._null = form.null.encode()
        self._split = self._csv_values if form.name == "csv" else self._text_values

    def feed(self, piece: bytes) -> list[Row]:
        """Return the rows that are complete with one more piece."""
        if self._is_ended:
            return []
        data = self._rest + piece
        if self.lines:
            many = self._many(data)
            if many is not None:
                return many
        rows: list[Row] = []
        begin = 0
        for end in self._ends(data):
            is_first = not self.lines
            rows += self._rows(data[begin:end])
            begin = end + 1
            if is_first and not self._is_ended:  # the first line tells how lines end
                self._rest = b""
                return rows + self.feed(data[begin:])
        self._rest = data[begin:]
        return rows

    def _many(self, data: bytes) -> list[Row] | None:
        """Return the rows of the complete lines of data; None if each line must be read by itself."""
        end = data.rfind(b"\n") + 1
        if self._end or not end:
            return None
        try:
            texts = columns_of_lines(data[:end], self._form, len(self._columns), _unescaped_text)
            if texts is None:
                return None
            columns = [
                data_of(kind, column, partial(self._datum_of, kind, modifier), is_plain=modifier is None)
                for column, (_, kind), modifier in zip(texts, self._columns, self._modifiers, strict=True)
            ]
        except (SqlError, UnicodeDecodeError):
            return None
        self._rest, self._end = data[end:], b""
        self.lines += len(columns[0])
        return list(zip(*columns, strict=True))

    def skip(self, data: bytes) -> int:
        """Return the number of bytes in the incomplete last line."""
        begin = 0
        for end in self._ends(data):
            begin = end + 1
        return len(data) - begin

    def finish(self) -> list[Row]:
        """Return the row of a last line without a line feed."""
        rest, self._rest = self._rest, b""
        if not rest or self._is_ended:
            return []
        if rest == _END and self._form.name == "text":
            raise self._error("22P04", "end-of-copy marker is not alone on its line")
        is_header = self._form.has_header and self.lines == 0
        if self._form.name == "csv" and not is_header and self._is_in_quotes(rest):
            self._text(rest)
            raise self._error("22P04", "unterminated CSV quoted field")
        return list(self._rows(rest))

    def _ends(self, data: bytes) -> Iterator[int]:
        """Yield the ends of lines: line feeds outside values."""
        begin, end = 0, data.find(b"\n")
        while end >= 0:
            line = data[begin:end]
            if not (self._is_in_quotes(line) if self._form.name == "csv" else _is_escaping(line)):
                yield end
                begin = end + 1
            end = data.find(b"\n", end + 1)

    def _is_in_quotes(self, line: bytes) -> bool:
        quote, escape = self._form.quote.encode(), self._form.escape.encode()
        if escape != quote:
            line = line.replace(escape + escape, b"").replace(escape + quote, b"")
        return line.count(quote) % 2 == 1

    def _rows(self, line: bytes) -> Iterator[Row]:
        self.lines += 1
        self._text(line)
        if self._end is None:
            self._end = b"\r" if line.endswith(b"\r") else b""
        if self._end and line.endswith(self._end):
            line = line[:-1]
        if self._form.name == "text" and _MARKER.search(line):
            if line != _END:
                raise self._error("22P04", "end-of-copy marker is not alone on its line")
            self._is_ended = True
        if self._is_ended or (self.lines == 1 and self._form.has_header):
            return
        yield self._row(self._split(line))

    def _row(self, values: Sequence[bytes | None]) -> Row:
        if len(values) > len(self._columns):
            raise self._error("22P04", "extra data after last expected column")
        row = tuple(map(self._datum, values, self._columns, self._modifiers))
        if len(row) < len(self._columns):
            raise self._error("22P04", f'missing data for column "{self._columns[len(row)][0]}"')
        return row

    def _datum(self, value: bytes | None, column: tuple[str, Type], modifier: TypeModifier | None) -> Datum:
        if value is None:
            return None
        name, kind = column
        text = self._text(value, name)
        try:
            return self._datum_of(kind, modifier, text)
        except SqlError as exc:
            raise self._error(exc.sqlstate, exc.message, f'{name}: "{text[:_SHOWN_CHARACTERS]}"') from exc

    def _datum_of(self, kind: Type, modifier: TypeModifier | None, text: str) -> Datum:
        is_zoned = self._zone is not None and kind in READ_IN_ZONE
        datum = datum_in_zone(kind, text, self._zone or "UTC") if is_zoned else datum_of_text(kind, text)
        return fitted(kind, modifier, datum) if modifier else datum

    def _text(self, data: bytes, column: str | None = None) -> str:
        try:
            text = data.decode()
        except UnicodeDecodeError as exc:
            shown = " ".join(f"0x{byte:02x}" for byte in data[exc.start : exc.end])
            raise self._error("22021", f'invalid byte sequence for encoding "UTF8": {shown}', column) from exc
        if "\0" in text:
            raise self._error("22021", 'invalid byte sequence for encoding "UTF8": 0x00', column)
        return text

    def _error(self, sqlstate: str, message: str, column: str | None = None) -> SqlError:
        where = f"COPY {self._relation}, line {self.lines}" + (f", column {column}" if column else "")
        return SqlError(sqlstate, message, detail=where)

    def _text_values(self, line: bytes) -> list[bytes | None]:
        if b"\r" in line:
            raise self._error("22P04", "literal carriage return found in data")
        delimiter = self._form.delimiter.encode()
        if b"\\" not in line:
            return [None if value == self._null else value for value in line.split(delimiter)]
        values: list[bytes | None] = []
        for value in _split_escaped(line, delimiter):
            values.append(None if value == self._null else _UNESCAPED.sub(_unescaped, value))
        return values

    def _csv_values(self, line: bytes) -> list[bytes | None]:
        delimiter, quote, escape = (
            text.encode() for text in (self._form.delimiter, self._form.quote, self._form.escape)
        )
        if quote not in line:
            if b"\r" in line:
                raise self._error("22P04", "unquoted carriage return found in data")
            return [None if value == self._null else value for value in line.split(delimiter)]
        values: list[bytes | None] = []
        value, was_quoted, is_quoted, index = bytearray(), False, False, 0
        while index < len(line):
            character = line[index : index + 1]
            index += 1
            if is_quoted and character == escape and line[index : index + 1] in {quote, escape}:
                value += line[index : index + 1]
                index += 1
            elif character == quote:
                is_quoted, was_quoted = not is_quoted, True
            elif character == delimiter and not is_quoted:
                values.append(None if not was_quoted and value == self._null else bytes(value))
                value, was_quoted = bytearray(), False
            elif character == b"\r" and not is_quoted:
                raise self._error("22P04", "unquoted carriage return found in data")
            else:
                value += character
        values.append(None if not was_quoted and value == self._null else bytes(value))
        return values


def _is_escaping(line: bytes) -> bool:
    """Return whether a line ends with a backslash that escapes the next character."""
    return (len(line) - len(line.rstrip(b"\\"))) % 2 == 1


def _split_escaped(line: bytes, delimiter: bytes) -> list[bytes]:
    """Split a line at delimiters that are not escaped."""
    values, begin, index = [], 0, 0
    while index < len(line):
        if line[index : index + 1] == b"\\":
            index += 2
            continue
        if line[index : index + 1] == delimiter:
            values.append(line[begin:index])
            begin = index + 1
        index += 1
    return [*values, line[begin:]]


def _unescaped(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, character = match.groups()
    if octal:
        return bytes([int(octal, 8) & 0xFF])
    return bytes([int(hexadecimal, 16)]) if hexadecimal else _LETTERS.get(character, character)


def _unescaped_text(value: str) -> str:
    """Return a value without escapes.

    Raises:
        SqlError: the value has a character that no text may have (22021).
        UnicodeDecodeError: the bytes of the value are not UTF-8.
    """
    text = _UNESCAPED.sub(_unescaped, value.encode()).decode()
    if "\0" in text:
        raise SqlError("22021", 'invalid byte sequence for encoding "UTF8": 0x00')
    return text
