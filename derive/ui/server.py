"""The HTTP server: its address, its security, and its life."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from derive.errors import FlowError, UsageError
from derive.sql.pgwire.passwords import Passwords
from derive.sql.pgwire.server import tls_context
from derive.ui.access import Application, Permissions, Secret, Token, Users
from derive.ui.application import Services, application
from derive.ui.folder import Folder
from derive.web_access import WILDCARDS, Hosts, is_loopback, listening_failure, port_hint

_END_SECONDS = 2
"""Time that requests have to end after a signal."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of the server, and the security of its clients.

    Attributes:
        host: host name or address to listen at.
        port: port; 0 for a free one.
        names: further host names under which clients use the server.
        token_file: file of the secret that clients must send; None for none.
        password_file: file of the users who may connect; None for none.
        certificate: file of the certificate for TLS; None for no TLS.
        key: file of the private key; None if it is in the same file.
    """

    host: str
    port: int
    names: Collection[str] = field(default_factory=tuple)
    token_file: Path | None = None
    password_file: Path | None = None
    certificate: str | None = None
    key: str | None = None

    def check(self) -> None:
        """Check that other machines cannot read the data without a secret and without encryption.

        Raises:
            UsageError: an option is missing, or contradicts another one.
        """
        if self.key and not self.certificate:
            raise UsageError("--tls-key needs a certificate", hint="give it with --tls-certificate")
        if self.token_file and self.password_file:
            raise UsageError("--token-file and --password-file exclude each other", hint="give one of them")
        if not is_loopback(self.host):
            if not (self.token_file or self.password_file):
                raise UsageError(
                    f"other machines can reach {self.host}, so the pages need a secret",
                    hint="give --token-file or --password-file; or listen at 127.0.0.1",
                )
            if not self.certificate:
                raise UsageError(
                    f"other machines can reach {self.host}, so the pages need TLS",
                    hint="give --tls-certificate; or listen at 127.0.0.1, and forward the port with ssh -L",
                )
            if self.host in WILDCARDS and not self.names:
                raise UsageError(
                    "--listen at all addresses needs the name that browsers use",
                    hint="for example: --host pages.example.org",
                )

    @property
    def hosts(self) -> frozenset[str]:
        """Return the host names and addresses of requests that the server answers."""
        return Hosts.of(self.host, self.names, "--host").names

    def secret(self) -> Secret | None:
        """Return the secret that clients must send; None for none.

        Raises:
            UsageError: a file cannot be read, or has no secret.
        """
        if self.token_file:
            return Token(self.token_file)
        return Users(Passwords.of_file(self.password_file)) if self.password_file else None


def serve(folder: Folder, permissions: Permissions, address: Address, announce: Callable[[str], None]) -> None:
    """Serve pages until SIGINT or SIGTERM.

    Args:
        folder: the data folder.
        permissions: the permitted actions besides reading.
        address: the address; `check` has accepted it.
        announce: called with the URL once clients can connect.

    Raises:
        UsageError: the address cannot be used, or a file of the address cannot be read.
    """
    scheme = "https" if address.certificate else "http"
    secret = address.secret()
    if address.certificate:
        tls_context(address.certificate, address.key)
    listener = _listen(address)
    services = Services.of(folder, permissions)
    server = _server(address, application(services, address.hosts, secret, scheme))
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())

    def run() -> None:
        try:
            server.run(sockets=[listener])
        finally:
            stopped.set()

    # uvicorn takes over the signals of the main thread only, and would end the process by them.
    thread = threading.Thread(target=run, name="ui")
    thread.start()
    threading.Thread(target=_warm_up, args=(folder,), name="warm-up", daemon=True).start()
    host, port = listener.getsockname()[:2]
    announce(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")
    stopped.wait()
    services.close()
    server.should_exit = True
    thread.join()


def _warm_up(folder: Folder) -> None:
    """Load the modules and the catalog that the first page needs, before a browser asks for it."""
    with suppress(FlowError):  # the page shows the error
        folder.overview()


def _server(address: Address, pages: Application) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            pages,
            log_config=None,
            access_log=False,
            server_header=False,
            http="h11",
            ws="none",
            lifespan="off",
            loop="asyncio",
            ssl_certfile=address.certificate,
            ssl_keyfile=address.key,
            timeout_graceful_shutdown=_END_SECONDS,
        )
    )


def _listen(address: Address) -> socket.socket:
    """Return a socket that accepts connections.

    Raises:
        UsageError: the address cannot be used.
    """
    try:
        flags = socket.AI_PASSIVE
        family, *_, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=flags)[0]
        return socket.create_server(place[:2], family=socket.AddressFamily(family), backlog=128)
    except OSError as exc:
        raise UsageError(
            f"cannot listen at {address.host}:{address.port}: {listening_failure(exc)}", hint=port_hint("--listen")
        ) from exc
