"""The PostgreSQL protocol, version 3: messages of servers and clients, and the connection that carries them.

https://www.postgresql.org/docs/current/protocol-message-formats.html

Flow control applies in both directions: the server stops reading while many bytes are unprocessed, and writers wait
for a slow client.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from typing import NamedTuple, cast

from derive.errors import SqlError
from derive.functions.types.encodings import CLIENT
from derive.functions.types.pg_type import PG_TYPES
from derive.sql.results import Notice, ResultColumn

_COLUMN = struct.Struct("!Ihihih")
_LENGTH = struct.Struct("!i")
_BIND = ord("B")

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
    """Return a ReadyForQuery message. The status is `I` (idle), `T` (in a transaction) or `E` (in a failed one)."""
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
        parts += (
            CLIENT.get().encode(column.name) + b"\0",
            _COLUMN.pack(column.table, column.number, column.oid, size, column.typmod, form),
        )
    return message(b"T", b"".join(parts))


def copy_response(kind: bytes, columns: int, *, is_binary: bool = False) -> bytes:
    """Return a CopyOutResponse (`H`) or CopyInResponse (`G`) message, for text or binary."""
    return message(kind, struct.pack("!bh", is_binary, columns) + struct.pack("!h", is_binary) * columns)


def notice(sent: Notice) -> bytes:
    """Return a NoticeResponse message."""
    fields = {"S": sent.severity, "V": sent.severity, "C": sent.sqlstate, "M": sent.message, "H": sent.hint}
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
    if (violation := failure.violation) is not None:
        fields |= {"s": violation.schema, "t": violation.table, "c": violation.column, "n": violation.constraint}
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
        oids: types of the parameters; 0 for an unspecified type.
    """

    name: str
    text: str
    oids: tuple[int, ...]


