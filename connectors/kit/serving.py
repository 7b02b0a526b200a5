"""The main function of a connector process: print the address, and end on a signal or with the parent."""

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
