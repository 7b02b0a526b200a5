"""A data folder with a catalog, and sessions over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TypeVar

from derive.algebra.types import Datum
from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.task_reconciler import open_run
from derive.errors import SqlError
from derive.functions.types.type_info import text_function
from derive.sql.coordinator import Coordinator
from derive.sql.session import SqlSession
from derive.storage.ingest import Ingestion
from derive.storage.store import Store

T = TypeVar("T")

CATALOG = """
collections:
  shop/orders:
    schema:
      type: object
      properties: {id: {type: integer}, customer: {type: string}, amount: {type: number}, at: {type: string}}
      required: [id, customer, amount]
    key: [/id]
  shop/spending:
    schema:
      type: object
      properties:
        customer: {type: string}
        spent: {type: number, reduce: {strategy: sum}}
      required: [customer]
      reduce: {strategy: merge}
    key: [/customer]
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: fromOrders, source: shop/orders, shuffle: any, lambda: "SELECT $customer, $amount AS spent;"}
"""


def lapse(root: Path) -> None:
    """Let the capability of the SQL server expire, as if its process had been stopped for a minute."""
    with closing(Store(root, durable=False)) as store, store.metadata.transaction() as db:
        db.execute("UPDATE capability SET expires = 0 WHERE task = 'sql:'")


class Client:
    """A session, whose results are lists of rows of texts."""

    def __init__(self, coordinator: Coordinator, **settings: str) -> None:
        self.session = SqlSession(coordinator, settings)

    async def __call__(self, text: str, *arguments: Datum) -> list[tuple[str | None, ...]]:
        """Run a statement as psql does, and return its rows."""
        return (await self.run(text, *arguments))[0]

    async def script(self, *texts: str) -> None:
        """Run statements, which each text separates by `; `."""
        for text in texts:
            for statement in text.split("; "):
                await self(statement)

    async def tag(self, text: str) -> str:
        """Run a statement, and return its tag."""
        return (await self.run(text))[1]

    async def run(self, text: str, *arguments: Datum) -> tuple[list[tuple[str | None, ...]], str]:
        session = self.session
        try:
            prepared = await session.prepare(text, ())
            await session.begin_implicit()
            result = await session.execute(prepared, arguments)
            rows: list[tuple[str | None, ...]] = []
            if result.rows is not None:
                columns = result.columns or ()
                async for batch in result.rows:
                    for row in batch:
                        pairs = zip(columns, row, strict=True)
                        rows.append(
                            tuple(
                                None if datum is None else text_function(kind.type, kind.modifier)(datum)
                                for kind, datum in pairs
                            )
                        )
            await session.end_implicit()
        except BaseException:
            await session.fail()
            raise
        return rows, result.tag(len(rows))

    async def fails(self, text: str, *arguments: Datum) -> str:
        """The SQLSTATE with which a statement fails."""
        return (await self.error(text, *arguments)).sqlstate

    async def error(self, text: str, *arguments: Datum) -> SqlError:
        """The error with which a statement fails."""
        try:
            await self(text, *arguments)
        except SqlError as error:
            return error
        raise AssertionError(f"{text} does not fail")


class SqlWorld:
    """A data folder."""

    def __init__(self, folder: Path, catalog: str = CATALOG) -> None:
        (folder / "flow.yaml").write_text(catalog)
        self.folder = folder
        self.data = folder / "data"
        self.catalog = load(folder / "flow.yaml")

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Coordinator]:
        """Open a coordinator, as a server does that starts."""
        coordinator = Coordinator(self.data, self.catalog)
        try:
            yield coordinator
        finally:
            await coordinator.close()

    @asynccontextmanager
    async def served(self, **settings: str) -> AsyncIterator[tuple[Coordinator, Client]]:
        """Open a coordinator, and a session over it."""
        async with self.opened() as coordinator:
            yield coordinator, Client(coordinator, **settings)

    def within(self, work: Callable[[Coordinator], Awaitable[T]]) -> T:
        """Do something with a coordinator of its own."""

        async def run() -> T:
            async with self.opened() as coordinator:
                return await work(coordinator)

        return asyncio.run(run())

    def script(self, *texts: str, **settings: str) -> list[list[tuple[str | None, ...]]]:
        """Rows of statements of one session."""

        async def run(coordinator: Coordinator) -> list[list[tuple[str | None, ...]]]:
            client = Client(coordinator, **settings)
            return [await client(text) for text in texts]

        return self.within(run)


def ingest(coordinator: Coordinator, orders: Sequence[tuple[int, str, float]], *, year: int | None = None) -> None:
    """Ingest orders, in the present or in a year that is long gone."""
    spec = coordinator.objects.lookup(None, "shop/orders")
    assert spec
    documents = [
        {"id": id_, "customer": customer, "amount": amount, "at": f"{year}-01-01T00:00:{second:02}Z"}
        for second, (id_, customer, amount) in enumerate(orders)
    ]
    collection = coordinator.objects.collections[spec.id]
    clock = "/at" if year else None
    Ingestion(coordinator.store, collection, clock=clock).load("test", enumerate(documents, start=1))


def derive_all(world: SqlWorld, coordinator: Coordinator) -> None:
    """Run derivations up to the present."""
    run = open_run(world.catalog, coordinator.store, InProcessExecutor())
    run.step()
    run.close()
