"""A client's connection as messages: input is split into messages, and output is buffered.

Flow control applies in both directions: reading pauses while many bytes are unprocessed, and writers wait for a slow
client.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from contextvars import Context
from typing import cast

from derive.errors import SqlError

MOST_UNREAD = 1 << 20
"""Number of unprocessed bytes above which reading pauses."""
MOST_BEFORE_LOGIN = 16_384
"""Greatest size of a message before login, in bytes."""
MOST_BYTES = 1 << 28
"""Greatest size of a message, in bytes."""
_ENOUGH = 1 << 16
"""Number of buffered output bytes above which the buffer is flushed."""

_LENGTH = struct.Struct("!i")


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
            answer: fast path for bytes that arrive with an empty buffer; None without one.

        Raises:
            ConnectionEnded: the connection has ended.
            SqlError: the length of the message is invalid.
        """
        self._answer = answer
        try:
            while (message := self.next_message()) is None:
                await self._need(self._next_size())
            return message
        finally:
            self._answer = None

    def next_message(self) -> tuple[bytes, bytes] | None:
        """Return the next message, as `receive` does, if it is complete; else None.

        Raises:
            SqlError: the length of the message is invalid.
        """
        unread, begin = self._unread, self._read
        come = len(unread)
        if self.is_stopped or come - begin < 5 or (end := begin + 1 + self._length(begin + 1, least=4)) > come:
            return None
        message = bytes(unread[begin : begin + 1]), bytes(unread[begin + 5 : end])
        self._forget(end)
        return message

    def _next_size(self) -> int:
        """Return the size of the next message in bytes; if unknown yet, the size of its header."""
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
            SqlError: unencrypted bytes came before the handshake, maybe from an attacker.
            OSError: the handshake has failed.
        """
        if len(self._unread) > self._read:
            what = "received unencrypted data after the request for TLS"
            raise SqlError("08P01", what, hint="this is a defect of the client, or an attempt to attack it")
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
            raise SqlError("08P01", f"a message cannot have {length} bytes", hint=f"at most {self.most_bytes}")
        return length

    def _take(self, size: int) -> bytes:
        end = self._read + size
        taken = bytes(self._unread[self._read : end])
        self._forget(end)
        return taken

    def _forget(self, end: int) -> None:
        """Mark the bytes before `end` as processed; large pieces are removed at once, since removal moves the rest."""
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
    """The arrival of bytes. The waiting task continues at once, and not in the next round of the loop."""

    _waiting: tuple[Callable[[_Arrival], object], Context | None] | None = None

    def add_done_callback(self, fn: Callable[[_Arrival], object], /, *, context: Context | None = None) -> None:
        """Add a callback: the waiting task's step."""
        self._waiting = fn, context
        super().add_done_callback(fn, context=context)

    def come(self) -> None:
        """Continue the waiting task; call this from a callback of the loop, and not from a task."""
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
