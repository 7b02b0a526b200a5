"""The SQL page: statements, each like a statement of `flowctl sql`, and names that the editor completes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from derive.cli.console import render_error
from derive.cli.sql import numeric_types
from derive.errors import FlowError, SqlError, UsageError
from derive.ui.access import Permissions
from derive.ui.folder import Folder
from derive.ui.plan_picture import plan_picture
from derive.ui.rendering import event, page
from derive.ui.subscriptions import Subscriptions, opened

if TYPE_CHECKING:
    from derive.sql.results import Result
    from derive.sql.session import SqlSession

_MOST_ROWS = 200
_MOST_BODY = 1 << 20
_SECONDS = 60
"""Time limit of a statement."""

_MOST_NAMES = 5_000
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
        picture: picture of a plan; empty for none.
        notices: notices of the statement.
        tag: description of the work of a statement without rows, such as `INSERT 0 1`.
        ticket: ticket of a subscription; empty for none.
    """

    columns: list[tuple[str, bool]] = field(default_factory=list)
    rows: list[list[str | None]] = field(default_factory=list)
    has_more: bool = False
    is_plan: bool = False
    picture: str = ""
    notices: list[str] = field(default_factory=list)
    tag: str = ""
    ticket: str = ""


@dataclass(frozen=True, slots=True)
class _Run:
    """The execution of the statements of one request.

    Attributes:
        folder: the data folder.
        subscriptions: the subscriptions of all pages.
        writes: whether statements may write.
        answers: results so far.
    """

    folder: Folder
    subscriptions: Subscriptions
    writes: bool
    answers: list[_Answer] = field(default_factory=list)

    def all(self, text: str) -> str | None:
        """Execute statements in an event loop of this thread; return the error of one, as a command prints it."""
        try:
            with _STATEMENTS:
                asyncio.run(self._execute_all(text))
        except FlowError as error:
            return render_error(error)
        return None

    async def _execute_all(self, text: str) -> None:
        from derive.sql.client import located
        from derive.sql.parser.parse import split

        async with AsyncExitStack() as stack:
            session: SqlSession | None = None
            for begin, statement in split(text):
                if session is None or not self.writes:
                    # A statement that only reads has a session of its own, because the statement before it may have
                    # changed a setting, also the setting that forbids writes.
                    await stack.aclose()
                    session = await stack.enter_async_context(opened(self.folder, seconds=_SECONDS, writes=self.writes))
                with located("the editor", text, begin):
                    self.answers.append(await self._execute(session, statement))

    async def _execute(self, session: SqlSession, text: str) -> _Answer:
        """Execute one statement.

        Raises:
            SqlError: the statement fails, or is not permitted.
            UsageError: the statement needs a client that sends or takes data.
        """
        from derive.sql.client import executed
        from derive.sql.parser.parse import parse
        from derive.sql.parser.statement import Explain, Explanation, SelectStatement, Show, ShowObjects, Subscribe

        statement = parse(text)
        if isinstance(statement, Subscribe):
            await session.prepare(text, [])
            return _Answer(ticket=self.subscriptions.ticket(text))
        is_read = statement is None or isinstance(statement, Explain | SelectStatement | Show | ShowObjects)
        if not is_read and not self.writes:
            raise SqlError(
                "25006",
                "the page only reads",
                hint="Use SELECT, EXPLAIN, SHOW or SUBSCRIBE. Others run with flowctl sql and flowctl sql serve,"
                " and here if flowctl ui --allow-writes permits them.",
            )
        answer = _Answer(is_plan=isinstance(statement, Explain))
        async with executed(session, text) as result:
            await _gather(result, answer)
        if isinstance(statement, Explain) and statement.explanation is Explanation.PLAN:
            lines = [line or "" for (line,) in answer.rows]
            answer.picture = plan_picture(lines, self.folder.catalog().collections)
        return answer


