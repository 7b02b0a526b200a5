"""A client's connection, from login to its end.

An error or a cancellation ends only the statement. The loss of a client ends its statement, too.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from ssl import SSLContext
from typing import TypeAlias

from derive.errors import SqlError
from derive.sql.backends import Backend, Backends
from derive.sql.pgwire import messages
from derive.sql.pgwire.conversation import Conversation
from derive.sql.pgwire.messages import (
    CANCEL_REQUEST,
    GSS_REQUEST,
    MOST_BYTES,
    SSL_REQUEST,
    Body,
    ConnectionEnded,
    Wire,
    startup_of,
)
from derive.sql.pgwire.passwords import MECHANISM, Exchange, Passwords
from derive.sql.pgwire.work import Statistics, Work, sql_error_of
from derive.sql.results import Session, TransactionStatus

_PASSWORD = b"p"
_NOT_REPLICATION = ("off", "false", "no", "0")
_SASL, _SASL_CONTINUE, _SASL_FINAL = 10, 11, 12


@dataclass(frozen=True, slots=True)
class Cancellation:
    """A request to cancel the statement of another connection.

    Attributes:
        process: number of the other connection.
        secret: secret of the client of the other connection.
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
        raise SqlError("0A000", what, hint="Connect with version 3.0 of the protocol of PostgreSQL.")
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
    """Read messages up to the first message that does not request encryption, and return this message."""
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
        hint = "The password file of the server lists users and passwords."
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
        raise SqlError("08P01", "malformed SCRAM message: the message is not a text") from exc


OpenSession: TypeAlias = Callable[[Mapping[str, str], Backends], Session]
"""Opens a session from a client's startup parameters (`user`, `database`, settings). May raise `SqlError`."""
_STATES = {
    TransactionStatus.IDLE: "idle",
    TransactionStatus.OPEN: "idle in transaction",
    TransactionStatus.FAILED: "idle in transaction (aborted)",
}

LOGIN_SECONDS = 15.0
"""Longest time for login, in seconds."""

_LINGER_SECONDS = 1.0
"""Time for a rejected connection to read the error, in seconds."""


@dataclass(frozen=True, slots=True)
class Service:
    """The state that all connections of a server share.

    Attributes:
        open_session: opens a session.
        passwords: users with passwords; None to admit all users.
        tls: TLS context; None without TLS.
        admit: counts a connection as logged in; raises `SqlError` if there are too many.
        cancel: cancels the statement of another connection.
        backends: returns all sessions, as one connection sees them.
        on_defect: function that takes unexpected errors.
        login_seconds: longest time for login, in seconds.
        statistics: counts of all connections.
    """

    open_session: OpenSession
    passwords: Passwords | None
    tls: SSLContext | None
    admit: Callable[[Connection], None]
    cancel: Callable[[Cancellation], None]
    backends: Callable[[Connection], Backends]
    on_defect: Callable[[BaseException], None]
    login_seconds: float
    statistics: Statistics


class Connection:
    """A client's connection.

    Attributes:
        process: number of the connection, for cancel requests.
        secret: secret that a cancel request must have.
        user: name of the user.
    """

    def __init__(self, wire: Wire, service: Service, process: int) -> None:
        self.process = process
        self.secret = secrets.randbits(32)
        self.user = ""
        self._database = ""
        self._begun = datetime.now(UTC)
        self._wire = wire
        self._service = service
        self._session: Session | None = None
        self._work: Work | None = None
        self._conversation: Conversation | None = None
        self._reason = SqlError("57P01", "terminating connection due to administrator command")

    async def run(self) -> None:
        """Serve the client until the client or the server ends the connection."""
        try:
            self._wire.on_lost(self.cancel)
            async with asyncio.timeout(self._service.login_seconds):
                conversation = await self._login()
            if conversation:
                await conversation.run()
        except ConnectionEnded:
            if self._wire.is_stopped:
                self._send_away(self._reason)
        except TimeoutError:
            self._send_away(SqlError("08P01", "canceling authentication due to timeout"))
        except OSError:  # the TLS handshake has failed
            self._wire.abort()
        except Exception as error:  # an error outside a statement ends the connection
            self._send_away(sql_error_of(error, self._service.on_defect))
        finally:
            await self._end()

    def cancel(self) -> None:
        """Cancel the current statement."""
        if self._work:
            self._work.cancel()

    def give_way(self) -> None:
        """Close a connection that has not logged in, to make room for another connection."""
        hint = "Connect again, and log in at once: this connection had waited longest, and was closed for a new one."
        self._reason = SqlError("53300", "too many connections wait to log in", hint=hint)
        self._wire.stop()
        self._abort_soon()

    def stop(self) -> None:
        """Close the connection, and cancel its statement."""
        self._wire.stop()
        self.cancel()

    @property
    def backend(self) -> Backend | None:
        """Return the connection as other sessions see it; None before login."""
        if self._session is None or self._work is None or self._conversation is None:
            return None
        application = self._session.parameters.get("application_name", "")
        state = "active" if self._work.is_at_work else _STATES[self._session.status]
        address, query = self._wire.address, self._conversation.text
        return Backend(self.process, self.user, self._database, application, address, self._begun, state, query)

    async def _login(self) -> Conversation | None:
        """Log the client in, and return its conversation; None for a cancel request."""
        begun = await begin(self._wire, self._service.passwords, self._service.tls)
        if isinstance(begun, Cancellation):
            self._service.cancel(begun)
            return None
        self._service.admit(self)
        self.user = begun["user"]
        self._database = begun.get("database") or self.user
        self._session = self._service.open_session(begun, self._service.backends(self))
        self._work = Work(self._session, self._service.on_defect, self._service.statistics)
        self._conversation = Conversation(self._wire, self._session, self._work)
        self._conversation.report_parameters()
        self._wire.send(messages.key_data(self.process, self.secret))
        self._conversation.ready()
        return self._conversation

    def _abort_soon(self) -> None:
        """Abort the connection soon if it waits for an idle client in a read, a handshake or the end of TLS."""
        asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._wire.abort)

    def _send_away(self, failure: SqlError) -> None:
        self._wire.send(messages.error(failure, "FATAL"))

    async def _end(self) -> None:
        self._wire.close()
        if self._conversation is None:
            self._abort_soon()
        endings: list[Awaitable[None]] = []
        if self._conversation:
            endings.append(self._conversation.end())
        if self._session:
            endings.append(self._session.close())
        for ending in endings:
            try:
                await ending
            except Exception as error:  # no client is left to notify
                self._service.on_defect(error)
