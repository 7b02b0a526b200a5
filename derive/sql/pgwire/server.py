"""The server: listens, gives every client a session, shares out file descriptors, and ends sessions in order."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import resource
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address
from ssl import PROTOCOL_TLS_SERVER, SSLContext, SSLError

from derive.errors import FlowError, SqlError, UsageError
from derive.sql.backends import Backend, Backends
from derive.sql.pgwire.connection import LOGIN_SECONDS, Connection, OpenSession, Service
from derive.sql.pgwire.passwords import Passwords
from derive.sql.pgwire.startup import Cancellation
from derive.sql.pgwire.wire import Wire

MOST_CONNECTIONS, MOST_WAITING = 400, 100
"""Clients that there may be, and connections beside these that have yet to log in."""

_BACKLOG = 256

_HIDDEN = "<insufficient privilege>"
"""In the place of another user's statement, as PostgreSQL has it."""


class Server:
    """Serves sessions to PostgreSQL's clients. All its methods are called in one event loop."""

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
        """Prepare to listen.

        Args:
            open_session: begins a session for a client.
            passwords: of who may connect; None for everyone on this machine, and nobody else.
            tls: with what connections are encrypted where clients ask for it.
            most_connections: how many clients there may be at once.
            most_waiting: how many connections there may be that have not logged in; the oldest makes way for a new one.
            login_seconds: how long a connection may take to log in.
            on_defect: told of errors that nobody foresaw.
        """
        self._service = Service(
            *(open_session, passwords, tls, self._admit, self._cancel, self._backends, on_defect, login_seconds)
        )
        self._most_connections, self._most_waiting = most_connections, most_waiting
        self._processes = itertools.count(1)
        self._connections: dict[int, Connection] = {}
        self._admitted: set[int] = set()
        self._waiting: dict[int, Connection] = {}  # to be let in, the oldest first
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Let clients come.

        Args:
            host: name or address.
            port: 0 for any that is free.

        Returns:
            The address and the port.

        Raises:
            UsageError: others than on this machine could come, without a password.
            FlowError: nobody can listen there.
        """
        loop = asyncio.get_running_loop()
        if self._service.passwords is None and not _is_loopback(host):
            what = f"{host} can be reached from other machines, and there is no password"
            raise UsageError(what, hint="give a --password-file, or listen at 127.0.0.1")
        try:
            self._listeners = await loop.create_server(
                lambda: Wire(self._connected), host, port, backlog=_BACKLOG, reuse_address=True
            )
        except OSError as exc:
            hint = "choose another port with --listen, or 0 for any"
            raise FlowError(f"nobody can listen at {host}:{port}: {exc.strerror or exc}", hint=hint) from exc
        address = self._listeners.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def close(self, seconds: float = 10.0) -> None:
        """Let nobody in, end every statement and every connection.

        Args:
            seconds: how long statements may take to end; then they are cut off.
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
        """How many clients there are."""
        return len(self._admitted)

    @property
    def waiting(self) -> int:
        """How many connections have yet to log in."""
        return len(self._waiting)

    def _connected(self, wire: Wire) -> None:
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
            raise SqlError("53300", what, hint=f"at most {self._most_connections} connections are served at once")
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
    """All sessions of a server, for one of them, which may see and end those of its user.

    Args:
        connections: all, by number.
        own: of the session.
        is_shared: whether everyone may see and end everyone's, since nobody has proved who they are.
    """

    def __init__(self, connections: Mapping[int, Connection], own: Connection, *, is_shared: bool) -> None:
        self._connections = connections
        self._own = own
        self._is_shared = is_shared
        self.process = own.process

    def all(self) -> Sequence[Backend]:
        """All there are now; what those of others do is theirs alone."""
        backends = [backend for connection in self._connections.values() if (backend := connection.backend)]
        return [backend if self._may_touch(backend.user) else replace(backend, query=_HIDDEN) for backend in backends]

    def _may_touch(self, user: str) -> bool:
        return self._is_shared or user == self._own.user

    def cancel(self, process: int) -> bool:
        """Have the statement of a session end; whether there is such a session."""
        return self._ended(process, Connection.cancel)

    def terminate(self, process: int) -> bool:
        """End a session; whether there is such a session."""
        return self._ended(process, Connection.stop)

    def _ended(self, process: int, end: Callable[[Connection], None]) -> bool:
        connection = self._connections.get(process)
        if connection is None or connection.backend is None:
            return False
        if not self._may_touch(connection.user):
            raise SqlError("42501", "permission denied", hint="only its own user ends a session")
        end(connection)
        return True


def tls_context(certificate: str, key: str | None) -> SSLContext:
    """With what connections are encrypted.

    Args:
        certificate: file of the certificate, and of those up to a root, as PEM.
        key: file of its private key; None if it is in the same file.

    Raises:
        UsageError: the files do not fit, or cannot be read.
    """
    context = SSLContext(PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, SSLError) as exc:
        raise UsageError(f"the certificate {certificate} cannot be used: {exc}", hint="PEM is expected") from exc
    return context


def _is_loopback(host: str) -> bool:
    """Whether a host is this machine, and nothing else can reach it there."""
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None)} if host else set()
    except OSError:
        return True  # nobody can listen there, which is said better later
    return bool(addresses) and all(ip_address(str(address).partition("%")[0]).is_loopback for address in addresses)


_RESERVED = 384
"""Descriptors for work: files of collections, of databases and of indexes that threads have open at one moment."""

_MOST_DESCRIPTORS = 65_536


def raised_limit() -> int:
    """Have the process be allowed as many descriptors as may be, and return how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def shares(most_connections: int, descriptors: int) -> tuple[int, int]:
    """Share descriptors out: work has `_RESERVED` of them, or half of few.

    >>> shares(400, 1024), shares(400, 256), shares(5000, 65536)
    ((400, 100), (96, 32), (5000, 100))

    Args:
        most_connections: how many clients are wanted.
        descriptors: how many there are.

    Returns:
        How many clients there may be, and how many connections that have not logged in.
    """
    room = descriptors - min(_RESERVED, descriptors // 2)
    waiting = max(1, min(MOST_WAITING, room // 4))
    return max(1, min(most_connections, room - waiting)), waiting