class Bind(NamedTuple):
    """A Bind message: create a portal of a statement.

    Attributes:
        portal: name of the portal.
        statement: name of the statement.
        formats: formats of the arguments: no entry if all are text, one entry for all, or one entry for each.
        arguments: bytes of the arguments; None for NULL.
        result_formats: formats of the result columns, in the same way.
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
        is_portal: whether the name is the name of a portal, and not of a statement.
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
    """Parse the body of a `Bind` message. It creates no `Body`, because it is called for each execution."""
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
    """Return the integers of two bytes that follow their count, and the offset after them."""
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


MOST_UNREAD = 1 << 20
"""Number of unprocessed bytes above which reading pauses."""
MOST_BEFORE_LOGIN = 16_384
"""Greatest size of a message before login, in bytes."""
MOST_BYTES = 1 << 28
"""Greatest size of a message, in bytes."""
_ENOUGH = 1 << 16
"""Number of buffered output bytes above which the buffer is flushed."""


class ConnectionEnded(ConnectionError):
    """The connection is lost, or the server closes it."""


class Wire(asyncio.Protocol):
    """Both directions of a connection. One task at a time receives, sends and waits.

    Attributes:
        is_lost: whether the connection is lost.
        is_stopped: whether the server stops, so that waits for a message end.
        most_bytes: greatest size of a message, in bytes.
    """

    def __init__(self, on_connected: Callable[[Wire], None]) -> None:
        self._on_connected = on_connected
        self._on_lost: Callable[[], None] | None = None
        self._transport: asyncio.Transport | None = None
        self._unread = bytearray()
        self._read = 0  # number of processed bytes of `_unread`
        self._needed = 0
        self._arrival: _Arrival | None = None
        self._answer: Callable[[bytes], bytes | None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._is_full = False
        self._is_reading = True
        self._unsent: list[bytes] = []
        self._unsent_size = 0
        self.is_lost = False
        self.is_stopped = False
        self.most_bytes = MOST_BEFORE_LOGIN

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle the new connection."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport has no such base class
        self._on_connected(self)

    def data_received(self, data: bytes) -> None:
        """Buffer the bytes, unless the fast path answers them."""
        if self._answer and not (self._unread or self._is_full or self.is_stopped):
            message = self._answer(data)
            if message is not None:
                self.send(message)
                self.flush()
                return
        self._unread += data
        size = len(self._unread) - self._read
        if self._arrival and size >= self._needed:
            self._arrival.come()
        elif self._is_reading and size > max(MOST_UNREAD, self._needed) and self._transport:
            self._is_reading = False
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the loss of the connection."""
        self.is_lost = True
        _wake(self._arrival)
        _wake(self._room)
        if self._on_lost:
            self._on_lost()

    def pause_writing(self) -> None:
        """Handle a full output buffer."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Handle a drained output buffer."""
        self._is_full = False
        _wake(self._room)

    # Methods for the connection

    def on_lost(self, call: Callable[[], None]) -> None:
        """Set the function that is called when the connection is lost."""
        self._on_lost = call

    def stop(self) -> None:
        """Stop: a wait for a message raises `ConnectionEnded`."""
        self.is_stopped = True
        _wake(self._arrival)

    async def receive(self, answer: Callable[[bytes], bytes | None] | None = None) -> tuple[bytes, bytes]:
        """Return the next message: its kind, one byte, and its body.

        Args:
            answer: fast path for bytes that arrive with an empty buffer; None if missing.

        Raises:
            ConnectionEnded: the connection has ended.
            SqlError: the length of the message is invalid.
        """
        while (message := self.next_message()) is None:
            await self.arrive(answer)
        return message

    async def arrive(self, answer: Callable[[bytes], bytes | None] | None = None) -> None:
        """Wait until the next message is complete.

        Args:
            answer: as for `receive`.

        Raises:
            ConnectionEnded: as for `receive`.
            SqlError: as for `receive`.
        """
        self._answer = answer
        try:
            while self._end() is None:
                await self._need(self._next_size())
        finally:
            self._answer = None

    def next_message(self) -> tuple[bytes, bytes] | None:
        """Return the next message like `receive`, if it is complete; None otherwise.

        Raises:
            SqlError: the length of the message is invalid.
        """
        end = self._end()
        if end is None:
            return None
        unread, begin = self._unread, self._read
        message = bytes(unread[begin : begin + 1]), bytes(unread[begin + 5 : end])
        self._forget(end)
        return message

    def _end(self) -> int | None:
        """Return the end of the next message in the buffer; None if the message is not complete."""
        come, begin = len(self._unread), self._read
        if self.is_stopped or come - begin < 5:
            return None
        end = begin + 1 + self._length(begin + 1, least=4)
        return end if end <= come else None

    def bound(self, rests: Sequence[bytes]) -> bytes | None:
        """Return the next message, if it is a complete Bind, with one of these rests behind; None otherwise.

        Raises:
            SqlError: the length of the message is invalid.
        """
        unread, begin = self._unread, self._read
        if self.is_stopped or len(unread) - begin < 5 or unread[begin] != _BIND:
            return None
        end = begin + 1 + self._length(begin + 1, least=4)
        for rest in rests:
            if unread.startswith(rest, end):
                return bytes(unread[begin : end + len(rest)])
        return None

    def skip(self, size: int) -> None:
        """Mark bytes that `bound` has returned as processed."""
        self._forget(self._read + size)

    def _next_size(self) -> int:
        """Return the size of the next message in bytes; if it is unknown yet, the size of the header."""
        if len(self._unread) - self._read < 5:
            return 5
        return 1 + self._length(self._read + 1, least=4)

    async def receive_startup(self) -> bytes:
        """Return the body of the next message without a kind.

        Raises:
            ConnectionEnded: the connection has ended.
            SqlError: the length of the message is invalid.
        """
        await self._need(4)
        length = self._length(self._read, least=8)
        await self._need(length)
        return self._take(length)[4:]

    def send(self, message: bytes) -> None:
        """Add a message to the output buffer."""
        self._unsent.append(message)
        self._unsent_size += len(message)

    @property
    def has_enough(self) -> bool:
        """Return whether the output buffer should be flushed."""
        return self._unsent_size >= _ENOUGH

    def flush(self) -> None:
        """Write the output buffer."""
        if self._unsent:
            message = b"".join(self._unsent) if len(self._unsent) > 1 else self._unsent[0]
            self._unsent.clear()
            self._unsent_size = 0
            if self._transport and not self.is_lost:
                self._transport.write(message)

    @property
    def is_full(self) -> bool:
        """Return whether `drained` would wait."""
        return self._is_full and not self.is_lost

    async def drained(self) -> None:
        """Wait until the client has read most of the output.

        Raises:
            ConnectionEnded: the connection is lost.
        """
        while self.is_full:
            self._room = asyncio.get_running_loop().create_future()
            try:
                await self._room
            finally:
                self._room = None
        if self.is_lost:
            raise ConnectionEnded

    async def encrypt(self, context: ssl.SSLContext) -> None:
        """Start TLS.

        Raises:
            SqlError: unencrypted bytes arrived before the handshake, perhaps from an attacker.
            OSError: the handshake has failed.
        """
        if len(self._unread) > self._read:
            what = "received unencrypted data after the request for TLS"
            raise SqlError("08P01", what, hint="This is a defect of the client, or an attack on the client.")
        assert self._transport
        loop = asyncio.get_running_loop()
        transport = await loop.start_tls(self._transport, self, context, server_side=True)
        if transport is None:
            raise ConnectionEnded
        self._transport = transport

    def close(self) -> None:
        """Write the output buffer, and close the connection."""
        self.flush()
        if self._transport:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection without writing the output buffer."""
        if self._transport:
            self._transport.abort()

    def keep_alive(self) -> None:
        """Enable keepalive probes for silent clients."""
        connected = self._transport.get_extra_info("socket") if self._transport else None
        if connected is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    @property
    def address(self) -> tuple[str, int] | None:
        """Return the client's address."""
        address = self._transport.get_extra_info("peername") if self._transport else None
        return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None

    async def _need(self, size: int) -> None:
        while len(self._unread) - self._read < size or self.is_stopped:
            if self.is_lost or self.is_stopped:
                raise ConnectionEnded
            if not self._is_reading and self._transport:
                self._is_reading = True
                self._transport.resume_reading()
            self._needed = size
            self._arrival = _Arrival(loop=asyncio.get_running_loop())
            try:
                await self._arrival
            finally:
                self._arrival = None
                self._needed = 0

    def _length(self, at: int, least: int) -> int:
        length: int = _LENGTH.unpack_from(self._unread, at)[0]
        if not least <= length <= self.most_bytes:
            raise SqlError(
                "08P01", f"a message cannot have {length} bytes", hint=f"A message has at most {self.most_bytes} bytes."
            )
        return length

    def _take(self, size: int) -> bytes:
        end = self._read + size
        taken = bytes(self._unread[self._read : end])
        self._forget(end)
        return taken

    def _forget(self, end: int) -> None:
        """Mark the bytes before `end` as processed.

        The buffer removes them in large pieces, because a removal moves the rest.
        """
        if end == len(self._unread):
            self._unread.clear()
            self._read = 0
        elif end > _ENOUGH:
            del self._unread[:end]
            self._read = 0
        else:
            self._read = end
        if not self._is_reading and len(self._unread) - self._read < MOST_UNREAD and self._transport:
            self._is_reading = True
            self._transport.resume_reading()


class _Arrival(asyncio.Future[None]):
    """A future for the arrival of bytes; its waiting task continues at once, and not in the next round of the loop."""

    _waiting: tuple[Callable[[_Arrival], object], Context | None] | None = None

    def add_done_callback(self, fn: Callable[[_Arrival], object], /, *, context: Context | None = None) -> None:
        """Add a callback: the waiting task's step."""
        self._waiting = fn, context
        super().add_done_callback(fn, context=context)

    def come(self) -> None:
        """Continue the waiting task; callbacks of the loop may call this function, and tasks may not."""
        if self._waiting is None or self.done():
            _wake(self)
            return
        fn, context = self._waiting
        self.remove_done_callback(fn)
        self.set_result(None)
        if context is None:
            fn(self)
        else:
            context.run(fn, self)


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting and not waiting.done():
        waiting.set_result(None)
