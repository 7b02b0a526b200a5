"""A server of toy sessions in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any

import apsw
from patience import PATIENCE_SECONDS
from toy_session import ToySession, toy_database

from derive.event_loop import new_event_loop
from derive.sql.backends import Backends
from derive.sql.pgwire.passwords import Passwords
from derive.sql.pgwire.server import Server
from derive.sql.results import Session


@dataclass
class ToyServer:
    """A running server.

    Attributes:
        port: where it listens, at 127.0.0.1.
        sessions: all there were.
        defects: errors that nobody foresaw.
    """

    port: int
    loop: asyncio.AbstractEventLoop
    server: Server
    sessions: list[ToySession] = field(default_factory=list)
    defects: list[BaseException] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=flow dbname=flow"

    def close(self, seconds: float = 10) -> None:
        asyncio.run_coroutine_threadsafe(self.server.close(seconds), self.loop).result(PATIENCE_SECONDS)


@contextmanager
def toy_server(
    passwords: Passwords | None = None,
    tls: SSLContext | None = None,
    most_connections: int = 100,
    kind: Callable[[apsw.Connection, Mapping[str, str]], Session] = ToySession,
    **limits: Any,
) -> Iterator[ToyServer]:
    loop = new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    database = toy_database()
    toy: ToyServer

    def open_session(begun: Mapping[str, str], _: Backends) -> Session:
        session = kind(database, begun)
        if isinstance(session, ToySession):
            toy.sessions.append(session)
        return session

    server = Server(
        open_session,
        passwords=passwords,
        tls=tls,
        most_connections=most_connections,
        **limits,
        on_defect=lambda error: toy.defects.append(error),  # noqa: PLW0108 - there is no toy yet
    )
    _, port = asyncio.run_coroutine_threadsafe(server.listen("127.0.0.1", 0), loop).result(PATIENCE_SECONDS)
    toy = ToyServer(port, loop, server)
    try:
        yield toy
    finally:
        toy.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_SECONDS)
        loop.close()
