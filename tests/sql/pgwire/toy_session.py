"""A session over SQLite tables that all sessions share, with statements that take long, fail and never end."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

import apsw
from apsw.ext import query_info

from derive.algebra.types import Datum, Row, Type
from derive.errors import SqlError
from derive.functions.types.pg_type import OID_OF, type_of_oid
from derive.sql.copy_format import copy_out
from derive.sql.parser.statement import CopyFormat
from derive.sql.pgwire.messages import decode
from derive.sql.results import CopyOut, Notice, Prepared, Result, ResultColumn, TransactionStatus

TYPES = {
    "bigint": Type.BIGINT,
    "int": Type.INTEGER,
    "integer": Type.INTEGER,
    "text": Type.TEXT,
    "double": Type.DOUBLE,
    "boolean": Type.BOOLEAN,
    "jsonb": Type.JSONB,
    "timestamptz": Type.TIMESTAMPTZ,
    "bytea": Type.BYTEA,
    "date": Type.DATE,
}
TICKS = (ResultColumn("mz_timestamp", Type.BIGINT, 20), ResultColumn("n", Type.BIGINT, 20))


def _copy(columns: Sequence[ResultColumn]) -> CopyOut:
    return copy_out(CopyFormat(), columns)


SLEPT = (ResultColumn("pg_sleep", Type.TEXT, 25),)


def toy_database() -> apsw.Connection:
    """Two tables: three rows with a NULL and specials, and 20,000 rows."""
    database = apsw.Connection(":memory:")
    database.execute("CREATE TABLE t(id int PRIMARY KEY, name text, x double)")
    database.execute("INSERT INTO t VALUES (1, 'Ann', 1.5), (2, NULL, 0.1), (3, ?, -2e300)", ("it's \t a \\ tab",))
    database.execute("CREATE TABLE big(i bigint, s text)")
    database.executemany("INSERT INTO big VALUES (?, ?)", ((number, f"row {number}") for number in range(1, 20_001)))
    return database


class ToySession:
    """Knows enough SQL for clients to try everything that the protocol has."""

    def __init__(self, database: apsw.Connection, begun: Mapping[str, str]) -> None:
        self._database = database
        self._is_open = self._is_failed = False
        self._work: asyncio.Task[object] | None = None
        self.parameters = {
            "server_version": "16.0",
            "server_encoding": "UTF8",
            "client_encoding": "UTF8",
            "DateStyle": "ISO, MDY",
            "TimeZone": "UTC",
            "integer_datetimes": "on",
            "standard_conforming_strings": "on",
            "application_name": begun.get("application_name", ""),
        }
        self.is_closed = False
        self._is_late, self._is_cancelled = False, asyncio.Event()
        if begun.get("database") == "nowhere":
            raise SqlError("3D000", 'database "nowhere" does not exist', hint="leave it out")

    @property
    def is_at_work(self) -> bool:
        return self._work is not None

    @property
    def status(self) -> TransactionStatus:
        if self._is_failed:
            return TransactionStatus.FAILED
        return TransactionStatus.OPEN if self._is_open else TransactionStatus.IDLE

    @property
    def idle_limit(self) -> tuple[float, SqlError] | None:
        return None

    def split(self, text: str) -> Sequence[tuple[int, str]]:
        parts = [part.strip() for part in re.split(r";(?=(?:[^']*'[^']*')*[^']*$)", text) if part.strip()]
        return [(text.index(part), part) for part in parts]

    async def prepare(self, text: str, oids: Sequence[int]) -> Prepared:
        text = text.strip().rstrip(";")
        word = text.split(maxsplit=1)[0].upper() if text else ""
        if self._is_failed and word not in ("ROLLBACK", "COMMIT"):
            raise SqlError("25P02", "current transaction is aborted, commands ignored until end of transaction block")
        columns: tuple[ResultColumn, ...] | None = None
        if word == "SUBSCRIBE" or (word == "COPY" and "SUBSCRIBE" in text):
            columns = TICKS
        elif "pg_sleep" in text:
            columns = SLEPT
        elif word == "SHOW":
            columns = (ResultColumn(text.split()[1], Type.TEXT, 25),)
        elif word == "COPY" and "STDOUT" in text:
            columns = self._columns(self._inner(text))
        elif word == "SELECT":
            columns = self._columns(text)
        return Prepared(text, self._parameters(text, oids), columns)

    async def execute(self, prepared: Prepared, arguments: Sequence[Datum]) -> Result:
        text = prepared.text
        word = text.split(maxsplit=1)[0].upper()
        if self._is_failed and word not in ("ROLLBACK", "COMMIT"):
            raise SqlError("25P02", "current transaction is aborted, commands ignored until end of transaction block")
        if result := self._control(word, prepared):
            return result
        self._is_late = "late" in text
        if "pg_sleep" in text:
            return Result(lambda count: f"SELECT {count}", SLEPT, self._sleep())
        if "defect" in text:
            raise ZeroDivisionError("a defect")
        if word == "SUBSCRIBE" or "SUBSCRIBE" in text:
            return Result(
                lambda n: f"SUBSCRIBE {n}",
                TICKS,
                self._ticks(is_quiet="nothing" in text),
                copy_out=_copy(TICKS) if word == "COPY" else None,
                is_prompt=True,
            )
        if word == "COPY" and "STDIN" in text:
            return Result(lambda count: f"COPY {count}", copy_in=self._take(text.split()[1]))
        return self._run(prepared, arguments, is_copy=word == "COPY")

    def look_up(self, prepared: Prepared, arguments: Sequence[Datum]) -> Sequence[Row] | None:
        return None

    def inserts_at_once(self, prepared: Prepared) -> bool:
        return False

    def insert(self, prepared: Prepared, arguments: Sequence[Datum]) -> Result:
        raise NotImplementedError

    def _control(self, word: str, prepared: Prepared) -> Result | None:
        text = prepared.text
        if word in ("BEGIN", "START"):
            warning = Notice("WARNING", "25001", "there is already a transaction in progress")
            notices = (warning,) if self._is_open else ()
            self._is_open = True
            return Result(lambda _: "BEGIN", notices=notices)
        if word in ("COMMIT", "ROLLBACK"):
            tag = "ROLLBACK" if self._is_failed else word
            self._is_open = self._is_failed = False
            return Result(lambda _: tag)
        if word == "SET":
            _, name, value = re.split(r"\s*=\s*|\s+TO\s+|\s+", text, maxsplit=2)
            self.parameters = {**self.parameters, name: value.strip("'")}
            return Result(lambda _: "SET")
        if word == "SHOW":
            return Result(
                lambda _: "SHOW", prepared.columns, _rows([(self.parameters.get(text.split()[1], "serializable"),)])
            )
        return None

    def _run(self, prepared: Prepared, arguments: Sequence[Datum], *, is_copy: bool) -> Result:
        text = self._inner(prepared.text) if is_copy else prepared.text
        try:
            cursor = self._database.execute(_sqlite(text), tuple(arguments))
            rows = [tuple(row) for row in cursor]
        except apsw.ConstraintError as error:
            raise SqlError("23505", str(error)) from error
        except apsw.SQLError as error:
            raise SqlError("42601", str(error), offset=0) from error
        word = text.split(maxsplit=1)[0].upper()
        if prepared.columns is None:
            count = self._database.changes()
            tag = {"INSERT": f"INSERT 0 {count}", "UPDATE": f"UPDATE {count}", "DELETE": f"DELETE {count}"}.get(
                word, word
            )
            return Result(lambda _: tag)
        word = "COPY" if is_copy else "SELECT"
        return Result(
            lambda count: f"{word} {count}",
            prepared.columns,
            _rows(rows),
            copy_out=_copy(prepared.columns or ()) if is_copy else None,
        )

    async def begin_implicit(self) -> None: ...

    async def end_implicit(self) -> None:
        if self._is_late:  # it commits just as it is cancelled
            await self._is_cancelled.wait()

    async def fail(self) -> None:
        self._is_failed = self._is_open

    def cancel(self) -> None:
        self._is_cancelled.set()
        if self._work:
            self._work.cancel()

    async def close(self) -> None:
        self.is_closed = True

    async def _sleep(self) -> AsyncIterator[Sequence[Row]]:
        await self._cancellable(asyncio.sleep(30))
        yield [("",)]

    async def _ticks(self, *, is_quiet: bool) -> AsyncIterator[Sequence[Row]]:
        while is_quiet:
            await self._cancellable(asyncio.sleep(0.01))
        while True:
            clock = time.time_ns() // 1000
            yield [(clock, 1), (clock, 2)]
            await self._cancellable(asyncio.sleep(0.01))

    async def _cancellable(self, work: Awaitable[None]) -> None:
        self._work = asyncio.ensure_future(work)
        try:
            await self._work
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            raise SqlError("57014", "canceling statement due to user request") from None
        finally:
            self._work = None

    def _take(self, table: str) -> Callable[[AsyncIterator[bytes]], Awaitable[int]]:
        async def take(pieces: AsyncIterator[bytes]) -> int:
            data = b"".join([piece async for piece in pieces])
            lines = [line for line in decode(data).split("\n") if line and line != "\\."]
            rows = [tuple(None if value == "\\N" else value for value in line.split("\t")) for line in lines]
            marks = ",".join("?" * len(self._columns(f"SELECT * FROM {table}")))
            if any(len(row) != marks.count("?") for row in rows):
                raise SqlError("22P04", "missing data for a column")
            try:
                self._database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
            except apsw.ConstraintError as error:
                raise SqlError("23505", str(error)) from error
            return len(rows)

        return take

    def _inner(self, text: str) -> str:
        return text[text.index("(") + 1 : text.rindex(")")]

    def _columns(self, text: str) -> tuple[ResultColumn, ...]:
        empty = re.sub(r"\$\d+", "NULL", text)
        try:
            description = query_info(self._database, _sqlite(empty)).description
        except apsw.SQLError as error:
            what = str(error)
            sqlstate = "42P01" if "no such table" in what else "42703" if "no such column" in what else "42601"
            name = what.rsplit(" ", 1)[-1]
            raise SqlError(sqlstate, what, offset=max(0, text.find(name)), hint="look again") from error
        casts = re.findall(r"::(\w+)", text)
        columns = []
        for index, (name, declared) in enumerate(description):
            kind = TYPES.get((declared or "").lower())
            kind = kind or (TYPES.get(casts[index], Type.TEXT) if index < len(casts) else _guess(text))
            columns.append(ResultColumn(name, kind, OID_OF[kind]))
        return tuple(columns)

    def _parameters(self, text: str, oids: Sequence[int]) -> tuple[int, ...]:
        count = max((int(number) for number in re.findall(r"\$(\d+)", text)), default=0)
        types: dict[int, Type] = {}
        for number, name in re.findall(r"\$(\d+)::(\w+)", text):
            types[int(number)] = TYPES[name]
        if match := re.match(r"INSERT INTO (\w+) VALUES", text, re.I):
            columns = self._columns(f"SELECT * FROM {match[1]}")
            types |= {index: column.type for index, column in enumerate(columns, start=1)}
        for name, number in re.findall(r"(\w+)\s*<?=\s*\$(\d+)", text):
            types.setdefault(int(number), Type.TEXT if name in ("name", "s") else Type.BIGINT)
        asked = [*oids, *([0] * count)][:count]
        return tuple(
            oid if oid and type_of_oid(oid) else OID_OF[types.get(number, Type.TEXT)]
            for number, oid in enumerate(asked, start=1)
        )


def _sqlite(text: str) -> str:
    return re.sub(r"::\w+", "", re.sub(r"\$(\d+)", r"?\1", text))


def _guess(text: str) -> Type:
    return (
        Type.BIGINT if "count(" in text.lower() else Type.INTEGER if re.match(r"select \d+", text, re.I) else Type.TEXT
    )


async def _rows(rows: Sequence[Row]) -> AsyncIterator[Sequence[Row]]:
    for at in range(0, len(rows), 1000):
        yield rows[at : at + 1000]
