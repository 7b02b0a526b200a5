"""Messages of the PostgreSQL protocol, version 3: those of the server, and those of clients, parsed and validated.

https://www.postgresql.org/docs/current/protocol-message-formats.html
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from derive.errors import SqlError
from derive.functions.types.pg_type import PG_TYPES
from derive.sql.client_encodings import CLIENT
from derive.sql.outcome import Notice, ResultColumn

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
    """Return a string for the client with its terminating NUL; inner NULs are removed."""
    return CLIENT.get().encode_shown(value.replace("\0", "")) + b"\0"


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
        parts += (CLIENT.get().encode(column.name) + b"\0", _COLUMN.pack(0, 0, column.oid, size, column.typmod, form))
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


_COUNT, _LONG, _OID = struct.Struct("!H"), struct.Struct("!i"), struct.Struct("!I")

SSL_REQUEST, GSS_REQUEST, CANCEL_REQUEST = 80877103, 80877104, 80877102


class Parse(NamedTuple):
    """A Parse message: prepare a statement.

    Attributes:
        name: name of the statement; empty for the unnamed one.
        text: text of the statement.
        oids: types of its parameters, 0 for an unspecified one.
    """

    name: str
    text: str
    oids: tuple[int, ...]


class Bind(NamedTuple):
    """A Bind message: create a portal of a statement.

    Attributes:
        portal: name of the portal.
        statement: name of the statement.
        formats: formats of the arguments: none if all are text, one for all, or one for each.
        arguments: bytes of the arguments; None for NULL.
        result_formats: formats of the result columns, likewise.
    """

    portal: str
    statement: str
    formats: tuple[int, ...]
    arguments: tuple[bytes | None, ...]
    result_formats: tuple[int, ...]


class Execute(NamedTuple):
    """An Execute message: execute a portal.

    Attributes:
        portal: name of the portal.
        most_rows: greatest number of rows; 0 for all.
    """

    portal: str
    most_rows: int


class Named(NamedTuple):
    """A Describe or Close message.

    Attributes:
        is_portal: whether the name is that of a portal, and not of a statement.
        name: name of the statement or portal.
    """

    is_portal: bool
    name: str


class Body:
    """A reader of a message's body."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def text(self) -> str:
        """Read a string with its terminating NUL."""
        end = self._body.find(b"\0", self._at)
        if end < 0:
            raise _malformed()
        begin, self._at = self._at, end + 1
        return decode(self._body[begin:end])

    def long(self) -> int:
        """Read a signed integer of four bytes."""
        return self._number(_LONG)

    def oid(self) -> int:
        """Read an unsigned integer of four bytes."""
        return self._number(_OID)

    def count(self) -> int:
        """Read a count, an unsigned integer of two bytes."""
        return self._number(_COUNT)

    def _number(self, layout: struct.Struct) -> int:
        begin = self._at
        self._at = end = begin + layout.size
        if end > len(self._body):
            raise _malformed()
        number: int = layout.unpack_from(self._body, begin)[0]
        return number

    def bytes(self, size: int) -> bytes:
        """Read a number of bytes."""
        if size < 0 or self._at + size > len(self._body):
            raise _malformed()
        begin, self._at = self._at, self._at + size
        return self._body[begin : self._at]

    def end(self) -> None:
        """Check that the body has ended."""
        if self._at != len(self._body):
            raise _malformed()


def parse_of(body: bytes) -> Parse:
    """Parse the body of a `Parse` message."""
    reader = Body(body)
    request = Parse(reader.text(), reader.text(), tuple([reader.oid() for _ in range(reader.count())]))
    reader.end()
    return request


def bind_of(body: bytes) -> Bind:
    """Parse the body of a `Bind` message, without a `Body` for speed, since each execution has one."""
    try:
        end_of_portal = body.index(b"\0")
        end_of_statement = body.index(b"\0", end_of_portal + 1)
        formats, at = _shorts(body, end_of_statement + 1)
        (count,) = _COUNT.unpack_from(body, at)
        at += 2
        arguments: list[bytes | None] = []
        for _ in range(count):
            (size,) = _LONG.unpack_from(body, at)
            begin, at = at + 4, at + 4 + max(0, size)
            if size < -1 or at > len(body):
                raise _malformed()
            arguments.append(None if size == -1 else body[begin:at])
        result_formats, at = _shorts(body, at)
    except (ValueError, struct.error):
        raise _malformed() from None
    if at != len(body):
        raise _malformed()
    portal, statement = decode(body[:end_of_portal]), decode(body[end_of_portal + 1 : end_of_statement])
    return Bind(portal, statement, formats, tuple(arguments), result_formats)


def _shorts(body: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Return integers of two bytes after their count, and their end."""
    (count,) = _COUNT.unpack_from(body, at)
    numbers: tuple[int, ...] = struct.unpack_from(f"!{count}h", body, at + 2) if count else ()
    return numbers, at + 2 + 2 * count


def execute_of(body: bytes) -> Execute:
    """Parse the body of an `Execute` message."""
    reader = Body(body)
    request = Execute(reader.text(), max(0, reader.long()))
    reader.end()
    return request


def named_of(body: bytes) -> Named:
    """Parse the body of a `Describe` or `Close` message."""
    reader = Body(body)
    kind = reader.bytes(1)
    if kind not in (b"S", b"P"):
        raise _malformed()
    request = Named(kind == b"P", reader.text())
    reader.end()
    return request


def query_of(body: bytes) -> str:
    """Parse the body of a `Query` message."""
    reader = Body(body)
    text = reader.text()
    reader.end()
    return text


def startup_of(body: bytes) -> dict[str, str]:
    """Parse the startup parameters of a client: pairs after the version, up to an empty name."""
    reader = Body(body[4:])
    parameters: dict[str, str] = {}
    while name := reader.text():
        parameters[name] = reader.text()
    reader.end()
    return parameters


def formats_for(formats: Sequence[int], count: int, what: str) -> tuple[int, ...]:
    """Return a format for each value.

    Raises:
        SqlError: the number of formats differs, or a format is unknown.
    """
    if not formats:
        return (0,) * count
    if any(form not in (0, 1) for form in formats):
        raise SqlError("22023", f"a format of {what} is neither 0 (text) nor 1 (binary)")
    if len(formats) == 1:
        return (formats[0],) * count
    if len(formats) != count:
        raise SqlError("08P01", f"the message has {len(formats)} formats for {count} {what}")
    return tuple(formats)


def decode(data: bytes) -> str:
    """Return a client's string.

    Raises:
        SqlError: 22021, the string is not in the client's encoding, or contains a NUL, which PostgreSQL does not allow;
            22P05, UTF-8 lacks one of its characters.
    """
    return CLIENT.get().decode(data)


def _malformed() -> SqlError:
    return SqlError("08P01", "a message does not have the format of the protocol")
