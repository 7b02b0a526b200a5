"""A derivation whose edits take keys away, materialized with its source into a database that somebody reads all the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import duckdb
import orjson
import psycopg
import pytest
from conftest import World, write_catalog
from sql_databases import Database

from connectors.kit import (
    Application,
    Applied,
    ConnectorSpec,
    MaterializeConnector,
    Opening,
    Session,
    ValidatedBinding,
    Validation,
)
from connectors.kit.servicer import ConnectorServer
from derive.catalog import load
from derive.contents.reads import ReadOptions
from derive.contents.reduced import read_reduced, reduced_locally
from derive.engine.reset import reset
from derive.errors import EndpointGoneError
from derive.materialize.worker import close_streams
from derive.time.extent import Limits

DAY = 86_400_000_000
VIEW = "shop/view"

CATALOG = """
collections:
  shop/events:
    key: [/number]
    schema:
      type: object
      required: [number, id, value]
      properties: {number: { type: integer }, id: { type: string }, value: { type: integer }}
  shop/sums:
    key: [/id]
    schema:
      type: object
      required: [id]
      reduce: { strategy: merge }
      properties:
        id: { type: string }
        value: { type: integer, reduce: { strategy: sum } }
    derive:
      using: { sqlite: {} }
      transforms:
        - name: fromEvents
          source: shop/events
          shuffle: any
          lambda: SELECT $id, $value WHERE $value >= LEAST;
materializations:
  shop/view:
    endpoint: ENDPOINT
    bindings:
      - { resource: { table: events }, source: shop/events }
      - { resource: { table: sums }, source: shop/sums, backfill: BACKFILL, onSourceReset: RESET }
"""


class Watched:
    """A connector that tells whenever it has changed something, and is about to commit."""

    def __init__(
        self, connector: MaterializeConnector, look: Callable[[], None], committing: Callable[[], None]
    ) -> None:
        self._connector, self._look, self._committing = connector, look, committing

    @property
    def name(self) -> str:
        return self._connector.name

    def spec(self) -> ConnectorSpec:
        return self._connector.spec()

    def validate(self, request: Validation) -> Sequence[ValidatedBinding]:
        return self._connector.validate(request)

    def apply(self, request: Application) -> str | Applied:
        applied = self._connector.apply(request)
        self._look()
        return applied

    def open(self, opening: Opening) -> Session:
        session = self._connector.open(opening)
        commit = session.commit

        def watched() -> None:
            self._committing()
            commit()
            self._look()

        session.commit = watched  # type: ignore[method-assign]
        return session


class Shop:
    """A data folder over a database, and all that a reader of the tables has seen.

    Args:
        folder: of the catalog.
        database: an empty one.
        endpoint: what the catalog says of it.
    """

    def __init__(self, folder: Path, database: Database, endpoint: dict[str, Any]) -> None:
        self.folder, self.database, self.endpoint = folder, database, endpoint
        self.edits = {"LEAST": "0", "BACKFILL": "0", "RESET": "stop"}
        self.seen: list[dict[str, int]] = []
        self.commits = 1_000_000
        self.world = World(folder / "data", self.load())
        self.world.wall = 20_000 * DAY

    def load(self) -> Any:
        """The catalog as it is now."""
        text = CATALOG.replace("ENDPOINT", orjson.dumps(self.endpoint).decode())
        for name, value in self.edits.items():
            text = text.replace(name, value)
        return load(write_catalog(self.folder, text.replace("onSourceReset: stop", "disable: false")))

    def edit(self, **edits: str) -> None:
        """Edit the catalog."""
        self.edits |= edits
        self.world.catalog = self.load()

    def committing(self) -> None:
        """Count a commit, which fails if no more are left."""
        self.commits -= 1
        if self.commits < 0:
            raise EndpointGoneError("the endpoint went away")

    def begin_half(self, shards: int | None = None, commits: int = 2) -> None:
        """Run until an error ends it after some commits."""
        self.commits = commits
        with pytest.raises(EndpointGoneError):
            self.world.step(shards=shards, limits=Limits(documents=3))
        close_streams()
        self.commits = 1_000_000

    def look(self) -> None:
        """Read the sums, as somebody who is not the connector."""
        with suppress(apsw.SQLError, duckdb.CatalogException, psycopg.errors.UndefinedTable):  # there is no table yet
            self.seen.append(self.rows())

    def rows(self, table: str = "sums") -> dict[Any, Any]:
        """The values of a table, by key."""
        key = "number" if table == "events" else "id"
        return {
            name: int(value)
            for name, value in self.database.query(f'SELECT "{key}", "value" FROM "{table}" WHERE "value" IS NOT NULL')
        }

    def contents(self, collection: str = "shop/sums") -> dict[Any, Any]:
        """The values of a collection, by key."""
        spec = self.world.catalog.collections[collection]
        parts = read_reduced(
            self.world.store, spec, ReadOptions(), partial(reduced_locally, scratch=self.folder / "scratch")
        )
        documents = [orjson.loads(text) for rows in parts for text in rows.texts.to_pylist()]
        return {document[spec.key[0][1:]]: document["value"] for document in documents}

    def ingest(self, *values: tuple[str, int]) -> None:
        """Ingest events, two a second, of a day that is over then."""
        known = self.world.store.collection("shop/events")
        first = known.documents if known else 0
        documents = [{"number": first + at, "id": name, "value": value} for at, (name, value) in enumerate(values)]
        for at in range(0, len(documents), 2):
            self.world.ingest("shop/events", documents[at : at + 2], clock=None)
            self.world.wall += 1_000_000
        self.world.wall += DAY

    def reset(self, *names: str) -> None:
        close_streams()
        reset(self.world.catalog, self.world.store, names, cascade=True)

    def others(self) -> list[str]:
        """Tables of the database beside those of the bindings."""
        connector: Any = self.database.connector
        found = {
            "SQLite": "SELECT name FROM sqlite_master WHERE type = 'table'",
            "PostgreSQL": "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()",
            "DuckDB": "SELECT table_name FROM duckdb_tables()",
        }[connector.dialect.title]
        names = [name for (name,) in self.database.query(found)]
        return sorted(set(names) - {"events", "sums", "flow_checkpoints"})

    def check(self) -> None:
        """Require that the tables have what the collections have."""
        assert self.rows() == self.contents()
        assert self.rows("events") == self.contents("shop/events")

    def close(self) -> None:
        close_streams()
        self.world.store.close()


@contextmanager
def opened(folder: Path, database: Database, kind: type[Shop] = Shop) -> Iterator[Shop]:
    """A shop whose connector serves in this process, and tells what a reader sees."""
    shops: list[Shop] = []

    def look() -> None:
        shops[0].look()

    def committing() -> None:
        shops[0].committing()

    watched = Watched(database.connector, look, committing)
    server = ConnectorServer(watched, "127.0.0.1:0")
    shop = kind(folder, database, {"address": server.address, "config": database.config})
    shops.append(shop)
    try:
        yield shop
    finally:
        shop.close()
        server.stop()
