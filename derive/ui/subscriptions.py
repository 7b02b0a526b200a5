"""SUBSCRIBE on the SQL page: the last rows of each subscription go to its page as server-sent events.

A subscription begins when its page connects with a ticket, and ends when the page is left. A ticket is used once: no
other site can begin a subscription with a link. Each subscription has
a thread, because the event loop of the server is for requests.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from derive.cli.console import render_error
from derive.document.clock import format_rfc3339
from derive.errors import FlowError
from derive.ui.folder import Folder

if TYPE_CHECKING:
    from derive.algebra.types import Row
    from derive.sql.results import Result
    from derive.sql.session import SqlSession

_MOST_BYTES = 64 << 20
"""Greatest size of a result."""

MOST_ROWS = 200
"""Number of rows that a page keeps, the newest."""

_MOST_OPEN = 4
_MOST_TICKETS = 16
_LEAST_SECONDS = 0.5
"""Shortest time between two events."""


@asynccontextmanager
async def opened(folder: Folder, *, seconds: int, writes: bool = False) -> AsyncIterator[SqlSession]:
    """Yield a session, which cannot read files of the machine.

    Args:
        folder: the data folder.
        seconds: time limit of a statement; 0 for none.
        writes: whether statements may write.
    """
    from derive.sql.coordinator import Coordinator
    from derive.sql.execution.state import User
    from derive.sql.session import SqlSession

    settings = {
        "transaction_isolation": "serializable",
        "default_transaction_read_only": "off" if writes else "on",
        "statement_timeout": f"{seconds}s",
    }
    coordinator = Coordinator(folder.path, folder.catalog())
    try:
        session = SqlSession(coordinator, settings, _MOST_BYTES, user=User(reads_files=False, changes_replicas=False))
        try:
            yield session
        finally:
            await session.close()
    finally:
        await coordinator.close()


@dataclass(frozen=True, slots=True)
class Shown:
    """The rows of a subscription at one time.

    Attributes:
        columns: names of the columns.
        rows: texts of the last rows, the newest first; None is NULL.
        count: number of rows so far.
        error: the error that ended the subscription, as a command prints it; None for none.
        is_over: whether no more rows follow.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str | None]]
    count: int
    error: str | None
    is_over: bool


class Subscriptions:
    """The subscriptions of all pages.

    Args:
        folder: the data folder.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._tickets: OrderedDict[str, str] = OrderedDict()
        self._open: set[_Subscription] = set()

    def ticket(self, statement: str) -> str:
        """Return a ticket for a statement; the oldest of many unused tickets is forgotten."""
        ticket = secrets.token_urlsafe()
        self._tickets[ticket] = statement
        if len(self._tickets) > _MOST_TICKETS:
            self._tickets.popitem(last=False)
        return ticket

    async def shown(self, ticket: str) -> AsyncIterator[Shown]:
        """Yield the last rows of a subscription after each change, at most twice a second, until its end.

        Args:
            ticket: the ticket, which cannot be used again.
        """
        statement = self._tickets.pop(ticket, None)
        refusal = "the subscription has ended; run the statement again" if statement is None else ""
        if len(self._open) >= _MOST_OPEN:
            refusal = f"{_MOST_OPEN} pages show subscriptions: leave one of them, and run the statement again"
        if statement is None or refusal:
            yield Shown((), (), 0, refusal, is_over=True)
            return
        subscription = _Subscription(self._folder, statement)
        self._open.add(subscription)
        try:
            async for shown in subscription.shown():
                yield shown
        finally:
            self._open.discard(subscription)
            subscription.close()

    def close(self) -> None:
        """End all subscriptions."""
        for subscription in tuple(self._open):
            subscription.close()


class _Subscription:
    """One subscription, in a thread.

    Args:
        folder: the data folder.
        statement: the SUBSCRIBE.
    """

    def __init__(self, folder: Folder, statement: str) -> None:
        self._folder, self._statement = folder, statement
        self._turn = threading.Lock()
        self._columns: tuple[str, ...] = ()
        self._rows: deque[Sequence[str | None]] = deque(maxlen=MOST_ROWS)
        self._count = 0
        self._error: str | None = None
        self._is_over = self._is_closed = False
        self._changed = asyncio.Event()
        self._page = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def shown(self) -> AsyncIterator[Shown]:
        """Yield the rows after each change."""
        threading.Thread(target=self._run, name="subscription", daemon=True).start()
        while True:
            await self._changed.wait()
            self._changed.clear()
            with self._turn:
                rows = tuple(reversed(self._rows))
                shown = Shown(self._columns, rows, self._count, self._error, self._is_over)
            yield shown
            if shown.is_over:
                return
            await asyncio.sleep(_LEAST_SECONDS)

    def close(self) -> None:
        """End the subscription; from any thread."""
        with self._turn:
            self._is_closed = True
            if self._loop is not None and self._task is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)

    def _run(self) -> None:
        error = None
        try:
            with suppress(asyncio.CancelledError):
                asyncio.run(self._follow())
        except FlowError as exc:
            error = render_error(exc)
        finally:
            with self._turn:
                self._error, self._is_over, self._loop = error, True, None
            self._notify()

    async def _follow(self) -> None:
        """Execute the statement, and keep its last rows."""
        from derive.sql.client import executed

        with self._turn:
            if self._is_closed:
                return
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        async with (
            opened(self._folder, seconds=0) as session,
            executed(session, self._statement) as result,
        ):
            await self._keep(result)

    async def _keep(self, result: Result) -> None:
        from derive.functions.types.type_info import text_function

        columns = result.columns or ()
        texts = [text_function(column.type, column.modifier) for column in columns]
        texts[:1] = [lambda datum: format_rfc3339(int(datum))]  # mz_timestamp, in microseconds
        with self._turn:
            self._columns = tuple(column.name for column in columns)
        self._notify()
        if result.rows is None:
            return
        async for batch in result.rows:
            last: Sequence[Row] = batch[-MOST_ROWS:]
            rows = [
                [None if datum is None else text_of(datum) for text_of, datum in zip(texts, row, strict=True)]
                for row in last
            ]
            with self._turn:
                self._rows.extend(rows)
                self._count += len(batch)
            self._notify()

    def _notify(self) -> None:
        """Notify the page of a change; its event loop may be closed already."""
        with suppress(RuntimeError):
            self._page.call_soon_threadsafe(self._changed.set)
