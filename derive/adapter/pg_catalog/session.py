"""A session that also answers questions about PostgreSQL's catalogs, which have rows of their own and no times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from derive.adapter.outcome import Prepared, Result, Session, TransactionStatus
from derive.adapter.pg_catalog.objects import CatalogObjects
from derive.adapter.pg_catalog.query import CatalogQuery, answer, is_catalog_query, prepare
from derive.compute.algebra.types import Datum, Row
from derive.errors import SqlError


class DescribingSession:
    """Passes on to another session what is not about catalogs.

    Args:
        session: the other one.
        objects: what there is now.
        settings: of the session, by name.
    """

    def __init__(
        self, session: Session, objects: Callable[[], CatalogObjects], settings: Callable[[], dict[str, str]]
    ) -> None:
        self._session = session
        self._objects = objects
        self._settings = settings

    @property
    def status(self) -> TransactionStatus:
        """Whether a transaction is open, or has failed."""
        return self._session.status

    @property
    def parameters(self) -> dict[str, str]:
        """What clients are told of settings."""
        return self._session.parameters

    def split(self, text: str) -> Sequence[str]:
        """The statements of a text."""
        return self._session.split(text)

    async def prepare(self, text: str, oids: Sequence[int]) -> Prepared:
        """Understand one statement."""
        if not is_catalog_query(text):
            return await self._session.prepare(text, oids)
        self._require_sound()
        query = await asyncio.to_thread(prepare, text, self._objects(), oids)
        return Prepared(text, query.parameters, query.columns, query)

    async def execute(self, prepared: Prepared, arguments: Sequence[Datum]) -> Result:
        """Begin to carry out a statement."""
        if not isinstance(prepared.plan, CatalogQuery):
            return await self._session.execute(prepared, arguments)
        self._require_sound()
        rows = await asyncio.to_thread(answer, prepared.plan, self._objects(), arguments, self._settings())
        return Result(lambda count: f"SELECT {count}", prepared.columns, _at_once(rows))

    async def begin_implicit(self) -> None:
        """What follows is one transaction unless one is open."""
        await self._session.begin_implicit()

    async def end_implicit(self) -> None:
        """Commit what is not part of an explicit transaction."""
        await self._session.end_implicit()

    async def fail(self) -> None:
        """A statement has failed."""
        await self._session.fail()

    def cancel(self) -> None:
        """Have the statement at work end with an error; from any thread."""
        self._session.cancel()

    async def close(self) -> None:
        """The client is gone."""
        await self._session.close()

    def _require_sound(self) -> None:
        if self.status is TransactionStatus.FAILED:
            raise SqlError("25P02", "current transaction is aborted, commands ignored until end of transaction block")


async def _at_once(rows: Sequence[Row]) -> AsyncIterator[Sequence[Row]]:
    yield rows
