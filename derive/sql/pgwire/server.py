"""The server: listens, opens a session for each client, limits file descriptors, and closes sessions in order."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from ssl import PROTOCOL_TLS_SERVER, SSLContext, SSLError

from derive.errors import FlowError, SqlError, UsageError
from derive.plural import counted
from derive.sql.backends import Backend, Backends
from derive.sql.pgwire.connection import LOGIN_SECONDS, Cancellation, Connection, OpenSession, Service
from derive.sql.pgwire.messages import Wire
from derive.sql.pgwire.passwords import Passwords
from derive.sql.pgwire.work import Statistics
from derive.web_access import is_loopback, listening_failure, port_hint

MOST_CONNECTIONS, MOST_WAITING = 400, 100
"""Greatest number of clients, and of other connections before login."""

_BACKLOG = 256

_HIDDEN = "<insufficient privilege>"
"""Replaces the statement of another user, as in PostgreSQL."""


class Server:
    """A server for PostgreSQL clients. All methods are called in one event loop.

    Attributes:
        statistics: counts of all connections.
    """

    def __init__(
        self,
        open_session: OpenSession,
        *,
        passwords: Passwords | None = None,
        tls: SSLContext | None = None,
        most_connections: int = MOST_CONNECTIONS,
        most_waiting: int = MOST_WAITING,
        login_seconds: float = LOGIN_SECONDS,
        on_defect: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        """Configure the server.

        Args:
            open_session: opens a session for a client.
            passwords: users with passwords; None to admit all users of this machine, and no others.
            tls: TLS context for clients that ask for TLS.
            most_connections: greatest number of clients.
            most_waiting: greatest number of connections before login; a new connection closes the oldest one.
            login_seconds: longest time for login, in seconds.
            on_defect: function that takes unexpected errors.
        """
        self.statistics = Statistics()
        self._service = Service(
            *(open_session, passwords, tls, self._admit, self._cancel, self._backends, on_defect, login_seconds),
            self.statistics,
        )
        self._most_connections, self._most_waiting = most_connections, most_waiting
        self._processes = itertools.count(1)
        self._connections: dict[int, Connection] = {}
        self._admitted: set[int] = set()
        self._waiting: dict[int, Connection] = {}  # before login, the oldest first
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Start to listen.

        Args:
            host: name or address.
            port: port; 0 for any free port.

        Returns:
            The address and the port.

        Raises:
            UsageError: other machines could connect without a password.
            FlowError: the address cannot be used.
        """
        loop = asyncio.get_running_loop()
        if self._service.passwords is None and not is_loopback(host):
            what = f"{host} can be reached from other machines, and the server has no password file"
            raise UsageError(what, hint="give a --password-file, or listen at 127.0.0.1")
        try:
            self._listeners = await loop.create_server(
                lambda: Wire(self._connected), host, port, backlog=_BACKLOG, reuse_address=True
            )
        except OSError as exc:
            what = f"cannot listen at {host}:{port}: {listening_failure(exc)}"
            raise FlowError(what, hint=port_hint("--listen")) from exc
        address = self._listeners.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def close(self, seconds: float = 10.0) -> None:
        """Stop listening, and close all connections.

        Args:
            seconds: time for statements to end; later, statements are aborted.
        """
        if self._listeners:
            self._listeners.close()
        for connection in list(self._connections.values()):
            connection.stop()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=seconds)
        if self._listeners:
            await self._listeners.wait_closed()
            self._listeners = None

    @property
    def connections(self) -> int:
        """Return the number of clients."""
        return len(self._admitted)

    @property
    def waiting(self) -> int:
        """Return the number of connections before login."""
        return len(self._waiting)

    @property
    def is_listening(self) -> bool:
        """Return whether clients can connect."""
        return self._listeners is not None

    @property
    def states(self) -> list[str]:
        """Return the state of each session; any thread may ask."""
        backends = (connection.backend for connection in list(self._connections.values()))
        return [backend.state for backend in backends if backend is not None]

    def _connected(self, wire: Wire) -> None:
        self.statistics.connections += 1
        connection = Connection(wire, self._service, next(self._processes))
        self._connections[connection.process] = connection
        while len(self._waiting) >= self._most_waiting:
            self._waiting.pop(next(iter(self._waiting))).give_way()
        self._waiting[connection.process] = connection
        wire.keep_alive()
        task = asyncio.get_running_loop().create_task(connection.run())
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, connection))

    def _ended(self, task: asyncio.Task[None], connection: Connection) -> None:
        self._tasks.discard(task)
        self._connections.pop(connection.process, None)
        self._waiting.pop(connection.process, None)
        self._admitted.discard(connection.process)
        if not task.cancelled() and (error := task.exception()):
            self._service.on_defect(error)

    def _admit(self, connection: Connection) -> None:
        if len(self._admitted) >= self._most_connections:
            what = "sorry, too many clients already"
            hint = f"The server has room for {counted(self._most_connections, 'connection')}."
            raise SqlError("53300", what, hint=hint)
        self._admitted.add(connection.process)
        self._waiting.pop(connection.process, None)

    def _cancel(self, cancellation: Cancellation) -> None:
        connection = self._connections.get(cancellation.process)
        if connection and hmac.compare_digest(
            connection.secret.to_bytes(4, "big"), cancellation.secret.to_bytes(4, "big")
        ):
            connection.cancel()

    def _backends(self, own: Connection) -> Backends:
        return _ServerBackends(self._connections, own, is_shared=self._service.passwords is None)


