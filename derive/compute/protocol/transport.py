"""Sessions of controllers and instances over gRPC: addresses, certificates and tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import grpc.aio

from derive.errors import UsageError
from derive.protocol.stubs import compute_pb2 as pb

_TOKEN = "authorization"


@dataclass(frozen=True, slots=True)
class Security:
    """Credentials of machines. Without any, both ends must be on one machine.

    Attributes:
        token: a shared secret.
        certificate: PEM of this end's certificate, for mutual TLS.
        key: PEM of its private key.
        authority: PEM of the certificate that signs those of others.
    """

    token: str | None = None
    certificate: bytes | None = None
    key: bytes | None = None
    authority: bytes | None = None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a client's call."""
        return ((_TOKEN, f"Bearer {self.token}"),) if self.token else ()

    def is_authorized(self, context: SessionContext) -> bool:
        """Return whether a call is authorized: it carries the token, or no token is required."""
        import hmac

        if self.token is None:
            return True
        said = dict(context.invocation_metadata() or ()).get(_TOKEN, "")
        return hmac.compare_digest(said if isinstance(said, bytes) else said.encode(), f"Bearer {self.token}".encode())


OPEN = Security()
"""No credentials: both ends are on one machine."""


_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_MOST_PORT = 65_535


def place_of(address: str, option: str, security: Security, *, listens: bool = False) -> tuple[str, int]:
    """Return the host and the port of an instance.

    Args:
        address: `host:port`.
        option: name of the option with the address.
        security: credentials of both ends.
        listens: whether the instance listens there: port 0 then picks a free one.

    Raises:
        UsageError: the address is malformed, or the connection would not be authenticated.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit() or int(port) > _MOST_PORT or not host:
        raise UsageError(f"{option} must be HOST:PORT, and is '{address}'", hint="such as 127.0.0.1:6876")
    if int(port) == 0 and not listens:
        raise UsageError(
            f"port 0 of {host} cannot be reached", hint="give the port that the instance prints when it starts"
        )
    if host.strip("[]") not in _LOOPBACK and security.token is None and security.authority is None:
        raise UsageError(
            f"{host} is reachable from other machines, and clients of an instance can read the data folder",
            hint="give both ends a token file, or TLS certificates and the authority that signed them",
        )
    return host.strip("[]"), int(port)


def place_named(address: str) -> str:
    """Return a valid address in canonical form, for comparisons."""
    host, _, port = address.rpartition(":")
    return f"{'127.0.0.1' if host.lower() == 'localhost' else host.lower()}:{int(port)}"


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
