"""The SQL page: statements that only read, each like a statement of `flowctl sql`.

Each request has a session of its own, so nothing is left between requests, and a page without requests costs nothing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import Response

from derive.cli.console import render_error
from derive.cli.sql import numeric_types
from derive.errors import FlowError, SqlError
from derive.protocol.collection import is_internal
from derive.ui.folder import Folder
from derive.ui.rendering import page

if TYPE_CHECKING:
    from derive.sql.session import SqlSession

_MOST_ROWS = 200
_MOST_BYTES = 64 << 20
_MOST_BODY = 1 << 20
_TIME_LIMIT = "60s"
_STATEMENTS = threading.BoundedSemaphore(2)
"""Limit of statements at the same time, so that pages leave processors to the run."""


@dataclass(slots=True)
class _Answer:
    """The result of one statement.

    Attributes:
        columns: names of the columns, and whether the values are numbers.
        rows: texts of the first rows; None is NULL.
        has_more: whether there are more rows.
        is_plan: whether the rows are the lines of one text.
        notices: notices of the statement.
    """

    columns: list[tuple[str, bool]] = field(default_factory=list)
    rows: list[list[str | None]] = field(default_factory=list)
    has_more: bool = False
    is_plan: bool = False
    notices: list[str] = field(default_factory=list)


async def show(request: Request) -> Response:
    """Return the page; statements of a POST are executed, and statements of a URL are only put into the editor."""
    folder: Folder = request.app.state.folder
    text = request.query_params.get("sql", "")
    answers: list[_Answer] = []
    error, seconds = None, None
    if request.method == "POST":
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > _MOST_BODY:
                return Response("the statements have more than 1 MiB\n", 413, media_type="text/plain")
        text = parse_qs(body.decode("utf-8", "replace")).get("sql", [""])[0].replace("\r\n", "\n")
        begun = time.monotonic()
        error = await asyncio.to_thread(_run_all, folder, text, answers)
        seconds = time.monotonic() - begun

    def rendered() -> Response:
        values = {"title": "SQL", "page": "SQL", "text": text, "answers": answers, "error": error, "seconds": seconds}
        tables = [table.name for table in folder.store().tables.all() if not is_internal(table.name)]
        return page(request, "sql.html", {**values, "names": [*folder.catalog().collections, *tables]})

    return await asyncio.to_thread(rendered)


def _run_all(folder: Folder, text: str, answers: list[_Answer]) -> str | None:
    """Execute statements in an event loop of this thread; return the error of one, as a command prints it."""
    try:
        with _STATEMENTS:
            asyncio.run(_execute_all(folder, text, answers))
    except FlowError as error:
        return render_error(error)
    return None


async def _execute_all(folder: Folder, text: str, answers: list[_Answer]) -> None:
    from derive.sql.client import located
    from derive.sql.coordinator import Coordinator
    from derive.sql.execution.state import User
    from derive.sql.session import SqlSession

    settings = {
        "transaction_isolation": "serializable",
        "default_transaction_read_only": "on",
        "statement_timeout": _TIME_LIMIT,
    }
    coordinator = Coordinator(folder.path, folder.catalog())
    try:
        session = SqlSession(coordinator, settings, _MOST_BYTES, user=User(reads_files=False, changes_replicas=False))
        try:
            for begin, statement in session.split(text):
                with located("the editor", text, begin):
                    answers.append(await _execute(session, statement))
        finally:
            await session.close()
    finally:
        await coordinator.close()


async def _execute(session: SqlSession, text: str) -> _Answer:
    """Execute one statement.

    Raises:
        SqlError: the statement fails, or does more than read.
    """
    from derive.functions.types.type_info import text_function
    from derive.sql.client import executed
    from derive.sql.parser.parse import parse
    from derive.sql.parser.statement import Explain, SelectStatement, Show, ShowObjects

    statement = parse(text)
    if statement is not None and not isinstance(statement, Explain | SelectStatement | Show | ShowObjects):
        raise SqlError(
            "25006",
            "the page only reads",
            hint="Use SELECT, EXPLAIN or SHOW; other statements run with flowctl sql or flowctl sql serve.",
        )
    async with executed(session, text) as result:
        columns = result.columns or ()
        answer = _Answer([(column.name, column.type in numeric_types()) for column in columns])
        answer.is_plan = isinstance(statement, Explain)
        answer.notices = [f"{notice.severity}: {notice.message}" for notice in result.notices]
        texts = [text_function(column.type, column.modifier) for column in columns]
        if result.rows is not None:
            async for batch in result.rows:
                if answer.has_more:
                    continue  # the session counts the rest, and ends
                for row in batch[: _MOST_ROWS + 1 - len(answer.rows)]:
                    pairs = zip(texts, row, strict=True)
                    answer.rows.append([None if datum is None else text_of(datum) for text_of, datum in pairs])
                answer.has_more = len(answer.rows) > _MOST_ROWS
    return answer
