"""The start of a connection: encryption, protocol version, authentication, or a cancel request."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ssl import SSLContext

from derive.errors import SqlError
from derive.sql.pgwire import messages
from derive.sql.pgwire.passwords import Passwords
from derive.sql.pgwire.requests import CANCEL_REQUEST, GSS_REQUEST, SSL_REQUEST, Body, startup_of
from derive.sql.pgwire.scram import MECHANISM, Exchange
from derive.sql.pgwire.wire import MOST_BYTES, Wire

_PASSWORD = b"p"
_NOT_REPLICATION = ("off", "false", "no", "0")
_SASL, _SASL_CONTINUE, _SASL_FINAL = 10, 11, 12


@dataclass(frozen=True, slots=True)
class Cancellation:
    """A request to cancel the statement of another connection.

    Attributes:
        process: number of that connection.
        secret: secret of that connection's client.
    """

    process: int
    secret: int


async def begin(wire: Wire, passwords: Passwords | None, tls: SSLContext | None) -> dict[str, str] | Cancellation:
    """Log a client in.

    Args:
        wire: the connection.
        passwords: users with passwords; None to admit all users.
        tls: TLS context for clients that ask for TLS; None without TLS.

    Returns:
        The startup parameters (`user`, `database`, settings), or a cancel request.

    Raises:
        SqlError: the login is refused, or a message is invalid.
        ConnectionEnded: the connection is lost.
    """
    body = await _version(wire, tls)
    (version,) = struct.unpack_from("!I", body)
    if version == CANCEL_REQUEST:
        reader = Body(body[4:])
        return Cancellation(reader.oid(), reader.oid())
    if version >> 16 != 3:
        what = f"unsupported frontend protocol {version >> 16}.{version & 0xFFFF}: server supports 3.0 to 3.0"
        raise SqlError("0A000", what, hint="this server speaks the protocol of PostgreSQL")
    parameters = startup_of(body)
    unknown = [name for name in parameters if name.startswith("_pq_.")]
    if version & 0xFFFF or unknown:
        wire.send(messages.negotiate(unknown))
    if not parameters.get("user"):
        raise SqlError("28000", "no PostgreSQL user name specified in startup packet")
    if parameters.get("replication", "off").lower() not in _NOT_REPLICATION:
        raise SqlError("0A000", "replication is not supported", hint="SUBSCRIBE follows relations")
    if passwords:
        await _prove(wire, passwords, parameters["user"])
    wire.send(messages.authentication(0))
    wire.most_bytes = MOST_BYTES
    return {name: value for name, value in parameters.items() if name not in unknown}


async def _version(wire: Wire, tls: SSLContext | None) -> bytes:
    """Read messages up to the first that does not ask for encryption, and return it."""
    is_encrypted = False
    while True:
        body = await wire.receive_startup()
        (version,) = struct.unpack_from("!I", body)
        if version == GSS_REQUEST or (version == SSL_REQUEST and (tls is None or is_encrypted)):
            wire.send(b"N")
            wire.flush()
        elif version == SSL_REQUEST and tls:
            wire.send(b"S")
            wire.flush()
            await wire.encrypt(tls)
            is_encrypted = True
        else:
            return body


async def _prove(wire: Wire, passwords: Passwords, user: str) -> None:
    wire.send(messages.authentication(_SASL, messages.text(MECHANISM) + b"\0"))
    reader = Body(await _answer(wire))
    mechanism = reader.text()
    if mechanism != MECHANISM:
        raise SqlError("08P01", f"client selected an invalid SASL authentication mechanism: {mechanism}")
    first = reader.bytes(max(0, reader.long()))
    exchange = Exchange(passwords.verifier_of(user))
    wire.send(messages.authentication(_SASL_CONTINUE, exchange.challenge(_ascii(first)).encode()))
    proof = exchange.proof(_ascii(await _answer(wire)))
    if proof is None:
        hint = "users and passwords are those of the server's password file"
        raise SqlError("28P01", f'password authentication failed for user "{user}"', hint=hint)
    wire.send(messages.authentication(_SASL_FINAL, proof.encode()))


async def _answer(wire: Wire) -> bytes:
    wire.flush()
    kind, body = await wire.receive()
    if kind != _PASSWORD:
        raise SqlError("08P01", f"expected an answer to the request for a password, got message type {kind[0]}")
    return body


def _ascii(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise SqlError("08P01", "malformed SCRAM message: it is no text") from exc
