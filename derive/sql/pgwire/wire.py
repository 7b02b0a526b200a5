"""One client's connection as messages: bytes that come in are cut into messages, and those that go out are gathered.

Whoever sends faster than its messages are worked on is not read from for a while, and whoever reads slower than it is
written to is waited for.
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
"""Bytes that may have come in and not been worked on before no more are read."""
MOST_BEFORE_LOGIN = 16_384
"""Bytes of a message of somebody who has not logged in."""
MOST_BYTES = 1 << 28
"""Bytes of any message."""
_ENOUGH = 1 << 16
"""Bytes that are gathered before they are sent."""

_LENGTH = struct.Struct("!i")


class ConnectionEnded(ConnectionError):
    """The client is gone, or is to be sent away."""


class Wire(asyncio.Protocol):
    """Both directions of a connection. One task at a time receives, sends and waits.

    Attributes:
        is_lost: whether the client is gone.
        is_stopped: whether whoever waits for a message is to wait no longer, as the server stops.
        most_bytes: how long a message may be.
    """

    def __init__(self, on_connected: Callable[[Wire], None]) -> None:
        self._on_connected = on_connected
        self._on_lost: Callable[[], None] | None = None
        self._transport: asyncio.Transport | None = None
        self._unread = bytearray()
        self._read = 0  # how much of `_unread` was worked on
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

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client is there."""
        self._transport = cast(asyncio.Transport, transport)  # that of uvloop derives from none
        self._on_connected(self)

    def data_received(self, data: bytes) -> None:
        """Keep what has come in, unless it can be answered at once."""
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
        """The client is gone."""
        self.is_lost = True
        _wake(self._arrival)
        _wake(self._room)
        if self._on_lost:
            self._on_lost()

    def pause_writing(self) -> None:
        """The client reads slower than it is written to."""
        self._is_full = True

    def resume_writing(self) -> None:
        """The client has read."""
        self._is_full = False
        _wake(self._room)

    # What a connection calls

    def on_lost(self, call: Callable[[], None]) -> None:
        """Have something called as soon as the client is gone."""
        self._on_lost = call

    def stop(self) -> None:
        """Whoever waits for a message is told that the connection ends."""
        self.is_stopped = True
        _wake(self._arrival)

    async def receive(self, answer: Callable[[bytes], bytes | None] | None = None) -> tuple[bytes, bytes]:
        """The next message: its kind, one byte, and its body.

        Args:
            answer: to what comes in while nothing else has; None if that is to be received.

        Raises:
            ConnectionEnded: there is none.
            SqlError: its length makes no sense.
        """
        self._answer = answer
        try:
            while (message := self.next_message()) is None:
                await self._need(self._next_size())
            return message
        finally:
            self._answer = None

    def next_message(self) -> tuple[bytes, bytes] | None:
        """The next message, as of `receive`, if all of it has come in.

        Raises:
            SqlError: its length makes no sense.
        """
        unread, begin = self._unread, self._read
        come = len(unread)
        if self.is_stopped or come - begin < 5 or (end := begin + 1 + self._length(begin + 1, least=4)) > come:
            return None
        message = bytes(unread[begin : begin + 1]), bytes(unread[begin + 5 : end])
        self._forget(end)
        return message

    def _next_size(self) -> int:
        """How many bytes the next message has; if that has not come in, how many it takes to know."""
        if len(self._unread) - self._read < 5:
            return 5
        return 1 + self._length(self._read + 1, least=4)

    async def receive_startup(self) -> bytes:
        """The body of the next message, of those that have no kind.

        Raises:
            ConnectionEnded: there is none.
            SqlError: its length makes no sense.
        """
        await self._need(4)
        length = self._length(self._read, least=8)
        await self._need(length)
        return self._take(length)[4:]

    def send(self, message: bytes) -> None:
        """Put a message among those that are sent next."""
        self._unsent.append(message)
        self._unsent_size += len(message)

    @property
    def has_enough(self) -> bool:
        """Whether so much waits to be sent that it should be."""
        return self._unsent_size >= _ENOUGH

    def flush(self) -> None:
        """Send what was gathered."""
        if self._unsent:
            message = b"".join(self._unsent) if len(self._unsent) > 1 else self._unsent[0]
            self._unsent.clear()
            self._unsent_size = 0
            if self._transport and not self.is_lost:
                self._transport.write(message)

    @property
    def is_full(self) -> bool:
        """Whether `drained` would wait."""
        return self._is_full and not self.is_lost

    async def drained(self) -> None:
        """Wait until the client has read most of what was sent.

        Raises:
            ConnectionEnded: it is gone.
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
        """Go on with TLS.

        Raises:
            SqlError: more has come in before it, which somebody in between may have written.
            OSError: they do not come to terms.
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
        """Send what was gathered, and end the connection."""
        self.flush()
        if self._transport:
            self._transport.close()

    def abort(self) -> None:
        """End the connection, whatever was not sent."""
        if self._transport:
            self._transport.abort()

    def keep_alive(self) -> None:
        """Have a client that is silent asked now and then whether it is there."""
        connected = self._transport.get_extra_info("socket") if self._transport else None
        if connected is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    @property
    def address(self) -> tuple[str, int] | None:
        """From where the client has come."""
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
        """What comes before an end was worked on; its bytes are removed now and then, since that moves the rest."""
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
    """What is waited for from a client. The task that waits goes on at once, and not in the next round of the loop."""

    _waiting: tuple[Callable[[_Arrival], object], Context | None] | None = None

    def add_done_callback(self, fn: Callable[[_Arrival], object], /, *, context: Context | None = None) -> None:
        """Have something called: what a task that waits does."""
        self._waiting = fn, context
        super().add_done_callback(fn, context=context)

    def come(self) -> None:
        """Have the task go on; from a callback of the loop, and not from a task."""
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