async def _gather(result: Result, answer: _Answer) -> None:
    """Take the first rows of a result, and its notices.

    Raises:
        UsageError: the statement needs a client that sends or takes data.
    """
    from derive.functions.types.type_info import text_function

    if result.copy_in or result.copy_out:
        raise UsageError("COPY FROM STDIN and COPY TO STDOUT need a client", hint="use flowctl sql")
    columns, count = result.columns or (), 0
    answer.columns = [(column.name, column.type in numeric_types()) for column in columns]
    answer.notices = [f"{notice.severity}: {notice.message}" for notice in result.notices]
    texts = [text_function(column.type, column.modifier) for column in columns]
    if result.rows is not None:
        async for batch in result.rows:  # the session counts the rest, and ends
            count += len(batch)
            for row in batch[: max(0, _MOST_ROWS + 1 - len(answer.rows))]:
                pairs = zip(texts, row, strict=True)
                answer.rows.append([None if datum is None else text_of(datum) for text_of, datum in pairs])
    answer.has_more = len(answer.rows) > _MOST_ROWS
    answer.tag = "" if columns else result.tag(count)


async def show(request: Request) -> Response:
    """Return the page; statements of a POST are executed, and statements of a URL are only put into the editor."""
    folder: Folder = request.app.state.folder
    permissions: Permissions = request.app.state.permissions
    run = _Run(folder, request.app.state.subscriptions, permissions.writes)
    text = request.query_params.get("sql", "")
    error, seconds = None, None
    if request.method == "POST":
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > _MOST_BODY:
                return Response("the statements have more than 1 MiB\n", 413, media_type="text/plain")
        form = parse_qs(body.decode("utf-8", "replace"))
        if permissions.writes and not permissions.proves(request.headers, form.get("token", [""])[0]):
            return Response("load the page again: its token is missing or old\n", 403, media_type="text/plain")
        text = form.get("sql", [""])[0].replace("\r\n", "\n")
        begun = time.monotonic()
        error = await asyncio.to_thread(run.all, text)
        seconds = time.monotonic() - begun

    def rendered() -> Response:
        values: dict[str, Any] = {"title": "SQL", "page": "SQL", "text": text, "answers": run.answers, "error": error}
        values |= {"seconds": seconds, "permissions": permissions}
        names = {**dict.fromkeys(folder.catalog().collections, "collection"), **folder.sql_relations()}
        return page(request, "sql.html", {**values, "names": names})

    return await asyncio.to_thread(rendered)


async def follow(request: Request) -> Response:
    """Return the rows of a subscription as server-sent events."""
    subscriptions: Subscriptions = request.app.state.subscriptions

    async def messages() -> AsyncIterator[str]:
        async for shown in subscriptions.shown(request.query_params.get("ticket", "")):
            values = {"title": "SQL", "page": None, "shown": shown}
            part = await asyncio.to_thread(page, request, "subscription.html", values)
            yield event("rows", bytes(part.body).decode())
        yield event("end", "")

    return StreamingResponse(messages(), media_type="text/event-stream", headers={"cache-control": "no-store"})


def complete(request: Request) -> Response:
    """Return the names that the editor completes as JSON: pairs of a text of SQL and its kind."""

    async def read() -> list[tuple[str, str]]:
        async with opened(request.app.state.folder, seconds=_SECONDS) as session:
            return list(dict.fromkeys(_names(session)))

    with _STATEMENTS:
        names = asyncio.run(read())
    return JSONResponse(names[:_MOST_NAMES], headers={"cache-control": "no-store"})


def _names(session: SqlSession) -> Iterator[tuple[str, str]]:
    """Yield relations, their columns, and words of SQL; each with its kind."""
    from derive.functions.scalar.text import quoted_name
    from derive.sql.catalog.snapshot import listing
    from derive.sql.parser.tokens import RESERVED

    relations = listing(session.objects)
    for relation in relations:
        yield quoted_name(relation.name), relation.kind.value
    for relation in relations:
        for column in relation.columns:
            yield quoted_name(column.name), f"column of {relation.name}"
    for word in sorted(RESERVED | {"explain", "show", "subscribe", "as of", "count", "sum", "min", "max", "avg"}):
        yield word.upper(), "word"
