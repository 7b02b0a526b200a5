"""Messages of clients: what they say, and that they make sense."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from derive.errors import SqlError

_COUNT, _LONG, _OID = struct.Struct("!H"), struct.Struct("!i"), struct.Struct("!I")

SSL_REQUEST, GSS_REQUEST, CANCEL_REQUEST = 80877103, 80877104, 80877102


class Parse(NamedTuple):
    """Prepare a statement.

    Attributes:
        name: that it will have; empty for the one without a name.
        text: of the statement.
        oids: types of its parameters, 0 where that is left open.
    """

    name: str
    text: str
    oids: tuple[int, ...]


class Bind(NamedTuple):
    """Make a portal of a statement.

    Attributes:
        portal: name that it will have.
        statement: name of what was prepared.
        formats: of the arguments: none if all are text, one for all, or one for each.
        arguments: their bytes; None for NULL.
        result_formats: of the result's columns, likewise.
    """

    portal: str
    statement: str
    formats: tuple[int, ...]
    arguments: tuple[bytes | None, ...]
    result_formats: tuple[int, ...]


class Execute(NamedTuple):
    """Carry a portal out.

    Attributes:
        portal: its name.
        most_rows: how many are wanted now; 0 for all.
    """

    portal: str
    most_rows: int


class Named(NamedTuple):
    """A statement or a portal that is to be described or closed.

    Attributes:
        is_portal: which of them.
        name: its name.
    """

    is_portal: bool
    name: str


class Body:
    """The body of a message, read from its beginning to its end."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def text(self) -> str:
        """A text, up to the NUL behind it."""
        end = self._body.find(b"\0", self._at)
        if end < 0:
            raise _malformed()
        begin, self._at = self._at, end + 1
        return decode(self._body[begin:end])

    def long(self) -> int:
        """An integer of four bytes."""
        return self._number(_LONG)

    def oid(self) -> int:
        """An integer of four bytes without a sign."""
        return self._number(_OID)

    def count(self) -> int:
        """How many things follow, in two bytes without a sign."""
        return self._number(_COUNT)

    def _number(self, layout: struct.Struct) -> int:
        begin = self._at
        self._at = end = begin + layout.size
        if end > len(self._body):
            raise _malformed()
        number: int = layout.unpack_from(self._body, begin)[0]
        return number

    def bytes(self, size: int) -> bytes:
        """So many bytes."""
        if size < 0 or self._at + size > len(self._body):
            raise _malformed()
        begin, self._at = self._at, self._at + size
        return self._body[begin : self._at]

    def end(self) -> None:
        """Nothing is left."""
        if self._at != len(self._body):
            raise _malformed()


def parse_of(body: bytes) -> Parse:
    """The body of a `Parse` message."""
    reader = Body(body)
    request = Parse(reader.text(), reader.text(), tuple([reader.oid() for _ in range(reader.count())]))
    reader.end()
    return request


def bind_of(body: bytes) -> Bind:
    """The body of a `Bind` message; not by a `Body`, as it comes with each statement, and has the most parts."""
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
    """Integers of two bytes behind their count, and where they end."""
    (count,) = _COUNT.unpack_from(body, at)
    numbers: tuple[int, ...] = struct.unpack_from(f"!{count}h", body, at + 2) if count else ()
    return numbers, at + 2 + 2 * count


def execute_of(body: bytes) -> Execute:
    """The body of an `Execute` message."""
    reader = Body(body)
    request = Execute(reader.text(), max(0, reader.long()))
    reader.end()
    return request


def named_of(body: bytes) -> Named:
    """The body of a `Describe` or `Close` message."""
    reader = Body(body)
    kind = reader.bytes(1)
    if kind not in (b"S", b"P"):
        raise _malformed()
    request = Named(kind == b"P", reader.text())
    reader.end()
    return request


def query_of(body: bytes) -> str:
    """The text of a `Query` message."""
    reader = Body(body)
    text = reader.text()
    reader.end()
    return text


def startup_of(body: bytes) -> dict[str, str]:
    """What a client says of itself as it begins: pairs behind the version, up to an empty name."""
    reader = Body(body[4:])
    parameters: dict[str, str] = {}
    while name := reader.text():
        parameters[name] = reader.text()
    reader.end()
    return parameters


def formats_for(formats: Sequence[int], count: int, what: str) -> tuple[int, ...]:
    """A format for each of so many values.

    Raises:
        SqlError: there is another number of formats, or one that there is not.
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
    """Return the text that a client has sent.

    Raises:
        SqlError: 22021, the text is not UTF-8, or has a NUL, which no text of PostgreSQL has.
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
