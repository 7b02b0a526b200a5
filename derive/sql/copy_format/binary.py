"""COPY in PostgreSQL's binary format: values in the protocol's binary form, after a signature."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from derive.algebra.types import Datum, Row
from derive.errors import SqlError
from derive.functions.scalar.fitting import fitted
from derive.functions.types.values import binary_function, datum_of_binary
from derive.sql.outcome import ResultColumn

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
        if len(self._rest) >= _COUNT.size:  # an incomplete count begins no row, and the trailer is optional
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
        """Return a row and its end; no end if the row is incomplete, no row at the trailer."""
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
            return fitted(column.modifier, datum) if column.modifier else datum
        except SqlError as exc:
            where = f"COPY {self._relation}, line {self._rows}, column {column.name}"
            raise SqlError(exc.sqlstate, exc.message, detail=where) from exc

    def _error(self, message: str, hint: str | None = None, *, row: int | None = None) -> SqlError:
        where = f"COPY {self._relation}" + (f", line {row}" if row else "")
        return SqlError("22P04", message, detail=where, hint=hint)
