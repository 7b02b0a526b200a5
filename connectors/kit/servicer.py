"""The gRPC service `materialize.Driver` of a connector, and the process that serves it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread, current_thread
from types import FrameType
from typing import NoReturn, TypeVar

import grpc
import jsonschema_rs

from connectors.kit.connector import CancellableSession, MaterializeConnector
from connectors.kit.messages import (
    application_of,
    apply_response,
    opening_of,
    spec_response,
    validate_response,
    validation_of,
)
from connectors.kit.requests import ConnectorSpec, Materialization, ValidatedBinding
from connectors.kit.stream import ClientGoneError, Outbox, Transactions, error_of, name_of
from derive.document.pointer import JSON, escape
from derive.errors import FlowError, ProtocolError, UsageError
from derive.protocol.driver import SILENT_SECONDS, TRANSPORT_OPTIONS, connection_limits, driver_handler, status_of
from derive.protocol.order import StreamOrder
from derive.protocol.stubs import materialize_pb2 as pb

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
                hint="if another process uses the port, choose another one, or port 0",
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
                raise ProtocolError(
                    f"{self._connector.name} has validated {len(bindings)} of {len(resources)} bindings"
                )
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
