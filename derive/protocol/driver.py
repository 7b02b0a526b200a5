"""`materialize.Driver` in gRPC: a typed client, a service, and the transfer of errors.

The connectors of this project send the error itself, in addition to the status code and the text. Other connectors send
only the code and the text.

This module defines all properties of the transport that both sides share: paths of methods, and the length of messages.

Both sides also keep a `StreamOrder`: each side records the messages that it has received, and messages before it sends
them. A message out of order is an error that names the state and the message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, cast

import grpc
import orjson
from grpc import Call, RpcError, StatusCode

from derive.errors import (
    DeniedError,
    EndpointError,
    EndpointGoneError,
    FencedError,
    FlowError,
    InternalError,
    ProtocolError,
    UsageError,
)
from derive.protocol.stubs import materialize_pb2 as pb

Request: TypeAlias = Literal["open", "load", "prepare", "store", "commit"]
Response: TypeAlias = Literal["opened", "loaded", "prepared", "committed"]

_REQUESTS: Mapping[str, Mapping[str, str]] = {
    "before Open": {"open": "loading"},
    "loading": {"load": "loading", "prepare": "storing"},
    "storing": {"store": "storing", "commit": "loading"},
}
_RESPONSES: Mapping[str, Mapping[str, str]] = {
    "before Opened": {"opened": "loading"},
    "loading": {"loaded": "loading", "prepared": "committing"},
    "committing": {"committed": "loading"},
}
"""Permitted messages of each state, with the following state."""

_ANSWERED: Mapping[str, str] = {"opened": "open", "prepared": "prepare", "committed": "commit"}
_AWAITED: Mapping[str, str] = {"load": "opened", "prepare": "opened", "store": "prepared", "commit": "prepared"}
"""For each request, the response that must have arrived before it."""


class StreamOrder:
    """The progress of both directions of one stream.

    Two threads may use an instance, one for each direction.
    """

    def __init__(self) -> None:
        self._requesting, self._responding = "before Open", "before Opened"
        self._counts: Counter[str] = Counter()
        self._loads: Counter[int] = Counter()

    @property
    def is_storing(self) -> bool:
        """Return true if a transaction has been prepared, and not committed."""
        return self._requesting == "storing"

    def request(self, message: Request) -> None:
        """Record a message from the runtime to the connector.

        Raises:
            ProtocolError: the message is out of order.
        """
        self._requesting = _step(_REQUESTS, self._requesting, message)
        awaited = _AWAITED.get(message)
        if awaited and self._counts[awaited] < self._counts[_ANSWERED[awaited]]:
            raise ProtocolError(f"{message.title()} was sent before {awaited.title()} arrived")
        self._counts[message] += 1
        if message == "load":
            self._loads[self._counts["prepare"]] += 1

    def response(self, message: Response) -> None:
        """Record a message from the connector to the runtime.

        Raises:
            ProtocolError: the message is out of order.
        """
        self._responding = _step(_RESPONSES, self._responding, message)
        if message == "loaded":
            if not self._loads[self._counts["prepared"]]:
                raise ProtocolError("the connector sent Loaded in a transaction without Load")
            return
        asked = _ANSWERED[message]
        if self._counts[message] >= self._counts[asked]:
            raise ProtocolError(f"{message.title()} was sent without {asked.title()}")
        if message == "prepared":
            self._loads.pop(self._counts["prepared"], None)
        self._counts[message] += 1


def _step(table: Mapping[str, Mapping[str, str]], state: str, message: str) -> str:
    following = table[state].get(message)
    if following is None:
        expected = " or ".join(name.title() for name in table[state])
        raise ProtocolError(f"{message.title()} is not expected: the stream is {state}, which allows {expected}")
    return following


ERROR_KEY = "flow-error-bin"
"""Name of the trailing metadata with the error, as JSON."""

_MOST_BYTES = 4000
"""Size limit for the error in gRPC's metadata, bytes; only the text of a longer error is sent."""

_MOST_CHARACTERS = 2000

_CODES: tuple[tuple[type[FlowError], StatusCode], ...] = (
    (FencedError, StatusCode.ABORTED),
    (EndpointGoneError, StatusCode.UNAVAILABLE),
    (DeniedError, StatusCode.PERMISSION_DENIED),
    (EndpointError, StatusCode.FAILED_PRECONDITION),
    (ProtocolError, StatusCode.INVALID_ARGUMENT),
    (UsageError, StatusCode.INVALID_ARGUMENT),
    (InternalError, StatusCode.INTERNAL),
)
_KINDS: dict[StatusCode, type[FlowError]] = {
    StatusCode.ABORTED: FencedError,
    StatusCode.UNAVAILABLE: EndpointGoneError,
    StatusCode.DEADLINE_EXCEEDED: EndpointGoneError,
    StatusCode.CANCELLED: EndpointGoneError,
    StatusCode.PERMISSION_DENIED: DeniedError,
    StatusCode.UNAUTHENTICATED: DeniedError,
    StatusCode.INVALID_ARGUMENT: ProtocolError,
    StatusCode.UNIMPLEMENTED: ProtocolError,
}


