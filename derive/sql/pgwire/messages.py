"""Messages of a PostgreSQL server, protocol version 3, as bytes.

https://www.postgresql.org/docs/current/protocol-message-formats.html
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from derive.errors import SqlError
from derive.sql.outcome import Notice, ResultColumn
from derive.sql.pg_types import PG_TYPES

_COLUMN, _LENGTH = struct.Struct("!ihihih"), struct.Struct("!i")

PARSE_COMPLETE = b"1\0\0\0\4"
BIND_COMPLETE = b"2\0\0\0\4"
CLOSE_COMPLETE = b"3\0\0\0\4"
NO_DATA = b"n\0\0\0\4"
EMPTY_QUERY = b"I\0\0\0\4"
PORTAL_SUSPENDED = b"s\0\0\0\4"
COPY_DONE = b"c\0\0\0\4"


def message(kind: bytes, body: bytes) -> bytes:
    """Return a message of a kind."""
    return kind + _LENGTH.pack(len(body) + 4) + body


def text(value: str) -> bytes:
    """Return a string with its terminating NUL; inner NULs are removed."""
    return value.replace("\0", "").encode("utf-8", "replace") + b"\0"


def authentication(code: int, body: bytes = b"") -> bytes:
    """Return an authentication request, or AuthenticationOk (code 0)."""
    return message(b"R", struct.pack("!i", code) + body)


def parameter_status(name: str, value: str) -> bytes:
    """Return a ParameterStatus message with a setting."""
    return message(b"S", text(name) + text(value))


def key_data(process: int, secret: int) -> bytes:
    """Return a BackendKeyData message for cancel requests."""
    return message(b"K", struct.pack("!iI", process, secret))


def negotiate(options: Sequence[str]) -> bytes:
    """Return a NegotiateProtocolVersion message: version 3.0, and the unknown options."""
    return message(b"v", struct.pack("!ii", 3 << 16, len(options)) + b"".join(map(text, options)))


def ready(status: bytes) -> bytes:
    """Return a ReadyForQuery message."""
    return b"Z\0\0\0\5" + status


def command_complete(tag: str) -> bytes:
    """Return a CommandComplete message."""
    return message(b"C", text(tag))


def parameter_description(oids: Sequence[int]) -> bytes:
    """Return a ParameterDescription message."""
    return message(b"t", struct.pack(f"!H{len(oids)}I", len(oids), *oids))


def row_description(columns: Sequence[ResultColumn] | None, formats: Sequence[int]) -> bytes:
    """Return a RowDescription message with formats (0 text, 1 binary); NoData for None."""
    if columns is None:
        return NO_DATA
    parts = [struct.pack("!h", len(columns))]
    for column, form in zip(columns, formats, strict=True):
        pg_type = PG_TYPES.get(column.oid)
        size = pg_type.size if pg_type else -1
        parts += (text(column.name), _COLUMN.pack(0, 0, column.oid, size, column.typmod, form))
    return message(b"T", b"".join(parts))


def copy_response(kind: bytes, columns: int, *, is_binary: bool = False) -> bytes:
    """Return a CopyOutResponse (`H`) or CopyInResponse (`G`) message, for text or binary."""
    return message(kind, struct.pack("!bh", is_binary, columns) + struct.pack("!h", is_binary) * columns)


def notice(said: Notice) -> bytes:
    """Return a NoticeResponse message."""
    fields = {"S": said.severity, "V": said.severity, "C": said.sqlstate, "M": said.message, "H": said.hint}
    return _report(b"N", fields)


def error(failure: SqlError, severity: str = "ERROR", begin: int = 0) -> bytes:
    """Return an ErrorResponse message.

    Args:
        failure: the error.
        severity: `ERROR`, or `FATAL` if the connection ends.
        begin: start of the statement in the client's text, in characters.
    """
    position = None if failure.offset is None else str(begin + failure.offset + 1)
    fields = {
        "S": severity,
        "V": severity,
        "C": failure.sqlstate,
        "M": failure.message,
        "D": failure.detail,
        "H": failure.hint,
        "P": position,
    }
    return _report(b"E", fields)


def _report(kind: bytes, fields: Mapping[str, str | None]) -> bytes:
    parts = [name.encode() + text(value) for name, value in fields.items() if value is not None]
    return message(kind, b"".join(parts) + b"\0")
