"""Messages of a PostgreSQL server, version 3 of the protocol, as bytes.

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
    """A message of a kind."""
    return kind + _LENGTH.pack(len(body) + 4) + body


def text(value: str) -> bytes:
    """A text within a message. It ends with the first NUL, which nothing that people read has."""
    return value.replace("\0", "").encode("utf-8", "replace") + b"\0"


def authentication(code: int, body: bytes = b"") -> bytes:
    """What is demanded of a client, or that it is let in (0)."""
    return message(b"R", struct.pack("!i", code) + body)


def parameter_status(name: str, value: str) -> bytes:
    """A setting, and what it is now."""
    return message(b"S", text(name) + text(value))


def key_data(process: int, secret: int) -> bytes:
    """With what the client may cancel."""
    return message(b"K", struct.pack("!iI", process, secret))


def negotiate(options: Sequence[str]) -> bytes:
    """That version 3.0 is spoken here, and which options of later ones are not known."""
    return message(b"v", struct.pack("!ii", 3 << 16, len(options)) + b"".join(map(text, options)))


def ready(status: bytes) -> bytes:
    """That a query may come."""
    return b"Z\0\0\0\5" + status


def command_complete(tag: str) -> bytes:
    """That a statement was carried out."""
    return message(b"C", text(tag))


def parameter_description(oids: Sequence[int]) -> bytes:
    """The types of a statement's parameters."""
    return message(b"t", struct.pack(f"!H{len(oids)}I", len(oids), *oids))


def row_description(columns: Sequence[ResultColumn] | None, formats: Sequence[int]) -> bytes:
    """The columns of a result, and the format of each (0 text, 1 binary); that there are none for None."""
    if columns is None:
        return NO_DATA
    parts = [struct.pack("!h", len(columns))]
    for column, form in zip(columns, formats, strict=True):
        pg_type = PG_TYPES.get(column.oid)
        size = pg_type.size if pg_type else -1
        parts += (text(column.name), _COLUMN.pack(0, 0, column.oid, size, column.modifier, form))
    return message(b"T", b"".join(parts))


def copy_response(kind: bytes, columns: int, *, is_binary: bool = False) -> bytes:
    """That rows of so many columns follow, out (`H`), or are to follow, in (`G`), as text or in binary form."""
    return message(kind, struct.pack("!bh", is_binary, columns) + struct.pack("!h", is_binary) * columns)


def notice(said: Notice) -> bytes:
    """What clients are told that is no error."""
    fields = {"S": said.severity, "V": said.severity, "C": said.sqlstate, "M": said.message, "H": said.hint}
    return _report(b"N", fields)


def error(failure: SqlError, severity: str = "ERROR", begin: int = 0) -> bytes:
    """An error.

    Args:
        failure: what happened.
        severity: `ERROR`, or `FATAL` if the connection ends.
        begin: where the statement begins in the text that the client sent, in characters.
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
