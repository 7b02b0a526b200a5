"""One stream of transactions: converts messages, in the protocol's order, to calls of a connector's session.

One thread receives messages and calls the session; a second thread runs `commit`, so that `load` can run beside it.
Both threads put responses into an outbox, so that Committed is sent at once, even if the first thread waits.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition
from typing import Literal, cast

from connectors.kit.batch import binding_of, keys_of, rows_of
from connectors.kit.connector import NarrowerSession, RefillingSession, Session
from connectors.kit.messages import loaded_messages
from connectors.kit.requests import Opening
from derive.errors import FlowError, InternalError, ProtocolError
from derive.protocol.order import Request as RequestName
from derive.protocol.order import StreamOrder
from derive.protocol.stubs import materialize_pb2 as pb

_log = logging.getLogger(__name__)


def error_of(exc: Exception) -> FlowError:
    """Return a FlowError unchanged; log the traceback of any other exception, and return an internal error."""
    if isinstance(exc, FlowError):
        return exc
    _log.error("a defect of the connector", exc_info=exc)
    return InternalError(f"a defect of the connector: {type(exc).__name__}: {exc}")


_MOST_WAITING = 16
"""Maximum number of queued messages; `put` blocks beyond it, so that a slow client does not fill the memory."""


class ClientGoneError(Exception):
    """The client no longer reads the stream."""


class Outbox:
    """A queue that has an end, and may have an error at the end."""

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
        """Discard messages from now on, because the connection to the client is lost."""
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


_NAMES: tuple[RequestName, ...] = ("load", "store", "prepare", "commit", "open")


class Transactions:
    """The transactions of one session.

    Args:
        requests: messages after Open.
        opening: the Open message's request.
        session: the opened session, which the caller closes.
        outbox: queue of the responses.
    """

    def __init__(
        self, requests: Iterator[pb.TransactionRequest], opening: Opening, session: Session, outbox: Outbox
    ) -> None:
        self._requests = requests
        self._bindings = opening.materialization.bindings
        self._session = session
        self._outbox = outbox
        self._order = StreamOrder()
        self._order.request("open")
        self._committing: Future[None] | None = None

    def run(self) -> None:
        """Serve transactions until there are no more requests, and wait for the last commit.

        Raises:
            FlowError: a message is out of order or malformed, or the session has failed.
            ClientGoneError: the client no longer reads the responses.
        """
        contents = self._session.contents if isinstance(self._session, RefillingSession) else ()
        narrower = self._session.narrower if isinstance(self._session, NarrowerSession) else ()
        opened = pb.TransactionResponse.Opened(
            flow_checkpoint=self._session.checkpoint, contents=contents, narrower=narrower
        )
        self._send(pb.TransactionResponse(opened=opened), "opened")
        with ThreadPoolExecutor(1, "commit") as committer:
            for request in self._requests:
                self._take(request, committer)
            self._await_commit()
        if self._order.is_storing:
            raise ProtocolError("the stream has ended before Commit: nothing of this transaction is stored")

    def _take(self, request: pb.TransactionRequest, committer: ThreadPoolExecutor) -> None:
        name = name_of(request)
        self._order.request(name)
        if name == "load":
            keys = keys_of(request.load, binding_of(request.load, self._bindings))
            self._session.load(request.load.binding, keys)
        elif name == "store":
            rows = rows_of(request.store, binding_of(request.store, self._bindings))
            self._session.store(request.store.binding, rows)
        elif name == "prepare":
            self._prepare(request.prepare.flow_checkpoint)
        else:
            self._committing = committer.submit(self._commit)

    def _prepare(self, flow_checkpoint: bytes) -> None:
        if not flow_checkpoint:
            raise ProtocolError("Prepare has an empty flow_checkpoint")
        self._await_commit()
        for binding, documents in self._session.loaded():
            for message in loaded_messages(binding, documents):
                self._send(pb.TransactionResponse(loaded=message), "loaded")
        kept = self._session.prepare(flow_checkpoint)
        prepared = pb.TransactionResponse.Prepared()
        if kept is not None:
            prepared.driver_checkpoint_json, prepared.rfc7396_merge_patch = kept.json, kept.merge_patch
        self._send(pb.TransactionResponse(prepared=prepared), "prepared")

    def _commit(self) -> None:
        try:
            self._session.commit()
            self._send(pb.TransactionResponse(committed=pb.TransactionResponse.Committed()), "committed")
        except Exception as exc:
            # Report the error at once: the receiving thread may wait for a message for a long time.
            error = error_of(exc)
            self._outbox.end(error)
            raise error from exc

    def _await_commit(self) -> None:
        if self._committing is not None:
            self._committing.result()
            self._committing = None

    def _send(
        self, response: pb.TransactionResponse, name: Literal["opened", "loaded", "prepared", "committed"]
    ) -> None:
        self._order.response(name)
        self._outbox.put(response)


def name_of(request: pb.TransactionRequest) -> RequestName:
    """Return the name of the message in a request.

    Raises:
        ProtocolError: the request holds no message, or several.
    """
    names = [field.name for field, _ in request.ListFields()]
    if len(names) != 1:
        listed = " and ".join(name.title() for name in names) or "nothing that is known"
        raise ProtocolError(f"a message holds {listed}, and must hold one of {', '.join(map(str.title, _NAMES))}")
    return cast(RequestName, names[0])
