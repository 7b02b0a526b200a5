"""A process that serves a connector: its server, and its main function."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from types import FrameType

import grpc

from connectors.kit.connector import MaterializeConnector
from connectors.kit.servicer import Servicer
from derive.errors import UsageError
from derive.protocol.driver import SILENT_SECONDS, TRANSPORT_OPTIONS, connection_limits, driver_handler

_MOST_CALLS = 512
"""Maximum number of concurrent calls, including streams; each uses a thread."""

_MOST_CONNECTIONS = 256
"""Maximum number of connections; a runtime has one from each of its processes."""

_IDLE_SECONDS = 300.0
"""Time in seconds after which a connection without calls is closed."""

_PING_SECONDS, _PATIENCE_SECONDS = 60.0, 20.0
"""Interval of pings to clients, and time to answer one, in seconds; otherwise the connection is closed."""

_GRACE_SECONDS = 5.0


class ConnectorServer:
    """A connector served at an address.

    Attributes:
        address: `host:port` that clients can connect to.
    """

    def __init__(self, connector: MaterializeConnector, listen: str, *, silent_seconds: float = SILENT_SECONDS) -> None:
        """Begin to serve.

        Args:
            connector: the connector.
            listen: `host:port`; port 0 picks a free port.
            silent_seconds: time in seconds for the handshake of a connection.

        Raises:
            UsageError: the address is malformed or cannot be bound.
        """
        host, separator, _ = listen.rpartition(":")
        if not separator or not host:
            raise UsageError(f"'{listen}' is not an address", hint="write HOST:PORT, such as 127.0.0.1:0")
        self._servicer = Servicer(connector)
        options = (
            *TRANSPORT_OPTIONS,
            *connection_limits(_MOST_CONNECTIONS, silent_seconds, _IDLE_SECONDS),
            ("grpc.keepalive_time_ms", round(_PING_SECONDS * 1000)),
            ("grpc.keepalive_timeout_ms", round(_PATIENCE_SECONDS * 1000)),
            ("grpc.so_reuseport", 0),
        )
        self._server = grpc.server(ThreadPoolExecutor(_MOST_CALLS, "call"), options=options)
        self._server.add_generic_rpc_handlers((driver_handler(self._servicer),))
        try:
            port = self._server.add_insecure_port(listen)
        except RuntimeError as exc:
            raise UsageError(f"cannot listen at {listen}: {exc}", hint="is the port taken?") from exc
        self.address = f"{host}:{port}"
        self._server.start()

    def stop(self) -> None:
        """End all calls, and wait a few seconds until sessions have released their resources."""
        self._server.stop(None).wait(_GRACE_SECONDS)
        self._servicer.wait(_GRACE_SECONDS)


_CHUNK = 4096


def serve(connector: MaterializeConnector, listen: str) -> None:
    """Serve a connector until standard input ends, or until SIGTERM.

    The first line of standard output is the address. A parent process keeps a pipe to standard input open, so that this
    process ends with the parent, however the parent ends. This process then ignores Ctrl-C, because the parent may have
    work to finish. Without such a pipe, Ctrl-C ends the process.

    Args:
        connector: the connector.
        listen: `host:port`; port 0 picks a free port.

    Raises:
        UsageError: the address is malformed or cannot be bound.
    """
    ended = Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        ended.set()

    signal.signal(signal.SIGTERM, end)
    watched = _watched_input()
    signal.signal(signal.SIGINT, signal.SIG_IGN if watched is not None and not os.isatty(watched) else end)
    server = ConnectorServer(connector, listen)
    sys.stdout.write(f"{server.address}\n")
    sys.stdout.flush()
    if watched is not None:
        Thread(target=_await_end, args=(watched, ended), daemon=True).start()
    ended.wait()
    server.stop()


def _watched_input() -> int | None:
    """Return the descriptor of standard input; None for `/dev/null`, whose end has no meaning."""
    if sys.stdin is None:
        return None
    descriptor = sys.stdin.fileno()
    return None if os.fstat(descriptor).st_rdev == os.stat(os.devnull).st_rdev else descriptor


def _await_end(descriptor: int, ended: Event) -> None:
    while os.read(descriptor, _CHUNK):
        pass
    ended.set()