def status_of(error: FlowError) -> tuple[StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Return the status code, text and trailing metadata of a method that raised an error."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), None)
    if code is None:
        code = StatusCode.UNAVAILABLE if error.heals else StatusCode.FAILED_PRECONDITION
    detail = orjson.dumps(error.to_json())
    metadata = ((ERROR_KEY, detail),) if len(detail) <= _MOST_BYTES else ()
    text = str(error)
    return code, text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…", metadata


def error_of(failure: RpcError, connector: str) -> FlowError:
    """Return the error of a failed method.

    Args:
        failure: exception of the call.
        connector: name of the connector, for messages.
    """
    if not isinstance(failure, Call):
        return EndpointError(f"{connector} has failed: {failure}")
    trailing = cast(Sequence[tuple[str, bytes]], failure.trailing_metadata() or ())
    for key, value in trailing:
        if key == ERROR_KEY:
            return FlowError.from_json(orjson.loads(value))
    code = failure.code()
    return _KINDS.get(code, EndpointError)(f"{connector} has failed ({code.name}): {failure.details()}")


SERVICE = "materialize.Driver"

MOST_MESSAGE_BYTES = 64 * 1024 * 1024
"""Largest accepted message; the default of gRPC is 4 MB."""

BEGUN = "flow-begun"
"""Metadata key of `Apply`: indices of bindings with stored data, separated by commas; optional for connectors."""

TRANSPORT_OPTIONS = (
    ("grpc.max_receive_message_length", MOST_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MOST_MESSAGE_BYTES),
)
"""Options for channels and servers."""

SILENT_SECONDS = 15.0
"""Time in seconds for a new connection to complete its handshake."""


def connection_limits(most: int, silent_seconds: float, idle_seconds: float) -> tuple[tuple[str, int], ...]:
    """Return options of a server, so that silent connections cannot use up its descriptors.

    Args:
        most: maximum number of connections; other connections are closed at once, and gRPC clients try again.
        silent_seconds: time in seconds for the handshakes of TLS and HTTP/2.
        idle_seconds: time in seconds after which a connection without calls is closed; its client connects again.
    """
    return (
        ("grpc.max_allowed_incoming_connections", most),
        ("grpc.server_handshake_timeout_ms", round(silent_seconds * 1000)),
        ("grpc.max_connection_idle_ms", round(idle_seconds * 1000)),
    )


_CHANNEL_OPTIONS = (
    *TRANSPORT_OPTIONS,
    # Detect a machine that has disappeared. gRPC servers accept one ping in five minutes.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 60_000),
    ("grpc.http2.max_pings_without_data", 0),
)


class DriverClient:
    """The methods of a connector, over a channel.

    Attributes:
        spec: describes the connector's configuration.
        validate: returns the constraints on fields of bindings.
        apply: prepares the endpoint.
        transactions: the stream of a shard's transactions; a request may be serialized already.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self.spec = channel.unary_unary(
            f"/{SERVICE}/Spec",
            request_serializer=pb.SpecRequest.SerializeToString,
            response_deserializer=pb.SpecResponse.FromString,
        )
        self.validate = channel.unary_unary(
            f"/{SERVICE}/Validate",
            request_serializer=pb.ValidateRequest.SerializeToString,
            response_deserializer=pb.ValidateResponse.FromString,
        )
        self.apply = channel.unary_unary(
            f"/{SERVICE}/Apply",
            request_serializer=pb.ApplyRequest.SerializeToString,
            response_deserializer=pb.ApplyResponse.FromString,
        )
        self.transactions = channel.stream_stream(
            f"/{SERVICE}/Transactions",
            request_serializer=_serialized,
            response_deserializer=pb.TransactionResponse.FromString,
        )


def _serialized(request: pb.TransactionRequest | bytes) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()


def open_channel(address: str) -> grpc.Channel:
    """Return a channel to the connector at `host:port`; the channel connects on first use."""
    return grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)


class DriverServicer(Protocol):
    """The implementation of the methods."""

    def spec(self, request: pb.SpecRequest, context: grpc.ServicerContext) -> pb.SpecResponse:
        """Answer `Spec`."""

    def validate(self, request: pb.ValidateRequest, context: grpc.ServicerContext) -> pb.ValidateResponse:
        """Answer `Validate`."""

    def apply(self, request: pb.ApplyRequest, context: grpc.ServicerContext) -> pb.ApplyResponse:
        """Answer `Apply`."""

    def transactions(
        self, requests: Iterator[pb.TransactionRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.TransactionResponse]:
        """Answer `Transactions`."""


def driver_handler(servicer: DriverServicer) -> grpc.GenericRpcHandler[Any, Any]:
    """Return the handler that a gRPC server needs to serve the methods."""
    methods = {
        "Spec": grpc.unary_unary_rpc_method_handler(
            servicer.spec, pb.SpecRequest.FromString, pb.SpecResponse.SerializeToString
        ),
        "Validate": grpc.unary_unary_rpc_method_handler(
            servicer.validate, pb.ValidateRequest.FromString, pb.ValidateResponse.SerializeToString
        ),
        "Apply": grpc.unary_unary_rpc_method_handler(
            servicer.apply, pb.ApplyRequest.FromString, pb.ApplyResponse.SerializeToString
        ),
        "Transactions": grpc.stream_stream_rpc_method_handler(
            servicer.transactions, pb.TransactionRequest.FromString, pb.TransactionResponse.SerializeToString
        ),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)
