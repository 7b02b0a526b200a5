"""The gRPC service `materialize.Driver` of a connector, and the process that serves it.

A stream of transactions converts messages, in the protocol's order, to calls of a connector's session. One thread
receives messages and calls the session; a second thread runs `commit`, so that `load` can run beside it. Both threads
put responses into an outbox, so that Committed is sent at once, even if the first thread waits.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition, Event, Thread, current_thread
from types import FrameType
from typing import Literal, NoReturn, TypeVar, cast

import grpc
import jsonschema_rs

from connectors.kit.batch import binding_of, keys_of, rows_of
from connectors.kit.connector import (
    CancellableSession,
    MaterializeConnector,
    NarrowerSession,
    RefillingSession,
    Session,
)
from connectors.kit.messages import (
    application_of,
    apply_response,
    loaded_messages,
    opening_of,
    spec_response,
    validate_response,
    validation_of,
)
from connectors.kit.requests import ConnectorSpec, Materialization, Opening, ValidatedBinding
from derive.document.pointer import JSON, escape
from derive.errors import FlowError, InternalError, ProtocolError, UsageError
from derive.plural import counted
from derive.protocol.driver import (
    SILENT_SECONDS,
    TRANSPORT_OPTIONS,
    StreamOrder,
    connection_limits,
    driver_handler,
    status_of,
)
from derive.protocol.driver import Request as RequestName
from derive.protocol.stubs import materialize_pb2 as pb

_log = logging.getLogger(__name__)


def error_of(exc: Exception) -> FlowError:
    """Return a FlowError unchanged; log the traceback of any other exception, and return an internal error."""
    if isinstance(exc, FlowError):
        return exc
    _log.error("a defect of the connector", exc_info=exc)
    return InternalError(
        f"a defect of the connector: {type(exc).__name__}: {exc}",
        hint="the log of the connector has the traceback; report it to the author of the connector",
    )


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


_MOST_CALLS = 512
"""Maximum number of concurrent calls, including streams; each uses a thread."""

_MOST_CONNECTIONS = 256
"""Maximum number of connections; a runtime has one from each of its processes."""

_IDLE_SECONDS = 300.0
"""Time in seconds after which a connection without calls is closed."""

_PING_SECONDS, _PATIENCE_SECONDS = 60.0, 20.0
"""Interval of pings to clients, and time limit of their answers, in seconds.

