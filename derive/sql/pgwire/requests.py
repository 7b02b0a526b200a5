"""Messages of clients: parsing and validation."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from derive.errors import SqlError

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
        SqlError: 22021, the string is not UTF-8, or contains a NUL, which PostgreSQL does not allow.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as exc:
        what = f'invalid byte sequence for encoding "UTF8": 0x{data[exc.start : exc.start + 1].hex()}'
        raise SqlError("22021", what, hint="texts are sent as UTF-8") from exc
    if "\0" in text:
        raise SqlError("22021", 'invalid byte sequence for encoding "UTF8": 0x00', hint="no text may have a NUL")
    return text


def _malformed() -> SqlError:
    return SqlError("08P01", "a message has not the form that the protocol gives it")
