"""The HTTP server of a monitor: `/metrics`, `/live`, `/ready` and `/dashboard.json`.

The server has its own threads, so it answers while the process is busy. It changes nothing, and shows no documents:
only names, counts and times.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from derive.errors import UsageError
from derive.metrics.exposition import CONTENT_TYPE, text_of
from derive.metrics.monitor import Monitor
from derive.web_access import Hosts, listening_failure, port_hint

_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_PATIENCE_SECONDS = 5.0
"""Time for a client to send a request and to read the answer."""

_MOST_REQUESTS = 16
"""Greatest number of requests at the same time; further connections are closed."""

_INDEX = "/metrics  for Prometheus\n/live  /ready  for a supervisor\n/dashboard.json  for Grafana\n"


@cache
def dashboard() -> bytes:
    """Return the dashboard for Grafana, as JSON."""
    return (files("derive.metrics") / "dashboard.json").read_bytes()


def answer(monitor: Monitor, path: str) -> tuple[int, str, bytes]:
    """Return the status, the type and the body of the answer to a request.

    Args:
        monitor: the monitor.
        path: path of the request.
    """
    match path.partition("?")[0]:
        case "/metrics":
            return 200, CONTENT_TYPE, text_of(monitor.samples()).encode()
        case "/live":
            return 200, _TEXT, b"live\n"
        case "/ready":
            readiness = monitor.readiness()
            return 200 if readiness.is_ready else 503, _TEXT, f"{readiness.reason}\n".encode()
        case "/dashboard.json":
            return 200, _JSON, dashboard()
        case "/":
            return 200, _TEXT, _INDEX.encode()
        case other:
            return 404, _TEXT, f"there is no page {other}; there are:\n{_INDEX}".encode()


class MonitorServer:
    """Serves a monitor until it is closed.

    Attributes:
        address: `host:port` of the server.
    """

    def __init__(self, monitor: Monitor, host: str, port: int, names: Collection[str] = ()) -> None:
        """Start to serve.

        Args:
            monitor: the monitor.
            host: name or address to listen at.
            port: port; 0 for a free one.
            names: further host names under which clients use the server.

        Raises:
            UsageError: the address cannot be used.
        """
        hosts = Hosts.of(host, names, "--metrics-host", takes_addresses=True)
        try:
            family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            self._server = _Server(family, place[:2], _handler(monitor, hosts))
        except OSError as exc:
            raise UsageError(
                f"--metrics cannot listen at {host}:{port}: {listening_failure(exc)}", hint=port_hint("--metrics")
            ) from exc
        at, port = self._server.server_address[:2]
        self.address = f"[{at!s}]:{port}" if ":" in str(at) else f"{at!s}:{port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, family: int, place: Any, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AddressFamily(family)
        self._turns = threading.BoundedSemaphore(_MOST_REQUESTS)
        super().__init__(place, handler)

    def server_bind(self) -> None:
        """Bind the address, without the look-up of its name that the standard library adds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a request in a thread, or close its connection if there are too many."""
        if self._turns.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._turns.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the loss of a client."""


def _text(status: int, message: str) -> tuple[int, str, bytes]:
    return status, _TEXT, f"{message}\n".encode()


def _handler(monitor: Monitor, hosts: Hosts) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE_SECONDS
        server_version, sys_version = "flowctl", ""

        def do_GET(self) -> None:
            headers: Mapping[str, str] = {name.lower(): value for name, value in self.headers.items()}
            names = [name.lower() for name in self.headers.keys()]  # noqa: SIM118 (a repeated name counts twice)
            refusal = hosts.refusal(self.command, headers, names, "http")
            try:
                status, kind, body = answer(monitor, self.path) if refusal is None else _text(*refusal)
            except Exception as error:  # a defect must not look like a process that does not answer
                status, kind, body = _text(500, f"{type(error).__name__}: {error}")
            self.send_response(status)
            for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Log no requests."""

        def handle(self) -> None:
            """Answer one request; a client that has gone is no error."""
            with suppress(OSError):
                super().handle()

    return Handler
