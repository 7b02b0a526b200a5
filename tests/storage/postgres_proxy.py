"""A proxy before a PostgreSQL server, which breaks connections around a COMMIT, and counts round trips."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from collections import Counter
from contextlib import suppress
from typing import Literal, TypeAlias

Fault: TypeAlias = Literal["request", "answer", "late", "interrupted"]
"""The lost message: the request to commit; its answer; or the answer, where the request arrives after a while, or where
this process gets Ctrl-C while it connects again."""

COMMIT = b"COMMIT\0"

_END = re.compile(rb"P....\0ROLLBACK\0.*?S\0\0\0\x04", re.DOTALL)
"""The messages that end a snapshot; the client does not wait for their answers."""


class Proxy:
    """Forwards connections to a server.

    Args:
        port: port of the server on this machine.

    Attributes:
        port: port of the proxy.
        fault: fault of the next COMMIT; None for none.
        flowing: cleared while the server is silent: it accepts connections, and answers nothing.
        trips: number of round trips, by port of the client: a request after an answer begins another one.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.fault: Fault | None = None
        self.flowing = threading.Event()
        self.flowing.set()
        self.trips: Counter[int] = Counter()
        self._asking: set[int] = set()
        self._interrupts = False
        self._muted: socket.socket | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                if self._interrupts:
                    os.kill(os.getpid(), signal.SIGINT)
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                threading.Thread(target=self._forward, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._forward, args=(server, client, False), daemon=True).start()

    def _count(self, client: int, data: bytes, *, is_request: bool) -> None:
        if not is_request:
            self._asking.discard(client)
        elif client not in self._asking and _END.sub(b"", data):
            self._asking.add(client)
            self.trips[client] += 1

    def _forward(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        with suppress(OSError):
            client = (source if is_request else target).getpeername()[1]
            while data := source.recv(1 << 16):
                self.flowing.wait()
                self._count(client, data, is_request=is_request)
                fault = self.fault if is_request and COMMIT in data else None
                if fault is not None:
                    self.fault = None
                    self._lose(fault, data, source, target)
                    if fault != "answer":
                        source.close()
                    return
                if source is self._muted:  # the server has answered
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()
        if source is self._muted:
            target.close()

    def _lose(self, fault: Fault, data: bytes, client: socket.socket, server: socket.socket) -> None:
        """Close the connection of the client, and let the request reach the server or not."""
        if fault == "answer":
            self._muted = server
            server.sendall(data)
            return
        self._interrupts = fault == "interrupted"
        client.shutdown(socket.SHUT_RDWR)  # first, because the answer may be fast
        if fault == "late":
            threading.Event().wait(0.02)
        if fault != "request":
            server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)
