"""Databases to materialize into, one for each SQL connector, and what tests ask them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import orjson
from postgres_server import server

from connectors.kit import (
    Application,
    Applied,
    Binding,
    Field,
    Materialization,
    MaterializeConnector,
    Opening,
    ProposedBinding,
    Session,
    SourceCollection,
    StoredRows,
    ValidatedBinding,
    Validation,
    Value,
)
from connectors.materialize_duckdb import MaterializeDuckdb
from connectors.materialize_duckdb.endpoint import DatabaseFile
from connectors.materialize_postgres import MaterializePostgres
from connectors.materialize_sql.column import quote
from connectors.materialize_sqlite import MaterializeSqlite
from derive.document.exact import dump_exact

NAME = "acmeBank/warehouse"


@dataclass(frozen=True)
class Database:
    """A database that is there, and the connector for it."""

    connector: MaterializeConnector
    config: dict[str, Any]
    query: Callable[[str], list[tuple[Any, ...]]]
    """Rows of a statement, executed by a connection of its own."""
    schema: tuple[str, ...] = ()

    def table(self, name: str) -> list[tuple[Any, ...]]:
        """The names of a table's columns, and its rows."""
        config = self.config
        endpoint = self.connector.connect(config, for_writing=True)  # type: ignore[attr-defined]
        with closing(endpoint):
            existing = endpoint.describe((*self.schema, name))
        names = tuple(existing.columns)
        return [names, *self.query(f"SELECT {', '.join(map(quote, names))} FROM {quote(name)}")]

    def materialization(self, *bindings: Binding) -> Materialization:
        here = tuple(replace(binding, resource_path=(*self.schema, *binding.resource_path)) for binding in bindings)
        return Materialization(NAME, self.config, here)

    def apply(self, *bindings: Binding, dry_run: bool = False) -> str:
        applied = self.connector.apply(Application(self.materialization(*bindings), "1", dry_run))
        assert isinstance(applied, Applied)
        return applied.description

    def validate(self, *proposed: ProposedBinding) -> Sequence[ValidatedBinding]:
        return self.connector.validate(Validation(NAME, self.config, proposed))

    def open(self, *bindings: Binding, begin: int = 0, end: int = 0xFFFF_FFFF) -> Session:
        return self.connector.open(Opening(self.materialization(*bindings), "1", begin, end))

    @contextmanager
    def session(self, *bindings: Binding, begin: int = 0, end: int = 0xFFFF_FFFF) -> Iterator[Session]:
        with closing(self.open(*bindings, begin=begin, end=end)) as session:
            yield session


def sqlite(folder: Path) -> Database:
    path = str(folder / "warehouse.db")

    def query(sql: str) -> list[tuple[Any, ...]]:
        with closing(apsw.Connection(path)) as database:
            database.set_busy_timeout(30_000)  # a connector may take a moment to end
            return list(database.execute(sql))

    return Database(MaterializeSqlite(), {"path": path}, query)


_schemas = count()


def postgres(_folder: Path) -> Database:
    running = server()
    schema = f"Warehouse {os.getpid()}-{next(_schemas)}"

    def query(sql: str) -> list[tuple[Any, ...]]:
        with running.connect(options=f'-csearch_path="{schema.replace(" ", chr(92) + " ")}"') as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    return Database(MaterializePostgres(), running.config | {"schema": schema}, query, (schema,))


def in_duckdb(folder: Path) -> Database:
    path = str(folder / "warehouse.duckdb")

    def query(sql: str) -> list[tuple[Any, ...]]:
        with DatabaseFile(path).opened() as connection:
            return connection.execute(sql).fetchall()

    return Database(MaterializeDuckdb(), {"path": path}, query)


CONNECTORS: dict[str, Callable[[], MaterializeConnector]] = {
    "duckdb": MaterializeDuckdb,
    "postgres": MaterializePostgres,
    "sqlite": MaterializeSqlite,
}

DATABASES: dict[str, Callable[[Path], Database]] = {"duckdb": in_duckdb, "postgres": postgres, "sqlite": sqlite}
"""By name, what makes an empty one; it may put files into a folder."""


@dataclass(frozen=True)
class Source:
    """A collection as a test describes it: fields by name, the key's first."""

    fields: dict[str, Field]
    name: str = "acmeBank/balances"
    schema: dict[str, Any] = field(default_factory=dict)

    @property
    def collection(self) -> SourceCollection:
        key = tuple(some.pointer for some in self.fields.values() if some.is_key)
        return SourceCollection(self.name, key, self.fields, orjson.dumps(self.schema).decode())

    def proposed(self, table: str = "balances", **resource: Any) -> ProposedBinding:
        return ProposedBinding({"table": table, **resource}, self.collection)

    def binding(self, table: str = "balances", *, delta: bool = False, leave_out: Sequence[str] = ()) -> Binding:
        selected = [some for some in self.fields.values() if some.name not in leave_out]
        return Binding(
            {"table": table, "delta_updates": delta},
            (table,),
            self.collection,
            tuple(some for some in selected if some.is_key),
            tuple(sorted((some for some in selected if not some.is_key and some.pointer), key=lambda some: some.name)),
            next((some.name for some in selected if not some.pointer), None),
            delta_updates=delta,
        )


def source(key: dict[str, Sequence[str]], values: dict[str, Sequence[str]], **said: Any) -> Source:
    """A collection of fields by name, with their types; keys must exist, and values that have no null."""
    fields = {name: Field(name, f"/{name}", tuple(types), True, is_key=True) for name, types in key.items()}
    fields |= {name: Field(name, f"/{name}", tuple(types), "null" not in types) for name, types in values.items()}
    fields["flow_document"] = Field("flow_document", "", ("object",), True)
    return Source(fields, **said)


def stored(
    binding: Binding, documents: Sequence[dict[str, Any]], *, exists: bool = False, deleted: bool = False
) -> StoredRows:
    """Documents as the runtime stores them."""

    def column(some: Field) -> list[Value]:
        return [_packed(document.get(some.pointer[1:])) for document in documents]

    return StoredRows(
        [column(some) for some in binding.keys],
        [column(some) for some in binding.values],
        [dump_exact(document) for document in documents],
        [exists] * len(documents),
        [deleted] * len(documents),
    )


def _packed(value: Any) -> Value:
    return orjson.dumps(value) if isinstance(value, dict | list) else value


def commit(
    session: Session, binding: Binding, documents: Sequence[dict[str, Any]], checkpoint: bytes = b"{}", **how: bool
) -> None:
    """One transaction that stores documents."""
    session.prepare(checkpoint)
    if documents:
        session.store(0, stored(binding, documents, **how))
    session.commit()


def load(session: Session, keys: Sequence[tuple[Value, ...]], binding: int = 0) -> list[Any]:
    """Documents of keys, as text, sorted."""
    session.load(binding, keys)
    return sorted(document.decode() for _, documents in session.loaded() for document in documents)