class _ServerBackends:
    """All sessions of a server, as one session sees them; it may see and end sessions of the same user.

    Args:
        connections: all connections, by number.
        own: connection of the session.
        is_shared: whether each session may see and end all other sessions, because there are no passwords.
    """

    def __init__(self, connections: Mapping[int, Connection], own: Connection, *, is_shared: bool) -> None:
        self._connections = connections
        self._own = own
        self._is_shared = is_shared
        self.process = own.process

    def all(self) -> Sequence[Backend]:
        """Return all sessions; statements of other users are hidden."""
        backends = [backend for connection in self._connections.values() if (backend := connection.backend)]
        return [backend if self._may_touch(backend.user) else replace(backend, query=_HIDDEN) for backend in backends]

    def _may_touch(self, user: str) -> bool:
        return self._is_shared or user == self._own.user

    def cancel(self, process: int) -> bool:
        """Cancel the statement of a session; return whether there is such a session."""
        return self._ended(process, Connection.cancel)

    def terminate(self, process: int) -> bool:
        """Close a session; return whether there is such a session."""
        return self._ended(process, Connection.stop)

    def _ended(self, process: int, end: Callable[[Connection], None]) -> bool:
        connection = self._connections.get(process)
        if connection is None or connection.backend is None:
            return False
        if not self._may_touch(connection.user):
            raise SqlError("42501", "permission denied", hint="Only the user of a session can end the session.")
        end(connection)
        return True


def tls_context(certificate: str, key: str | None) -> SSLContext:
    """Return the TLS context of a certificate.

    Args:
        certificate: file of the certificate and its chain, in PEM.
        key: file of the private key; None if it is in the same file.

    Raises:
        UsageError: the files cannot be read, or do not match.
    """
    context = SSLContext(PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, SSLError) as exc:
        raise UsageError(f"the certificate {certificate} cannot be used: {exc}", hint="PEM is expected") from exc
    return context


_RESERVED = 384
"""Number of file descriptors reserved for files of collections, databases and indexes."""

_MOST_DESCRIPTORS = 65_536


def raised_limit() -> int:
    """Raise the process's limit of file descriptors, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    desired = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= desired:
        return _MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (desired, hard))
    return desired


def shares(most_connections: int, descriptors: int) -> tuple[int, int]:
    """Divide file descriptors: `_RESERVED` descriptors, but at most half of all, are for files.

    >>> shares(400, 1024), shares(400, 256), shares(5000, 65536)
    ((400, 100), (96, 32), (5000, 100))

    Args:
        most_connections: requested number of clients.
        descriptors: number of file descriptors.

    Returns:
        The greatest number of clients, and of connections before login.
    """
    room = descriptors - min(_RESERVED, descriptors // 2)
    waiting = max(1, min(MOST_WAITING, room // 4))
    return max(1, min(most_connections, room - waiting)), waiting
