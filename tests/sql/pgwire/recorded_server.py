"""A server of real sessions in a thread of its own, which records whether look-ups were answered at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from patience import PATIENCE_SECONDS

from derive.algebra.types import Datum, Row
from derive.errors import SqlError
from derive.event_loop import new_event_loop
from derive.sql.backends import Backends
from derive.sql.coordinator import Coordinator
from derive.sql.pgwire.server import Server
from derive.sql.results import Prepared, Result, Session, TransactionStatus
from derive.sql.session import SqlSession

T = TypeVar("T")

SLOW = "slow"
"""The user whose statements are all carried out by `execute`."""


class RecordedSession:
    """Passes everything on to a session, but look-ups where it is told not to.

    Attributes:
        asked: how many look-ups there were.
        prompt: how many of them were answered at once.
        executed: how many statements were carried out by `execute`.
    """

    def __init__(self, session: Session, *, is_prompt: bool) -> None:
        self._session, self._is_prompt = session, is_prompt
        self.asked = self.prompt = self.executed = 0

    @property
    def status(self) -> TransactionStatus:
        return self._session.status

    @property
    def idle_limit(self) -> tuple[float, SqlError] | None:
        return self._session.idle_limit

    @property
    def parameters(self) -> dict[str, str]:
        return self._session.parameters

    def split(self, text: str) -> Sequence[tuple[int, str]]:
        return self._session.split(text)

    async def prepare(self, text: str, oids: Sequence[int]) -> Prepared:
        return await self._session.prepare(text, oids)

    async def execute(self, prepared: Prepared, arguments: Sequence[Datum]) -> Result:
        self.executed += 1
        return await self._session.execute(prepared, arguments)

    def look_up(self, prepared: Prepared, arguments: Sequence[Datum]) -> Sequence[Row] | None:
        self.asked += 1
        rows = self._session.look_up(prepared, arguments) if self._is_prompt else None
        self.prompt += rows is not None
        return rows

    def inserts_at_once(self, prepared: Prepared) -> bool:
        return self._is_prompt and self._session.inserts_at_once(prepared)

    def insert(self, prepared: Prepared, arguments: Sequence[Datum]) -> Result:
        self.prompt += 1
        return self._session.insert(prepared, arguments)

    async def begin_implicit(self) -> None:
        await self._session.begin_implicit()

    async def end_implicit(self) -> None:
        await self._session.end_implicit()

    async def fail(self) -> None:
        await self._session.fail()

    def cancel(self) -> None:
        self._session.cancel()

    async def close(self) -> None:
        await self._session.close()


class RecordedServer:
    """A running server.

    Attributes:
        port: where it listens, at 127.0.0.1.
        sessions: the latest of each user.
        defects: errors that nobody foresaw.
    """

    def __init__(self, folder: Path) -> None:
        self.sessions: dict[str, RecordedSession] = {}
        self.defects: list[BaseException] = []
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._coordinator, self._server, self.port = self._run(self._begin(folder))

    def close(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_SECONDS)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_SECONDS)

    async def _begin(self, folder: Path) -> tuple[Coordinator, Server, int]:
        coordinator = Coordinator(folder, None, table_memory=0)  # only indexes answer on the fast path
        coordinator.own()

        def open_session(begun: Mapping[str, str], backends: Backends) -> Session:
            session = SqlSession(coordinator, begun, None, backends)
            recorded = RecordedSession(session, is_prompt=begun["user"] != SLOW)
            self.sessions[begun["user"]] = recorded
            return recorded

        server = Server(open_session, on_defect=self.defects.append)
        _, port = await server.listen("127.0.0.1", 0)
        return coordinator, server, port

    async def _end(self) -> None:
        await self._server.close()
        await self._coordinator.close()


@contextmanager
def recorded_server(folder: Path) -> Iterator[RecordedServer]:
    server = RecordedServer(folder)
    try:
        yield server
    finally:
        server.close()
