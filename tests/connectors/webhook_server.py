"""An address that documents are posted to: it keeps what comes, and answers as it is told to."""

from __future__ import annotations

import json
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from patience import PATIENCE_SECONDS
from typing_extensions import override


@dataclass(frozen=True)
class Post:
    """A request that was answered with success."""

    path: str
    headers: dict[str, str]
    documents: list[Any]


@dataclass
class Hook:
    """What came, and what the next answers are.

    Attributes:
        address: where it listens.
        posts: requests that were taken, in order.
        answers: status and headers of the next answers; afterwards all are 200. A status of 0 ends the connection, and
            one of 1 has the client wait until `released`.
        keys: idempotency keys of all requests, also of those that failed.
        connections: how many there have been.
    """

    address: str = ""
    posts: list[Post] = field(default_factory=list)
    answers: deque[tuple[int, dict[str, str]]] = field(default_factory=deque)
    keys: list[str] = field(default_factory=list)
    connections: set[Any] = field(default_factory=set)
    waiting: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def documents(self, path: str) -> list[Any]:
        """All documents that were posted to a path, in order."""
        return [document for post in self.posts if post.path == path for document in post.documents]


@contextmanager
def listening() -> Iterator[Hook]:
    """A hook that listens."""
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.connections.add(self.client_address)
            hook.keys.append(self.headers["Idempotency-Key"])
            status, headers = hook.answers.popleft() if hook.answers else (200, {})
            if status == 1:
                hook.waiting.set()
                hook.released.wait(PATIENCE_SECONDS)
            if status < 100:
                self.close_connection = True
                return
            if status == 200:
                hook.posts.append(Post(self.path, dict(self.headers), json.loads(body)))
            answer = b"" if status == 200 else b"it says why"
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        @override
        def log_message(self, format: str, *arguments: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hook.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield hook
    hook.released.set()
    server.shutdown()
    server.server_close()
    thread.join()


@contextmanager
def dripping(at_once: bytes, little: bytes) -> Iterator[tuple[str, threading.Event]]:
    """An address that answers one connection with some bytes at once, and others one by one, for a minute.

    The event is set if it has sent them all.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    is_closing, is_over = threading.Event(), threading.Event()

    def drip() -> None:
        with suppress(OSError):
            client, _ = listener.accept()
            with client:
                client.recv(1 << 16)
                client.sendall(at_once)
                for at in range(1200):
                    if is_closing.wait(0.05):
                        return
                    with suppress(OSError):
                        client.sendall(little[at % len(little) :][:1])
                is_over.set()

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", is_over
    finally:
        is_closing.set()
        listener.close()
        thread.join()
