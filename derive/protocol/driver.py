"""`materialize.Driver` in gRPC: a typed client and a service.

This module defines all properties of the transport that both sides share: paths of methods, and the length of messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import grpc

from derive.protocol.stubs import materialize_pb2 as pb

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
    """Return a channel to the connector at `host:port`, which connects at its first use."""
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
