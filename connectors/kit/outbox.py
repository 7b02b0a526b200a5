"""Messages to the client of a stream: added by worker threads, sent by one thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from threading import Condition

from derive.errors import FlowError
from derive.protocol.stubs import materialize_pb2 as pb

_MOST_WAITING = 16
"""Maximum number of queued messages; `put` blocks beyond it, so that a slow client does not fill the memory."""


class ClientGoneError(Exception):
    """The client no longer reads the stream."""


class Outbox:
    """A queue with an end, and an optional error after it."""

    def __init__(self) -> None:
        self._messages: deque[pb.TransactionResponse] = deque()
        self._changed = Condition()
        self._is_ended = self._is_closed = False
        self.error: FlowError | None = None

    def put(self, message: pb.TransactionResponse) -> None:
        """Add a message, after waiting for room.

        Raises:
            ClientGoneError: the client no longer reads.
        """
        with self._changed:
            while len(self._messages) >= _MOST_WAITING and not self._is_closed:
                self._changed.wait()
            if self._is_closed or self._is_ended:
                raise ClientGoneError
            self._messages.append(message)
            self._changed.notify_all()

    def end(self, error: FlowError | None = None) -> None:
        """End the queue; queued messages are still sent. Only the first call sets the error."""
        with self._changed:
            if not self._is_ended:
                self._is_ended, self.error = True, error
            self._changed.notify_all()

    def close(self) -> None:
        """Discard messages from now on: the client is gone."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def __iter__(self) -> Iterator[pb.TransactionResponse]:
        """Yield messages up to the end."""
        while True:
            with self._changed:
                while not (self._messages or self._is_ended or self._is_closed):
                    self._changed.wait()
                if self._is_closed or not self._messages:
                    return
                message = self._messages.popleft()
                self._changed.notify_all()
            yield message