Without an answer, the connection is closed.
"""

_GRACE_SECONDS = 5.0


class ConnectorServer:
    """A connector served at an address.

    Attributes:
        address: `host:port` that clients can connect to.
    """

    def __init__(self, connector: MaterializeConnector, listen: str, *, silent_seconds: float = SILENT_SECONDS) -> None:
        """Begin to serve.

        Args:
            connector: the connector.
            listen: `host:port`; port 0 picks a free port.
            silent_seconds: time in seconds for the handshake of a connection.

        Raises:
            UsageError: the address is malformed or cannot be bound.
        """
        host, separator, _ = listen.rpartition(":")
        if not separator or not host:
            raise UsageError(f"'{listen}' is not an address", hint="write HOST:PORT, such as 127.0.0.1:0")
        self._servicer = Servicer(connector)
        options = (
            *TRANSPORT_OPTIONS,
            *connection_limits(_MOST_CONNECTIONS, silent_seconds, _IDLE_SECONDS),
            ("grpc.keepalive_time_ms", round(_PING_SECONDS * 1000)),
            ("grpc.keepalive_timeout_ms", round(_PATIENCE_SECONDS * 1000)),
            ("grpc.so_reuseport", 0),
        )
        self._server = grpc.server(ThreadPoolExecutor(_MOST_CALLS, "call"), options=options)
        self._server.add_generic_rpc_handlers((driver_handler(self._servicer),))
        try:
            port = self._server.add_insecure_port(listen)
        except RuntimeError as exc:
            raise UsageError(
                f"cannot listen at {listen}: {exc}",
                hint="if another process uses the port, choose another port, or port 0",
            ) from exc
        self.address = f"{host}:{port}"
        self._server.start()

    def stop(self) -> None:
        """End all calls, and wait a few seconds until sessions have released their resources."""
        self._server.stop(None).wait(_GRACE_SECONDS)
        self._servicer.wait(_GRACE_SECONDS)


_CHUNK = 4096


def serve(connector: MaterializeConnector, listen: str) -> None:
    """Serve a connector until standard input ends, or until SIGTERM.

    The first line of standard output is the address. A parent process keeps a pipe to standard input open, so that this
    process ends with the parent, however the parent ends. This process then ignores Ctrl-C, because the parent may have
    work to finish. Without such a pipe, Ctrl-C ends the process.

    Args:
        connector: the connector.
        listen: `host:port`; port 0 picks a free port.

    Raises:
        UsageError: the address is malformed or cannot be bound.
    """
    ended = Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        ended.set()

    signal.signal(signal.SIGTERM, end)
    watched = _watched_input()
    signal.signal(signal.SIGINT, signal.SIG_IGN if watched is not None and not os.isatty(watched) else end)
    server = ConnectorServer(connector, listen)
    sys.stdout.write(f"{server.address}\n")
    sys.stdout.flush()
    if watched is not None:
        Thread(target=_await_end, args=(watched, ended), daemon=True).start()
    ended.wait()
    server.stop()


def _watched_input() -> int | None:
    """Return the descriptor of standard input if its end ends the connector; None for `/dev/null`."""
    if sys.stdin is None:
        return None
    descriptor = sys.stdin.fileno()
    return None if os.fstat(descriptor).st_rdev == os.stat(os.devnull).st_rdev else descriptor


def _await_end(descriptor: int, ended: Event) -> None:
    while os.read(descriptor, _CHUNK):
        pass
    ended.set()


class ConfigurationCheck:
    """Validates the configurations of a connector.

    Attributes:
        connector: name of the connector, for messages.
    """

    def __init__(self, connector: str, spec: ConnectorSpec) -> None:
        self.connector = connector
        self._endpoint = _compile(spec.endpoint_schema)
        self._resource = _compile(spec.resource_schema)

    def check(self, config: JSON, resources: Iterable[JSON]) -> None:
        """Validate the configurations of an endpoint and of its bindings.

        Raises:
            UsageError: a configuration fails its schema.
        """
        _check(self._endpoint, config, f"the endpoint's configuration of {self.connector}")
        for index, resource in enumerate(resources):
            _check(self._resource, resource, f"the resource of binding {index} of {self.connector}")


def _compile(schema: JSON) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(schema, mask="the value")


def _check(validator: jsonschema_rs.Draft202012Validator, value: JSON, what: str) -> None:
    faults = [
        f"{error.message}" + (f" at '{pointer}'" if pointer else "")
        for error in validator.iter_errors(value)
        for pointer in ["".join(f"/{escape(str(token))}" for token in error.instance_path)]
    ]
    if faults:
        raise UsageError(f"{what} is not valid: {'; '.join(faults)}")


_Response = TypeVar("_Response")


class Servicer:
    """Answers requests with a connector's results, and ends methods with the errors that it raises."""

    def __init__(self, connector: MaterializeConnector) -> None:
        self._connector = connector
        self._configuration = ConfigurationCheck(connector.name, connector.spec())
        self._workers: set[Thread] = set()

    def spec(self, request: pb.SpecRequest, context: grpc.ServicerContext) -> pb.SpecResponse:
        """Answer `Spec`."""
        return _answer(lambda: spec_response(self._connector.spec()), context)

    def validate(self, request: pb.ValidateRequest, context: grpc.ServicerContext) -> pb.ValidateResponse:
        """Answer `Validate`."""

        def answer() -> pb.ValidateResponse:
            validation = validation_of(request)
            resources = [binding.resource for binding in validation.bindings]
            self._configuration.check(validation.config, resources)
            bindings = self._connector.validate(validation)
            if len(bindings) != len(resources):
                counts = f"{len(bindings)} of {counted(len(resources), 'binding')}"
                raise ProtocolError(f"{self._connector.name} has validated {counts}")
            _check_paths(bindings)
            return validate_response(bindings)

        return _answer(answer, context)

    def apply(self, request: pb.ApplyRequest, context: grpc.ServicerContext) -> pb.ApplyResponse:
        """Answer `Apply`."""

        def answer() -> pb.ApplyResponse:
            application = application_of(request, context.invocation_metadata())
            self._check(application.materialization)
            return apply_response(self._connector.apply(application))

        return _answer(answer, context)

    def transactions(
        self, requests: Iterator[pb.TransactionRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.TransactionResponse]:
        """Answer `Transactions`."""
        outbox = Outbox()
        worker = Thread(target=self._work, args=(requests, outbox, context), name="transactions", daemon=True)
        if not context.add_callback(outbox.close):
            return
        self._workers.add(worker)
        worker.start()
        yield from outbox
        if outbox.error is not None:
            _abort(outbox.error, context)

    def wait(self, seconds: float) -> None:
        """Wait until no session is open, at most `seconds`."""
        end = time.monotonic() + seconds
        for worker in list(self._workers):
            worker.join(max(0.0, end - time.monotonic()))

    def _work(self, requests: Iterator[pb.TransactionRequest], outbox: Outbox, context: grpc.ServicerContext) -> None:
        """Serve a stream in a thread of its own, and end its outbox."""
        error: FlowError | None = None
        try:
            self._serve(requests, outbox, context)
        except (grpc.RpcError, ClientGoneError):
            outbox.close()
        except Exception as exc:
            error = error_of(exc)
        finally:
            outbox.end(error)
            self._workers.discard(current_thread())

    def _serve(self, requests: Iterator[pb.TransactionRequest], outbox: Outbox, context: grpc.ServicerContext) -> None:
        first = next(requests, None)
        if first is None:
            return
        StreamOrder().request(name_of(first))
        opening = opening_of(first.open)
        self._check(opening.materialization)
        session = self._connector.open(opening)
        try:
            if isinstance(session, CancellableSession) and not context.add_callback(session.cancel):
                return
            Transactions(requests, opening, session, outbox).run()
        finally:
            session.close()

    def _check(self, materialization: Materialization) -> None:
        self._configuration.check(materialization.config, [binding.resource for binding in materialization.bindings])


def _check_paths(bindings: Sequence[ValidatedBinding]) -> None:
    """Check that no two bindings have the same path, because their rows would be mixed."""
    indexes: dict[tuple[str, ...], int] = {}
    for index, binding in enumerate(bindings):
        other = indexes.setdefault(binding.resource_path, index)
        if other != index:
            where = ".".join(binding.resource_path)
            raise UsageError(
                (f"bindings {other} and {index} have the same resource '{where}'"),
                hint="give each binding a resource of its own",
            )


def _answer(answer: Callable[[], _Response], context: grpc.ServicerContext) -> _Response:
    try:
        return answer()
    except Exception as exc:
        _abort(error_of(exc), context)


def _abort(error: FlowError, context: grpc.ServicerContext) -> NoReturn:
    code, text, metadata = status_of(error)
    context.set_trailing_metadata(metadata)
    context.abort(code, text)
