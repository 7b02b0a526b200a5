"""What a process does that serves a connector: it says where, and ends when it is told to, or its parent has ended."""

from __future__ import annotations

import os
import signal
import sys
from threading import Event, Thread
from types import FrameType

from connectors.kit.connector import MaterializeConnector
from connectors.kit.server import ConnectorServer

_CHUNK = 4096


def serve(connector: MaterializeConnector, listen: str) -> None:
    """Serve a connector until standard input ends, or until SIGTERM.

    The first line of standard output is the address. A process that starts this keeps a pipe to its standard input
    open, so that this ends with it, however it ends. Ctrl-C is that process's concern then: it may have something to
    finish. Without such a pipe, it ends this.

    Args:
        connector: what is served.
        listen: `host:port`; a port of 0 is one that is free.

    Raises:
        UsageError: nobody can listen there.
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
    """The descriptor of standard input, if its end means something: with `/dev/null`, nobody means anything."""
    if sys.stdin is None:
        return None
    descriptor = sys.stdin.fileno()
    return None if os.fstat(descriptor).st_rdev == os.stat(os.devnull).st_rdev else descriptor


def _await_end(descriptor: int, ended: Event) -> None:
    while os.read(descriptor, _CHUNK):
        pass
    ended.set()
