"""Messages on their way to the client of a stream: put by the threads that work, taken by the one that sends."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from threading import Condition

from derive.errors import FlowError
from derive.protocol.stubs import materialize_pb2 as pb

_MOST_WAITING = 16
"""Who puts waits while so many messages are waiting: a client that reads slowly is not to fill our memory."""


class ClientGoneError(Exception):
    """Nobody reads the stream any more."""


class Outbox:
    """A queue with an end, and maybe an error behind it."""

    def __init__(self) -> None:
        self._messages: deque[pb.TransactionResponse] = deque()
        self._changed = Condition()
        self._is_ended = self._is_closed = False
        self.error: FlowError | None = None

    def put(self, message: pb.TransactionResponse) -> None:
        """Put a message; it waits for room.

        Raises:
            ClientGoneError: nobody will take it.
        """
        with self._changed:
            while len(self._messages) >= _MOST_WAITING and not self._is_closed:
                self._changed.wait()
            if self._is_closed or self._is_ended:
                raise ClientGoneError
            self._messages.append(message)
            self._changed.notify_all()

    def end(self, error: FlowError | None = None) -> None:
        """There are no more messages; those that wait are still taken. The first end counts."""
        with self._changed:
            if not self._is_ended:
                self._is_ended, self.error = True, error
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody takes messages any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def __iter__(self) -> Iterator[pb.TransactionResponse]:
        """Take messages up to the end."""
        while True:
            with self._changed:
                while not (self._messages or self._is_ended or self._is_closed):
                    self._changed.wait()
                if self._is_closed or not self._messages:
                    return
                message = self._messages.popleft()
                self._changed.notify_all()
            yield message
