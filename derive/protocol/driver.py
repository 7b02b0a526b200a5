"""`materialize.Driver` in gRPC: a typed client, and what serves it.

Everything about the transport that both sides must agree on is here: paths of methods, and how long a message may be.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import grpc

from derive.protocol.stubs import materialize_pb2 as pb

SERVICE = "materialize.Driver"

MOST_MESSAGE_BYTES = 64 * 1024 * 1024
"""The longest message that is taken; gRPC by itself takes 4 MB."""

BEGUN = "flow-begun"
"""Metadata of `Apply`: indices of bindings of which something was stored, with commas. Connectors need not know it."""

TRANSPORT_OPTIONS = (
    ("grpc.max_receive_message_length", MOST_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MOST_MESSAGE_BYTES),
)
"""For channels and servers."""

_CHANNEL_OPTIONS = (
    *TRANSPORT_OPTIONS,
    # A machine that is gone says nothing. Servers of gRPC take no more than a question in five minutes.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 60_000),
    ("grpc.http2.max_pings_without_data", 0),
)


class DriverClient:
    """The methods of a connector, over a channel.

    Attributes:
        spec: what the connector can be configured with.
        validate: what it asks of the fields of bindings.
        apply: makes the endpoint ready.
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
    """A channel to the connector at `host:port`; it connects when it is used."""
    return grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)


class DriverServicer(Protocol):
    """What answers the methods."""

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
    """What a gRPC server is given so that it serves the methods."""
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
