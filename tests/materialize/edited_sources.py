"""Endpoints of every kind, into which edited collections are materialized, each by a task of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import apsw
import duckdb
from conftest import World, write_catalog
from postgres_server import server
from webhook_server import listening

from connectors.kit.connector import MaterializeConnector
from connectors.kit.servicer import ConnectorServer
from connectors.materialize_duckdb import MaterializeDuckdb
from connectors.materialize_files import FilesConnector
from connectors.materialize_postgres import MaterializePostgres
from connectors.materialize_sqlite import MaterializeSqlite
from connectors.materialize_webhook.connector import WebhookConnector
from derive.catalog import load
from derive.contents.reads import ReadOptions
from derive.contents.reduced import read_reduced, reduced_locally
from derive.document.exact import parse_exact
from derive.errors import FlowError
from derive.materialize.worker import close_streams, connectors

BASE, SECOND = 1_700_000_000_000_000, 1_000_000

Rows: TypeAlias = dict[int, Any]
Schemas: TypeAlias = Mapping[str, Mapping[str, Any]]


class Endpoint:
    """An endpoint of one kind, and collections that are materialized into it.

    Args:
        folder: of the catalog.
        connector: of the endpoint.
        config: of the endpoint.
        resource: of a name.
        read: the values of `v` that the endpoint has by key, of a name.
        is_delta: nothing is reduced onto rows.
    """

    def __init__(
        self,
        folder: Path,
        connector: MaterializeConnector,
        config: dict[str, Any],
        resource: Callable[[str], dict[str, Any]],
        read: Callable[[str], Rows],
        *,
        is_delta: bool = False,
    ) -> None:
        self._server = ConnectorServer(connector, "127.0.0.1:0")
        self._folder, self._config, self._resource = folder, config, resource
        self.rows, self.is_delta = read, is_delta
        self.world = World(folder / "data", load(write_catalog(folder, "collections: {}")), wall=BASE)

    def edit(self, schemas: Schemas, backfill: int = 0, without: Collection[str] = ()) -> None:
        """Define collections, by name, and a materialization of each; some without `v`."""
        collections, materializations = {}, {}
        for name, schema in schemas.items():
            properties = {"k": {"type": "integer"}, **schema.get("properties", {})}
            whole = {"type": "object", "required": ["k"], **schema, "properties": properties}
            collections[f"m/{name}"] = {"key": ["/k"], "schema": whole}
            fields = {"exclude": ["v"]} if name in without else {}
            binding = {"resource": self._resource(name), "source": f"m/{name}", "backfill": backfill, "fields": fields}
            endpoint = {"address": self._server.address, "config": self._config}
            materializations[f"s/{name}"] = {"endpoint": endpoint, "bindings": [binding]}
        text = json.dumps({"collections": collections, "materializations": materializations})
        self.world.catalog = load(write_catalog(self._folder, text))

    def ingest(self, name: str, documents: Sequence[Mapping[str, Any]]) -> None:
        """Ingest documents, each in a tick of its own."""
        for document in documents:
            self.world.ingest(f"m/{name}", [dict(document)], clock=None)
            self.world.wall += SECOND

    def run(self, *, is_accepted: bool = False) -> dict[str, FlowError | None]:
        """Run everything; returns the error of each materialization, by name."""
        close_streams()
        accepted = list(self.world.catalog.tasks) if is_accepted else []
        with closing(self.world.run(shards=1, accepted=accepted)) as run:
            self.world.wall += SECOND
            run.step()
            close_streams()
            return {name.removeprefix("s/"): task.error for name, task in run.tasks.items()}

    def contents(self, name: str) -> Rows:
        """The values of `v` that the collection has, by key."""
        spec = self.world.catalog.collections[f"m/{name}"]
        fold = partial(reduced_locally, scratch=self.world.root / "scratch")
        parts = read_reduced(self.world.store, spec, ReadOptions(), fold)
        documents = [parse_exact(text.encode()) for rows in parts for text in rows.texts.to_pylist()]
        return {document["k"]: document.get("v") for document in documents}

    def close(self) -> None:
        """End it."""
        close_streams()
        self.world.store.close()
        self._server.stop()
        connectors().close()  # another server may be given this one's port


def _table(name: str) -> dict[str, Any]:
    return {"table": name}


def sqlite(folder: Path) -> Iterator[Endpoint]:
    path = str(folder / "out.db")

    def read(name: str) -> Rows:
        with closing(apsw.Connection(path)) as database:
            database.set_busy_timeout(10_000)  # the connector's last connection may still be closing
            return dict(database.execute(f'SELECT k, v FROM "{name}"'))

    yield Endpoint(folder, MaterializeSqlite(), {"path": path}, _table, read)


def in_duckdb(folder: Path) -> Iterator[Endpoint]:
    path = str(folder / "out.duckdb")

    def read(name: str) -> Rows:
        with closing(duckdb.connect(path, read_only=True)) as database:
            return dict(database.execute(f'SELECT k, v FROM "{name}"').fetchall())

    yield Endpoint(folder, MaterializeDuckdb(), {"path": path}, _table, read)


def postgres(folder: Path) -> Iterator[Endpoint]:
    running = server()
    schema = "edits_" + "".join(character for character in folder.name.lower() if character.isalnum())

    def read(name: str) -> Rows:
        with running.connect() as connection:
            rows = connection.execute(f'SELECT k::bigint, v::text FROM "{schema}"."{name}"'.encode()).fetchall()
        return dict(rows)

    yield Endpoint(folder, MaterializePostgres(), running.config | {"schema": schema}, _table, read)


def files(folder: Path, kind: str) -> Iterator[Endpoint]:
    def read(name: str) -> Rows:
        rows: Rows = {}
        for path in sorted((folder / "out" / name).glob(f"*.{kind}")):
            if kind == "jsonl":
                found = [json.loads(line) for line in path.read_text().splitlines()]
            else:
                query = duckdb.execute(f"SELECT * FROM read_{kind}(?)", [str(path)])
                names = [column[0] for column in query.description or ()]
                found = [dict(zip(names, row, strict=True)) for row in query.fetchall()]
            rows |= {row["k"]: row.get("v") for row in found}
        return rows

    def resource(name: str) -> dict[str, Any]:
        return {"path": name, "format": kind}

    yield Endpoint(folder, FilesConnector(), {"path": str(folder / "out")}, resource, read, is_delta=True)


def webhook(folder: Path) -> Iterator[Endpoint]:
    with listening() as hook:

        def read(name: str) -> Rows:
            return {document["k"]: document.get("v") for document in hook.documents(f"/{name}")}

        def resource(name: str) -> dict[str, Any]:
            return {"path": name}

        yield Endpoint(folder, WebhookConnector(), {"address": hook.address}, resource, read, is_delta=True)


ENDPOINTS: dict[str, Callable[[Path], Iterator[Endpoint]]] = {
    "sqlite": sqlite,
    "duckdb": in_duckdb,
    "postgres": postgres,
    "parquet": partial(files, kind="parquet"),
    "csv": partial(files, kind="csv"),
    "jsonl": partial(files, kind="jsonl"),
    "webhook": webhook,
}
