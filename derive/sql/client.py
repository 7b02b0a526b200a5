"""Statements of this process over a data folder, without a server: sessions, results, and positions of errors."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from derive.algebra.types import Row
from derive.errors import SqlError, UnwritableError, UsageError
from derive.plural import counted
from derive.position import Position
from derive.protocol.specs import CatalogSpec
from derive.sql.coordinator import Coordinator
from derive.sql.python_rows import Rows, datum_of, oid_of
from derive.sql.results import Result
from derive.sql.session import SqlSession
from derive.sql.transactions.ownership import Ownership
from derive.storage.store import Store

_NAME = r'(?:"(?:[^"]|"")*"|\w+)'
_TOKEN = re.compile(rf"{_NAME}(?:\.{_NAME})*|'(?:[^']|'')*'?|[^\w\s]")


def place_in(name: str, text: str, offset: int) -> Position:
    """Return the position of a character in statements.

    Args:
        name: name of the file or other source of the statements.
        text: the statements.
        offset: index of the character, from 0; the length of the text stands for its end.
    """
    offset = min(offset, len(text.rstrip()))
    begin = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    line = text[begin : len(text) if end < 0 else end]
    token = _TOKEN.match(line, offset - begin)
    length = len(token.group()) if token else 1
    return Position(name, text.count("\n", 0, begin) + 1, offset - begin + 1, length, line.rstrip())


@contextmanager
def located(name: str, text: str, begin: int) -> Iterator[None]:
    """Add the position in a text to an error of the statement at `begin`."""
    try:
        yield
    except SqlError as error:
        if error.offset is not None:
            error.position = place_in(name, text, begin + error.offset)
        raise


@asynccontextmanager
async def opened_session(
    folder: Path, catalog: CatalogSpec | None, most_bytes: int | None = None
) -> AsyncIterator[SqlSession]:
    """Yield a session over a data folder, which ends with the block.

    A user who may only read the metadata gets a session for queries.

    Args:
        folder: the data folder.
        catalog: the catalog; None for a folder that only SQL writes.
        most_bytes: greatest size of a result in bytes; None for no limit.
    """
    try:
        store = Store(folder)
    except UnwritableError:
        store = Store(folder, reading=True)
    try:
        coordinator = Coordinator(folder, catalog, ownership=Ownership(store))
    except BaseException:
        store.close()
        raise
    try:
        session = SqlSession(coordinator, {"transaction_isolation": "serializable"}, most_bytes)
        try:
            yield session
        finally:
            await session.close()
    finally:
        await coordinator.close()


@asynccontextmanager
async def executed(session: SqlSession, text: str, parameters: Sequence[object] = ()) -> AsyncIterator[Result]:
    """Yield the result of one statement, which is a transaction up to the end of the block, unless one is open.

    Args:
        session: the session.
        text: the statement.
        parameters: Python's values of `$1` and so on.

    Raises:
        SqlError: the statement fails.
        UsageError: a parameter is missing, superfluous, or of an unsupported type.
    """
    prepared = await session.prepare(text, [oid_of(value) for value in parameters])
    if len(prepared.parameters) != len(parameters):
        needed = counted(len(prepared.parameters), "parameter")
        raise UsageError(f"the statement has {needed}, and {len(parameters)} were given")
    arguments = [datum_of(oid, value) for oid, value in zip(prepared.parameters, parameters, strict=True)]
    await session.begin_implicit()
    try:
        yield await session.execute(prepared, arguments)
    except BaseException:
        await session.fail()
        raise
    await session.end_implicit()


def run_statements(folder: Path, catalog: CatalogSpec | None, text: str, parameters: Sequence[object] = ()) -> Rows:
    """Execute statements in a session of their own, in a thread; return the rows of the last statement.

    Args:
        folder: the data folder.
        catalog: the catalog; None for a folder that only SQL writes.
        text: the statements; with parameters, one statement.
        parameters: values of `$1` and so on.

    Raises:
        SqlError: a statement fails; the error has its position in the text.
        UsageError: there is no statement, there are parameters and several statements, or a statement needs a client.
    """
    call = _Call(folder, catalog, text, parameters)
    thread = threading.Thread(target=call.run, name="flow-sql", daemon=True)
    thread.start()
    try:
        return call.rows.result()
    except KeyboardInterrupt:
        call.cancel()
        thread.join()
        raise


class _Call:
    """Executes statements in an event loop of a thread, because the caller may be in an event loop of its own.

    Args:
        folder: the data folder.
        catalog: the catalog; None for none.
        text: the statements.
        parameters: values of `$1` and so on.

    Attributes:
        rows: the result.
    """

    def __init__(self, folder: Path, catalog: CatalogSpec | None, text: str, parameters: Sequence[object]) -> None:
        self._folder, self._catalog = folder, catalog
        self._text, self._parameters = text, parameters
        self._session: SqlSession | None = None
        self.rows: Future[Rows] = Future()

    def run(self) -> None:
        """Execute the statements, and set the result."""
        try:
            self.rows.set_result(asyncio.run(self._execute()))
        except BaseException as exc:
            self.rows.set_exception(exc)

    def cancel(self) -> None:
        """Cancel the present statement; from any thread."""
        if self._session is not None:
            self._session.cancel()

    async def _execute(self) -> Rows:
        async with opened_session(self._folder, self._catalog) as session:
            self._session = session
            with located("sql", self._text, 0):
                statements = session.split(self._text)
            if not statements:
                raise UsageError("there is no statement to run")
            if self._parameters and len(statements) > 1:
                raise UsageError(f"parameters belong to one statement, and the text has {len(statements)}")
            for begin, statement in statements:
                with located("sql", self._text, begin):
                    async with executed(session, statement, self._parameters) as result:
                        rows = await _gathered(result)
            return rows


async def _gathered(result: Result) -> Rows:
    """Return all rows of a result.

    Raises:
        UsageError: the statement needs a client that sends data, or that takes rows without an end.
    """
    if result.is_prompt:
        raise UsageError("SUBSCRIBE never ends", hint="use flow.subscribe(name), for a collection or table")
    if result.copy_in or result.copy_out:
        raise UsageError(
            "COPY FROM STDIN and COPY TO STDOUT need a client", hint="use INSERT and SELECT, or flowctl sql"
        )
    columns = result.columns or ()
    rows: list[Row] = []
    if result.rows is not None:
        async for batch in result.rows:
            rows += batch
    return Rows(result.tag(len(rows)), tuple(column.name for column in columns), tuple(columns), rows)
