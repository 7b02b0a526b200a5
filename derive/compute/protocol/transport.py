"""`flow.compute.v1.Compute` in gRPC: settings that both ends share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio

from derive.compute.protocol.security import Security
from derive.protocol.stubs import compute_pb2 as pb

SessionCall: TypeAlias = "grpc.aio.StreamStreamCall[pb.ComputeCommand, pb.ComputeResponse]"
"""A session at the client."""
SessionContext: TypeAlias = "grpc.aio.ServicerContext[pb.ComputeCommand, pb.ComputeResponse]"
"""A session at the server."""

SERVICE = "flow.compute.v1.Compute"

_PING_MILLISECONDS, _PATIENCE_MILLISECONDS = 2_000, 3_000

OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # batches of rows have no size limit
    ("grpc.max_send_message_length", -1),
    # An unresponsive peer is considered gone soon, so that others can take over its work.
    ("grpc.keepalive_time_ms", _PING_MILLISECONDS),
    ("grpc.keepalive_timeout_ms", _PATIENCE_MILLISECONDS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", _PING_MILLISECONDS // 2),
    ("grpc.http2.min_ping_interval_without_data_ms", _PING_MILLISECONDS // 2),
)
"""Options of channels and servers."""


def open_channel(address: str, security: Security) -> grpc.aio.Channel:
    """Return a channel to the instance at `host:port`, for the running event loop; it connects on use."""
    if security.certificate is None:
        return grpc.aio.insecure_channel(address, options=OPTIONS)
    credentials = grpc.ssl_channel_credentials(security.authority, security.key, security.certificate)
    return grpc.aio.secure_channel(address, credentials, options=OPTIONS)


def add_port(server: grpc.aio.Server, listen: str, security: Security) -> int:
    """Make a server listen at `host:port`; return the port."""
    if security.certificate is None:
        return server.add_insecure_port(listen)
    pairs = [(security.key or b"", security.certificate)]
    is_mutual = security.authority is not None
    return server.add_secure_port(listen, grpc.ssl_server_credentials(pairs, security.authority, is_mutual))


def open_session(
    channel: grpc.aio.Channel, commands: AsyncIterator[pb.ComputeCommand], security: Security
) -> SessionCall:
    """Begin a session."""
    method = channel.stream_stream(
        f"/{SERVICE}/Session",
        request_serializer=pb.ComputeCommand.SerializeToString,
        response_deserializer=pb.ComputeResponse.FromString,
    )
    return method(commands, metadata=security.metadata, wait_for_ready=False)


def session_handler(
    serve: Callable[[AsyncIterator[pb.ComputeCommand], SessionContext], Awaitable[None]],
) -> grpc.GenericRpcHandler[Any, Any]:
    """Return the gRPC handler of sessions."""
    method = grpc.stream_stream_rpc_method_handler(
        serve, pb.ComputeCommand.FromString, pb.ComputeResponse.SerializeToString
    )
    return grpc.method_handlers_generic_handler(SERVICE, {"Session": method})
