"""A session that also answers queries of PostgreSQL's catalogs, which have no times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from derive.algebra.types import Datum, Row
from derive.errors import SqlError
from derive.sql.outcome import Prepared, Result, Session, TransactionStatus
from derive.sql.parser.text_cache import MOST_CHARACTERS, cached_by_text
from derive.sql.pg_catalog.cancellable_query import CancellableQuery
from derive.sql.pg_catalog.effects import Effect, Effects
from derive.sql.pg_catalog.objects import CatalogObjects, SessionFacts
from derive.sql.pg_catalog.query import CatalogQuery, answer, is_catalog_query, prepare

T = TypeVar("T")

_LOOK_SECONDS, _MOST_SECONDS = 0.25, 60.0
"""Interval of checks for cancellation, and longest duration of a query, which delays those of others, in seconds."""

_is_catalog_query = cached_by_text(is_catalog_query)


class DescribingSession:
    """A session that answers catalog queries, and passes other statements on.

    Args:
        session: session for the other statements.
        objects: returns the current relations and indexes.
        facts: returns facts about the session.
        effects: executor of effects.
    """

    def __init__(
        self,
        session: Session,
        objects: Callable[[], CatalogObjects],
        facts: Callable[[], SessionFacts],
        effects: Effects,
    ) -> None:
        self._session = session
        self.look_up = session.look_up  # a catalog query is no lookup
        self._objects = objects
        self._facts = facts
        self._effects = effects

    @property
    def status(self) -> TransactionStatus:
        """Return the status of the transaction."""
        return self._session.status

    @property
    def idle_limit(self) -> tuple[float, SqlError] | None:
        """Return the idle timeout in seconds, and its error; None without one."""
        return self._session.idle_limit

    @property
    def parameters(self) -> dict[str, str]:
        """Return the settings that are reported to clients."""
        return self._session.parameters

    def split(self, text: str) -> Sequence[tuple[int, str]]:
        """Return the statements of a text with their offsets."""
        return self._session.split(text)

    async def prepare(self, text: str, oids: Sequence[int]) -> Prepared:
        """Prepare one statement."""
        is_short = len(text) <= MOST_CHARACTERS
        if not (_is_catalog_query(text) if is_short else await asyncio.to_thread(_is_catalog_query, text)):
            return await self._session.prepare(text, oids)
        self._require_sound()
        self._effects.begin()
        cancellable = CancellableQuery()
        query = await self._asked(cancellable, asyncio.to_thread(prepare, text, self._objects(), oids, cancellable))
        return Prepared(text, query.parameters, query.columns, query)

    def execute(self, prepared: Prepared, arguments: Sequence[Datum]) -> Coroutine[Any, Any, Result]:
        """Execute a statement."""
        if isinstance(prepared.plan, CatalogQuery):
            return self._answer(prepared, prepared.plan, arguments)
        return self._session.execute(prepared, arguments)

    async def _answer(self, prepared: Prepared, query: CatalogQuery, arguments: Sequence[Datum]) -> Result:
        self._require_sound()
        self._effects.begin()
        cancellable = CancellableQuery()
        answering = asyncio.to_thread(answer, query, self._objects(), arguments, self._facts(), cancellable)
        rows = await self._asked(cancellable, answering)
        return Result(lambda count: f"SELECT {count}", prepared.columns, self._completed(rows))

    async def _asked(self, cancellable: CancellableQuery, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a query, up to the statement timeout, and up to `_MOST_SECONDS` since other queries wait."""
        begun = time.monotonic()
        task = asyncio.ensure_future(work)
        try:
            with self._effects.ending(cancellable.stop):
                while not (await asyncio.wait({task}, timeout=_LOOK_SECONDS))[0]:
                    if time.monotonic() - begun > _MOST_SECONDS:
                        cancellable.stop(
                            SqlError("54000", f"a query about catalogs takes more than {_MOST_SECONDS:.0f} s")
                        )
                    elif cancellable.reason is not None:
                        cancellable.stop()
                return task.result()
        finally:
            if not task.done():
                cancellable.stop()

    def begin_implicit(self) -> Coroutine[Any, Any, None]:
        """Begin an implicit transaction, unless a transaction is open."""
        return self._session.begin_implicit()

    def end_implicit(self) -> Coroutine[Any, Any, None]:
        """Commit the implicit transaction."""
        return self._session.end_implicit()

    async def fail(self) -> None:
        """Handle the failure of a statement."""
        await self._session.fail()

    def cancel(self) -> None:
        """Cancel the current statement; from any thread."""
        self._session.cancel()

    async def close(self) -> None:
        """Close the session."""
        await self._session.close()

    async def _completed(self, rows: Sequence[Sequence[Datum | Effect]]) -> AsyncIterator[Sequence[Row]]:
        """Yield the rows after executing their effects."""
        yield [
            tuple([await self._effects.call(value) if isinstance(value, Effect) else value for value in row])
            for row in rows
        ]

    def _require_sound(self) -> None:
        if self.status is TransactionStatus.FAILED:
            raise SqlError("25P02", "current transaction is aborted, commands ignored until end of transaction block")
