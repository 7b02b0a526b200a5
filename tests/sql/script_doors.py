"""Doors to the SQL of one data folder for scripts: in this process, and a server of its own, which can be killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any, Protocol

import orjson
import psycopg
from forked_flowctl import BARE, Flowctl, owned_by
from patience import PATIENCE_SECONDS
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from sql_world import Client, SqlWorld

from derive.errors import SqlError
from derive.functions.types.datetime import interval_of_text
from derive.functions.types.type_info import text_function
from derive.sql.coordinator import Coordinator

SEARCH_PATH = "SET search_path = public, s"

Text = str | None
Cells = tuple[Text, ...]

_TEXTS = {1043: 25, 1015: 1009}
"""Oids of `varchar` without a length, which is text here."""


@dataclass(frozen=True)
class Outcome:
    """The answer to a statement.

    Attributes:
        sqlstate: of its error; empty if it has succeeded.
        tag: its tag.
        types: oids of its columns.
        rows: how often each row is there, by value.
        message: of its error.
    """

    sqlstate: str = ""
    tag: str = ""
    types: tuple[int, ...] = ()
    rows: Counter[Cells] = field(default_factory=Counter)
    message: str = field(default="", compare=False)


def _value(oid: int, text: Text) -> Text:
    """A value, the same text for equal ones whose texts may differ."""
    if text is None:
        return None
    if oid == 1700:
        return str(Decimal(text).normalize() + 0)
    if oid == 1231:
        return re.sub(r"(\.\d*?)0+(?=[,}])", lambda match: match[1].removesuffix("."), text)
    if oid == 1186:
        return str(interval_of_text(text).total_microseconds)
    if oid == 3802:
        return str(_exact(orjson.loads(text)))
    return text


def _exact(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted((key, _exact(one)) for key, one in value.items())
    if isinstance(value, list):
        return [_exact(one) for one in value]
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def outcome_of(tag: str, types: Sequence[int], rows: Sequence[Cells]) -> Outcome:
    """The outcome of a statement that has succeeded."""
    counted = Counter(tuple(_value(oid, text) for oid, text in zip(types, row, strict=True)) for row in rows)
    return Outcome("", tag, tuple(_TEXTS.get(oid, oid) for oid in types), counted)


def executed(connection: PGconn, text: str) -> Outcome:
    """Run a statement over the protocol."""
    result = connection.exec_(text.encode())
    if result.status not in {ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK, ExecStatus.EMPTY_QUERY}:
        sqlstate, message = (
            (result.error_field(code) or b"").decode()
            for code in (DiagnosticField.SQLSTATE, DiagnosticField.MESSAGE_PRIMARY)
        )
        return Outcome(sqlstate or "lost", message=message)
    types = [result.ftype(column) for column in range(result.nfields)]
    return outcome_of((result.command_status or b"").decode(), types, _cells(result))


def _cells(result: PGresult) -> list[Cells]:
    return [
        tuple(
            None if (value := result.get_value(row, column)) is None else value.decode()
            for column in range(result.nfields)
        )
        for row in range(result.ntuples)
    ]


class Session(Protocol):
    """A session of a door."""

    async def run(self, text: str) -> Outcome:
        """Run a statement; the SQLSTATE is `stalled` if it does not end, and `lost` if the server has died."""

    async def close(self) -> None:
        """End the session."""


class Door(Protocol):
    """A way to the SQL of a data folder."""

    async def start(self) -> None:
        """Open the folder."""

    async def stop(self) -> None:
        """Close it."""

    async def session(self) -> Session:
        """Begin a session."""


class _EmbeddedSession:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def run(self, text: str) -> Outcome:
        try:
            return await asyncio.wait_for(self._run(text), PATIENCE_SECONDS)
        except SqlError as error:
            return Outcome(error.sqlstate, message=f"{error.message} | {error.hint}")
        except TimeoutError:
            return Outcome("stalled")

    async def _run(self, text: str) -> Outcome:
        session = self._client.session
        try:
            prepared = await session.prepare(text, ())
            await session.begin_implicit()
            result = await session.execute(prepared, ())
            rows: list[Cells] = []
            columns = result.columns or ()
            if result.rows is not None:
                shown = [text_function(column.type, column.modifier) for column in columns]
                async for batch in result.rows:
                    if result.copy_out is not None:
                        rows += [(line.decode(),) for line in result.copy_out.lines(batch)]
                        continue
                    rows += [
                        tuple(None if datum is None else show(datum) for show, datum in zip(shown, row, strict=True))
                        for row in batch
                    ]
            await session.end_implicit()
        except BaseException:
            await session.fail()
            raise
        if result.copy_out is not None:
            return Outcome("", result.tag(len(rows)), (), Counter(rows))
        return outcome_of(result.tag(len(rows)), [column.oid for column in columns], rows)

    async def close(self) -> None:
        await self._client.session.close()


class Embedded:
    """SQL in this process, as `flowctl sql` and `derive.open` have it.

    Attributes:
        coordinator: what all sessions share, while the folder is open.
    """

    def __init__(self, world: SqlWorld) -> None:
        self._world = world
        self.coordinator: Coordinator | None = None

    async def start(self) -> None:
        self.coordinator = Coordinator(self._world.data, self._world.catalog)
        self.coordinator.own()

    async def stop(self) -> None:
        assert self.coordinator is not None
        await self.coordinator.close()

    async def session(self) -> Session:
        assert self.coordinator is not None
        return _EmbeddedSession(Client(self.coordinator))


class _WireSession:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    async def run(self, text: str) -> Outcome:
        try:
            return await asyncio.wait_for(asyncio.to_thread(self._run, text), PATIENCE_SECONDS)
        except TimeoutError:
            return Outcome("stalled")

    def _run(self, text: str) -> Outcome:
        if self._connection.closed:
            return Outcome("lost")
        if not text.startswith("COPY"):
            return executed(self._connection.pgconn, text)
        with self._connection.cursor() as cursor:
            try:
                with cursor.copy(text.encode()) as copy:
                    lines = b"".join(copy).decode().splitlines()
            except psycopg.Error as error:
                return Outcome(error.sqlstate or "lost", message=str(error))
            return Outcome("", f"COPY {len(lines)}", (), Counter((f"{line}\n",) for line in lines))

    async def close(self) -> None:
        self._connection.close()


class Served:
    """A `flowctl sql serve` in a process of its own, over the PostgreSQL protocol.

    Args:
        world: the data folder.
        replicas: number of processes that maintain views; 0 for the server itself.
    """

    def __init__(self, world: SqlWorld, replicas: int = 0) -> None:
        self._world, self._replicas = world, replicas
        self._process: Flowctl | None = None
        self._port = 0

    async def start(self) -> None:
        await asyncio.to_thread(self._start)

    def _start(self) -> None:
        command = ["sql", "serve", "--listen", "127.0.0.1:0", "--data", str(self._world.data)]
        command += ["--source", str(self._world.folder / "flow.yaml")]
        command += ["--replicas", str(self._replicas)] if self._replicas else []
        log = self._world.folder / "server.log"
        with log.open("a") as errors:
            self._process = Flowctl(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=BARE)
        assert self._process.stdout
        address = self._process.stdout.readline().strip()
        if not address:
            raise AssertionError(f"the server does not start: {log.read_text()[-2000:]}")
        self._port = int(address.rpartition(":")[2])

    async def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            await asyncio.to_thread(self._end)

    def _end(self) -> None:
        assert self._process
        assert self._process.stdout
        self._process.wait(PATIENCE_SECONDS)
        self._process.stdout.close()
        self._process = None

    async def kill(self) -> None:
        """Kill the server with SIGKILL, and wait until it is gone."""
        assert self._process
        self._process.kill()
        await asyncio.to_thread(self._end)

    def kill_instance(self, random: Random) -> None:
        """Kill a process that maintains views; the server starts another one."""
        assert self._process
        if instances := owned_by(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(random.choice(sorted(instances)), signal.SIGKILL)

    async def session(self) -> Session:
        address = f"host=127.0.0.1 port={self._port} user=flow dbname=flow connect_timeout=10"
        return _WireSession(await asyncio.to_thread(lambda: psycopg.connect(address, autocommit=True)))


async def settled(session: Session, count: int) -> str:
    """Wait until all views, at least some, are read from what is maintained; return an empty text, or what is wrong."""
    begin = time.monotonic()
    while True:
        outcome = await session.run("SHOW MAINTENANCE")
        if outcome.sqlstate:
            return f"SHOW MAINTENANCE: {outcome}"
        if outcome.rows.total() >= count and all(upper and not error for _, upper, error, *_ in outcome.rows):
            return ""
        if time.monotonic() > begin + PATIENCE_SECONDS:
            return f"views are never maintained: {sorted(outcome.rows, key=repr)}"
        await asyncio.sleep(0.005)
