"""One client's conversation: its messages in order, from the first to the last, and what is answered.

A failure ends a statement and nothing else; so does a request to cancel. A client that goes away ends its statement.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from ssl import SSLContext
from typing import TypeAlias

from derive.errors import SqlError
from derive.sql.backends import Backend, Backends
from derive.sql.outcome import Session, TransactionStatus
from derive.sql.pgwire import messages
from derive.sql.pgwire.conversation import Conversation
from derive.sql.pgwire.failure import sql_error_of
from derive.sql.pgwire.passwords import Passwords
from derive.sql.pgwire.startup import Cancellation, begin
from derive.sql.pgwire.wire import ConnectionEnded, Wire
from derive.sql.pgwire.work import Work

OpenSession: TypeAlias = Callable[[Mapping[str, str], Backends], Session]
"""Begins a session for a client; told what it says of itself (`user`, `database`, settings). May raise `SqlError`."""
_STATES = {
    TransactionStatus.IDLE: "idle",
    TransactionStatus.OPEN: "idle in transaction",
    TransactionStatus.FAILED: "idle in transaction (aborted)",
}

LOGIN_SECONDS = 15.0
"""How long a connection may take to log in."""

_LINGER_SECONDS = 1.0
"""How long a connection that is not let in may take to read why."""


@dataclass(frozen=True, slots=True)
class Service:
    """What all connections of a server have in common.

    Attributes:
        open_session: begins a session.
        passwords: of who may connect; None for everyone.
        tls: with what connections are encrypted; None if they cannot be.
        admit: has a connection counted as one that is at work; raises `SqlError` if there are too many.
        cancel: has what another connection does cancelled.
        backends: all sessions, as one of them sees them.
        on_defect: told of errors that nobody foresaw.
        login_seconds: how long a connection may take to log in.
    """

    open_session: OpenSession
    passwords: Passwords | None
    tls: SSLContext | None
    admit: Callable[[Connection], None]
    cancel: Callable[[Cancellation], None]
    backends: Callable[[Connection], Backends]
    on_defect: Callable[[BaseException], None]
    login_seconds: float


class Connection:
    """A client's connection, from its first byte to its last.

    Attributes:
        process: number by which the client cancels.
        secret: with which it proves that it may.
        user: who has connected.
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
        """Serve the client until it or the server has had enough."""
        try:
            self._wire.on_lost(self.cancel)
            async with asyncio.timeout(self._service.login_seconds):
                conversation = await self._login()
            if conversation:
                await conversation.go_on()
        except ConnectionEnded:
            if self._wire.is_stopped:
                self._send_away(self._reason)
        except TimeoutError:
            self._send_away(SqlError("08P01", "canceling authentication due to timeout"))
        except OSError:  # where TLS cannot be agreed upon
            self._wire.abort()
        except Exception as error:  # outside of statements it leaves nothing to go on with
            self._send_away(sql_error_of(error, self._service.on_defect))
        finally:
            await self._end()

    def cancel(self) -> None:
        """Have the statement at work end."""
        if self._work:
            self._work.cancel()

    def give_way(self) -> None:
        """End a connection that has not logged in, for another one."""
        hint = "another connection came, and this one had waited longest; log in at once, and try again"
        self._reason = SqlError("53300", "too many connections wait to log in", hint=hint)
        self._wire.stop()
        self._abort_soon()

    def stop(self) -> None:
        """End the connection, and before it the statement at work."""
        self._wire.stop()
        self.cancel()

    @property
    def backend(self) -> Backend | None:
        """What others see of it; None before it is let in."""
        if self._session is None or self._work is None or self._conversation is None:
            return None
        application = self._session.parameters.get("application_name", "")
        state = "active" if self._work.is_at_work else _STATES[self._session.status]
        address, query = self._wire.address, self._conversation.text
        return Backend(self.process, self.user, self._database, application, address, self._begun, state, query)

    async def _login(self) -> Conversation | None:
        """Begin a conversation; None if the client wants none."""
        begun = await begin(self._wire, self._service.passwords, self._service.tls)
        if isinstance(begun, Cancellation):
            self._service.cancel(begun)
            return None
        self._service.admit(self)
        self.user = begun["user"]
        self._database = begun.get("database") or self.user
        self._session = self._service.open_session(begun, self._service.backends(self))
        self._work = Work(self._session, self._service.on_defect)
        self._conversation = Conversation(self._wire, self._session, self._work)
        self._conversation.tell_parameters()
        self._wire.send(messages.key_data(self.process, self.secret))
        self._conversation.ready()
        return self._conversation

    def _abort_soon(self) -> None:
        """End what waits for a client that does nothing: its reading, a handshake, or the end of TLS."""
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
            except Exception as error:  # nobody is left to be told
                self._service.on_defect(error)
