"""The conversation after login: simple and extended queries, answered in turn.

Point lookups, and INSERTs of a row, may take a fast path (`fast_path`).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from derive.errors import SqlError
from derive.functions.types.encodings import CLIENT, find_encoding
from derive.recently_used import RecentlyUsed
from derive.sql.parser.shape import shape_of
from derive.sql.pgwire import messages
from derive.sql.pgwire.fast_path import EXECUTIONS, FastPath, Insertion
from derive.sql.pgwire.messages import Wire, bind_of, execute_of, named_of, parse_of, query_of
from derive.sql.pgwire.portal import Delivery, Portal, PreparedStatement
from derive.sql.pgwire.values import data_rows
from derive.sql.pgwire.work import Work
from derive.sql.results import ChangedResultError, Prepared, Session, TransactionStatus

_SHORT = 4096
"""Greatest length of a text that is split on the event loop, in characters."""
_MOST_TRIES = 10
"""Greatest number of preparations of a simple query whose result columns other sessions change meanwhile."""
_TERMINATE, _SYNC, _FLUSH, _QUERY, _CALL = b"X", b"S", b"H", b"Q", b"F"
_MOST_LATEST = 100
_COPY = (b"d", b"c", b"f")
_MOVE = re.compile(
    r'\s*MOVE\s+(?:FORWARD\s+)?(?P<count>\d{1,18})\s+(?:FROM\s+|IN\s+)?(?P<name>"[^"]+"|\w+)\s*;?\s*', re.IGNORECASE
)
"""MOVE of a cursor or portal, which have the same names."""
_FORGET = re.compile(
    r'\s*(?:DEALLOCATE\s+(?:PREPARE\s+)?(?:"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>\w+))|DISCARD\s+ALL)\s*;?\s*', re.I
)


class Conversation:
    """The messages of one client, with its statements and portals.

    Attributes:
        text: text of the latest statement.
    """

    def __init__(self, wire: Wire, session: Session, work: Work) -> None:
        self._wire = wire
        self._session = session
        self._work = work
        self._delivery = Delivery(wire, session, work)
        self.text = ""
        self._reported: dict[str, str] = {}
        self._statements: dict[str, PreparedStatement] = {}
        self._exchange = FastPath(self._statements, session)
        self._latest: RecentlyUsed[int, PreparedStatement] = RecentlyUsed(_MOST_LATEST)  # by plan; the name may change
        self._refused: RecentlyUsed[tuple[str, tuple[int, ...]], bool] = RecentlyUsed(_MOST_LATEST)  # shapes
        self._portals: dict[str, Portal] = {}
        self._begin = 0  # start of the current statement in the client's text
        self._is_implicit = False  # in a transaction that ends at the next Sync
        self._skips = False  # after an error, messages are skipped up to the next Sync
        self._is_ready = False  # no message has arrived after ReadyForQuery: the session is idle
        self._handlers: dict[bytes, Callable[[bytes], Awaitable[None] | None]] = {
            b"P": self._parse,
            b"B": self._bind,
            b"D": self._describe,
            b"E": self._execute,
            b"C": self._close,
        }

    async def run(self) -> None:
        """Answer messages until the client terminates.

        Raises:
            ConnectionEnded: the connection is lost, or the server closes it.
            SqlError: a message is invalid, or the idle timeout has passed.
        """
        while True:
            if (inserted := self._insertion()) is not None:
                self._is_ready = False
                self._skips = not await self._attempt(inserted, b"")
                continue
            message = self._wire.next_message() or await self._next_message()
            if message is None:
                continue
            kind, body = message
            self._is_ready = False
            if kind == _TERMINATE:
                return
            if kind == _SYNC:
                await self._sync()
            elif kind in _COPY or self._skips:
                continue  # the rest of a failed COPY, or messages after an error
            elif kind in (_QUERY, _CALL):
                await self._attempt(self._query if kind == _QUERY else _refuse_call, body)
                self.ready()
                await self._wire.drained()
            elif kind == _FLUSH:
                self._wire.flush()
                await self._wire.drained()
            elif kind in self._handlers:
                self._skips = not await self._attempt(self._handlers[kind], body)
            else:
                raise SqlError("08P01", f"invalid frontend message type {kind[0]}")

    async def _next_message(self) -> tuple[bytes, bytes] | None:
        """Wait for a message that the fast path does not answer; return it, or None if it stays in the buffer.

        With an idle timeout, the fast path is not used.
        """
        limit = self._session.idle_limit
        if limit is None:
            is_at_rest = not (self._portals or self._is_implicit or self._skips) and CLIENT.get().is_utf8
            await self._wire.arrive(self._answer if is_at_rest else None)
            return None
        if not self._is_ready:
            return await self._wire.receive()
        seconds, failure = limit
        try:
            async with asyncio.timeout(seconds):
                return await self._wire.receive()
        except TimeoutError:
            raise failure from None

    def _answer(self, data: bytes) -> bytes | None:
        """Return the answer on the fast path; None if `run` must process the messages."""
        begun = time.perf_counter()
        try:
            answered = self._exchange.answer(data)
        except Exception as error:  # `run` raises it again for the client
            self._work.note(error)
            return None
        if answered is None:
            return None
        statement, answer = answered
        self._work.statistics.seconds.observe(time.perf_counter() - begun)
        self.text = statement.prepared.text
        return answer

    def ready(self) -> None:
        """Send all pending messages, and ReadyForQuery."""
        self.report_parameters()
        self._wire.send(messages.ready(self._session.status.value))
        self._wire.flush()
        self._is_ready = True

    def report_parameters(self) -> None:
        """Report changed settings to the client."""
        parameters = self._session.parameters
        if parameters is not self._reported:
            self._follow_encoding()
            for name, value in parameters.items():
                if self._reported.get(name) != value:
                    self._wire.send(messages.parameter_status(name, value))
            self._reported = parameters

    def _follow_encoding(self) -> None:
        """Use the client encoding of the session from now on."""
        name = self._session.parameters.get("client_encoding", "UTF8")
        if name != CLIENT.get().name and (encoding := find_encoding(name)) is not None:
            CLIENT.set(encoding)

    async def end(self) -> None:
        """Close all portals."""
        while self._portals:
            _, portal = self._portals.popitem()
            if portal.is_under_way:
                await portal.close()

    async def _attempt(self, handle: Callable[[bytes], Awaitable[None] | None], body: bytes) -> bool:
        """Process a message, and report an error to the client; return whether it succeeded."""
        self._begin = 0
        self._follow_encoding()
        with self._work:
            pending = handle(body)
            if pending is not None:
                await pending
        failure = self._work.failure
        if failure is None:
            return True
        self._is_implicit = False
        self._wire.send(messages.error(failure, begin=self._begin))
        self._wire.flush()
        await self.end()
        await self._session.fail()
        return False

    async def _sync(self) -> None:
        self._skips = False
        if self._is_implicit:
            self._is_implicit = False
            await self._attempt(lambda _: self._session.end_implicit(), b"")
        if self._portals and self._session.status is not TransactionStatus.OPEN:
            await self.end()
        self.ready()
        await self._wire.drained()

    # Simple queries

    async def _query(self, body: bytes) -> None:
        begun = time.perf_counter()
        self.text = text = query_of(body)
        self._statements.pop("", None)
        await self._close_portal("")
        portal = await self._planned(text) if len(text) <= _SHORT else None
        rows = portal.look_up(self._session) if portal is not None else None
        if portal is not None and rows is not None:
            shape = portal.shape
            end = messages.command_complete(f"SELECT {len(rows)}")
            self._wire.send(b"".join((shape.description, data_rows(rows, shape.encoders), end)))
            self._work.statistics.seconds.observe(time.perf_counter() - begun)
            return
        split = self._session.split if portal is None else _whole
        statements = split(text) if len(text) <= _SHORT else await asyncio.to_thread(split, text)
        if not statements:
            self._wire.send(messages.EMPTY_QUERY)
            return
        await self._session.begin_implicit()
        for index, (begin, statement) in enumerate(statements):
            self._work.require_going_on()  # a completed statement, such as a COMMIT, is never reported as cancelled
            self._begin = begin
            tag = await self._carried_out(statement, portal)
            if index == len(statements) - 1:
                await self._session.end_implicit()
            self._wire.send(messages.command_complete(tag))

    async def _planned(self, text: str) -> Portal | None:
        """Return a portal of the statement's shape with the constants as arguments; None if the text itself is planned.

        An error in the shape is not reported: the plan of the text has the error, at its place in the text.
        """
        shape = shape_of(text)
        if shape is None or self._refused.get((shape.text, shape.oids)) or len(self._session.split(shape.text)) != 1:
            return None
        try:
            prepared = await self._session.prepare(shape.text, shape.oids)
            return Portal.of_bytes(self._understood(prepared), (), shape.arguments, ())
        except SqlError as error:
            if error.sqlstate[:2] == "42":
                self._refused.put((shape.text, shape.oids), True)
            return None

    async def _carried_out(self, statement: str, portal: Portal | None) -> str:
        """Execute a statement; prepare it again if other sessions have changed its result columns meanwhile."""
        for _ in range(_MOST_TRIES):
            try:
                return await (self._run(statement) if portal is None else self._carry_out(portal))
            except ChangedResultError:
                portal = None
        return await self._run(statement)

    async def _run(self, text: str) -> str:
        if self._forget(text):
            return "DEALLOCATE"
        if (moved := await self._moved(text)) is not None:
            return moved
        self._follow_encoding()
        prepared = await self._session.prepare(text, ())
        if prepared.parameters:
            raise SqlError("42P02", "there is no parameter $1", hint="A simple query has no arguments.")
        return await self._carry_out(Portal(self._understood(prepared), (), ()))

    async def _moved(self, text: str) -> str | None:
        """Skip rows of a portal after MOVE, and return the tag; None for other statements, also of cursors."""
        match = _MOVE.fullmatch(text) if text.lstrip()[:4].upper() == "MOVE" else None
        name = match["name"] if match else ""
        name = name.strip('"') if name.startswith('"') else name.lower()
        if match is None or name not in self._portals or self._session.status is not TransactionStatus.OPEN:
            return None
        portal, most, count = self._portals[name], int(match["count"]), 0
        await portal.begin(self._session)
        while count < most and (rows := await portal.next_rows(most - count)):
            count += len(rows)
        return f"MOVE {count}"

    async def _carry_out(self, portal: Portal) -> str:
        try:
            return await self._delivery.carry_out(portal, 0, is_described=True) or ""
        finally:
            await portal.close()

    # Extended queries

    async def _parse(self, body: bytes) -> None:
        request = parse_of(body)
        if not request.name:
            self._statements.pop("", None)
        elif request.name in self._statements:
            what = f'prepared statement "{request.name}" already exists'
            raise SqlError("42P05", what, hint="Close the statement first, or use another name.")
        prepared = await self._session.prepare(request.text, request.oids)
        self._statements[request.name] = self._understood(prepared)
        self._wire.send(messages.PARSE_COMPLETE)

    def _bind(self, body: bytes) -> Awaitable[None] | None:
        request = bind_of(body)
        if request.portal and request.portal in self._portals:
            raise SqlError("42P03", f'cursor "{request.portal}" already exists', hint="Close the cursor first.")
        statement = self._statement(request.statement)
        portal = Portal.of_bytes(statement, request.formats, request.arguments, request.result_formats)
        before = self._portals.get(request.portal)
        self._portals[request.portal] = portal
        self._wire.send(messages.BIND_COMPLETE)
        return before.close() if before and before.is_under_way else None

    def _describe(self, body: bytes) -> Awaitable[None] | None:
        request = named_of(body)
        if request.is_portal:
            if request.name and request.name not in self._portals:
                return self._describe_cursor(request.name)
            self._wire.send(self._portal(request.name).shape.description)
            return None
        statement = self._statement(request.name)
        self._wire.send(messages.parameter_description(statement.prepared.parameters))
        self._wire.send(statement.shape(()).description)
        return None

    async def _describe_cursor(self, name: str) -> None:
        """Describe a cursor of DECLARE, which clients see as a portal."""
        quoted = name.replace('"', '""')
        prepared = await self._session.prepare(f'FETCH 0 FROM "{quoted}"', ())
        self._wire.send(self._understood(prepared).shape(()).description)

    async def _execute(self, body: bytes) -> None:
        request = execute_of(body)
        portal = self._portal(request.portal)
        self.text = text = portal.prepared.text
        if not text.strip():
            self._wire.send(messages.EMPTY_QUERY)
            return
        if self._forget(text):
            self._wire.send(messages.command_complete("DEALLOCATE"))
            return
        if not self._is_implicit:
            self._is_implicit = True
            await self._session.begin_implicit()
        tag = await self._delivery.carry_out(portal, request.most_rows, is_described=False)
        self._wire.send(messages.PORTAL_SUSPENDED if tag is None else messages.command_complete(tag))

    def _insertion(self) -> Callable[[bytes], Awaitable[None]] | None:
        """Take Bind, Describe and Execute of an INSERT that needs no wait; return its execution, or None."""
        data = None if self._skips or not CLIENT.get().is_utf8 else self._wire.bound(EXECUTIONS)
        before = self._portals.get("")
        if data is None or (before is not None and before.is_under_way):
            return None
        try:
            insertion = self._exchange.insertion(data)
        except Exception:  # the normal path raises it again for the client
            return None
        if insertion is None:
            return None
        self._wire.skip(len(data))
        return partial(self._insert, insertion)

    async def _insert(self, insertion: Insertion, _: bytes) -> None:
        """Execute an INSERT of a row."""
        self._portals[""] = portal = insertion.portal
        self._wire.send(insertion.beginning)
        self.text = insertion.statement.prepared.text
        if not self._is_implicit:
            self._is_implicit = True
            await self._session.begin_implicit()
        begun = time.perf_counter()
        portal.result = result = self._session.insert(insertion.statement.prepared, insertion.arguments)
        self._work.statistics.seconds.observe(time.perf_counter() - begun)
        self._wire.send(messages.command_complete(result.tag(0)))

    async def _close(self, body: bytes) -> None:
        request = named_of(body)
        if request.is_portal:
            await self._close_portal(request.name)
        else:
            self._statements.pop(request.name, None)
        self._wire.send(messages.CLOSE_COMPLETE)

    def _understood(self, prepared: Prepared) -> PreparedStatement:
        """Return the wire form of a statement; for a cached plan, the cached form."""
        statement = self._latest.get(id(prepared.plan))
        if statement is None or statement.prepared.plan is not prepared.plan or prepared.plan is None:
            statement = self._latest.put(id(prepared.plan), PreparedStatement(prepared))
        return statement

    def _statement(self, name: str) -> PreparedStatement:
        if name not in self._statements:
            raise SqlError("26000", f'prepared statement "{name}" does not exist')
        return self._statements[name]

    def _portal(self, name: str) -> Portal:
        if name not in self._portals:
            raise SqlError("34000", f'portal "{name}" does not exist', hint="Portals end with their transaction.")
        return self._portals[name]

    async def _close_portal(self, name: str) -> None:
        if portal := self._portals.pop(name, None):
            await portal.close()

    def _forget(self, text: str) -> bool:
        """Forget the client's statements after DEALLOCATE or DISCARD; return whether the session may skip the text."""
        match = _FORGET.fullmatch(text) if text.lstrip()[:2].upper() in ("DE", "DI") else None
        if match is None or self._session.status is TransactionStatus.FAILED:
            return False
        plain, quoted = match["plain"], match["quoted"]
        if quoted is None and (plain is None or plain.upper() == "ALL"):
            self._statements.clear()
            return False
        name = quoted.replace('""', '"') if quoted is not None else plain.lower()
        return self._statements.pop(name, None) is not None


def _whole(text: str) -> Sequence[tuple[int, str]]:
    return ((0, text),)


async def _refuse_call(_: bytes) -> None:
    raise SqlError("0A000", "calls of functions by messages are not supported", hint="Write SELECT function(…).")
