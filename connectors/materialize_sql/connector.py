"""A connector for one SQL database: what the kit asks, answered with a dialect and a way to connect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from connectors.kit.connector import Session
from connectors.kit.requests import (
    Application,
    Binding,
    ConnectorSpec,
    Materialization,
    Opening,
    ValidatedBinding,
    Validation,
)
from connectors.materialize_sql.binding import table_of
from connectors.materialize_sql.column import Column, Table
from connectors.materialize_sql.constraints import constrain, room_for
from connectors.materialize_sql.dialect import Dialect
from connectors.materialize_sql.endpoint import Endpoint
from connectors.materialize_sql.fence import CHECKPOINTS, Fence, create_checkpoints, has_checkpoint, raise_fence
from connectors.materialize_sql.migration import Migration, migrate
from connectors.materialize_sql.names import literal
from connectors.materialize_sql.session import SqlSession
from connectors.materialize_sql.values import Encoder
from derive.errors import EndpointError

RESOURCE_SCHEMA = {
    "title": "Table",
    "type": "object",
    "required": ["table"],
    "properties": {
        "table": {"title": "Table", "description": "Name of the table.", "type": "string", "minLength": 1},
        "delta_updates": {
            "title": "Delta updates",
            "description": "Append a row for each change, rather than keep one row for each key.",
            "type": "boolean",
            "default": False,
        },
    },
    "additionalProperties": False,
}
"""JSON Schema of a binding's configuration."""


@dataclass(frozen=True, slots=True)
class SqlConnector:
    """Fulfils the kit's `MaterializeConnector`.

    Attributes:
        name: of the connector, such as `materialize-sqlite`.
        dialect: the database's.
        endpoint_schema: JSON Schema of an endpoint's configuration.
        connect: a connection for a configuration; `for_writing` if it is to create the database where that is usual.
        encoder: of a column, what makes of packed values what a transfer takes.
        schema_of: of a configuration, the schema its tables are in, as the beginning of their paths.
        schema_statements: of a configuration and a connection, what creates that schema if it is not there.
        locked: of a name, a statement that lets one at a time go on, where that takes one.
        make_way: sees that nobody stops a session from opening, where somebody could.
    """

    name: str
    dialect: Dialect
    endpoint_schema: Mapping[str, Any]
    connect: Callable[..., Endpoint]
    encoder: Callable[[Column], Encoder]
    schema_of: Callable[[Any], tuple[str, ...]] = lambda config: ()
    schema_statements: Callable[[Any, Endpoint], list[str]] = lambda config, endpoint: []
    locked: Callable[[str], str] | None = None
    make_way: Callable[[Endpoint, Fence], None] = lambda endpoint, fence: None

    def spec(self) -> ConnectorSpec:
        """What it can be configured with."""
        return ConnectorSpec(self.endpoint_schema, RESOURCE_SCHEMA, "docs/materialize.md")

    def validate(self, request: Validation) -> Sequence[ValidatedBinding]:
        """What the tables, as they are now, ask of fields."""
        schema = self.schema_of(request.config)
        paths = [self._path(schema, binding.resource["table"]) for binding in request.bindings]
        self._refuse_shared(paths)
        validated = []
        with closing(self.connect(request.config, for_writing=False)) as endpoint:
            for path, binding in zip(paths, request.bindings, strict=True):
                delta = bool(binding.resource.get("delta_updates"))
                existing = endpoint.describe(path)
                constraints = constrain(binding, path, existing, self.dialect, delta_updates=delta)
                room = room_for(binding, existing, self.dialect)
                validated.append(ValidatedBinding(path, constraints, delta, room))
        return validated

    def apply(self, request: Application) -> str:
        """Create tables and change them, in one transaction."""
        config = request.materialization.config
        with closing(self.connect(config, for_writing=not request.dry_run)) as endpoint:
            if request.dry_run:
                return _described(self._statements(request, endpoint))
            with endpoint.transaction():
                if self.locked is not None:  # others may be about to create the table of checkpoints, too
                    endpoint.query(self.locked(literal(CHECKPOINTS)))
                statements = self._statements(request, endpoint)
                for statement in statements:
                    endpoint.query(statement)
            return _described(statements)

    def open(self, opening: Opening) -> Session:
        """Open a session, and fence off those of any of its keys."""
        materialization = opening.materialization
        endpoint = self.connect(materialization.config, for_writing=True)
        try:
            path = (*self.schema_of(materialization.config), CHECKPOINTS)
            if endpoint.describe(path) is None:
                raise self._not_ready(f"the table '{CHECKPOINTS}' is not there")
            tables = [self._ready(binding, endpoint, materialization) for binding in materialization.bindings]
            fence = Fence(path, materialization.name, opening.key_begin, opening.key_end)
            self.make_way(endpoint, fence)
            with endpoint.transaction():
                if self.locked is not None:
                    endpoint.query(self.locked(literal(materialization.name)))
                fence, checkpoint = raise_fence(endpoint.query, self.dialect, fence)
            return SqlSession(checkpoint, tables, endpoint.transfer(tables, fence), self.encoder)
        except BaseException:
            endpoint.close()
            raise

    def _statements(self, request: Application, endpoint: Endpoint) -> list[str]:
        materialization = request.materialization
        schema = self.schema_of(materialization.config)
        path = (*schema, CHECKPOINTS)
        statements = self.schema_statements(materialization.config, endpoint)
        if endpoint.describe(path) is None:
            statements.append(create_checkpoints(self.dialect, path))
        elif request.begun and has_checkpoint(endpoint.query, self.dialect, path, materialization.name):
            for index in sorted(request.begun):
                self._require_table(materialization.bindings[index], endpoint, schema)
        for binding in materialization.bindings:
            statements += self._migration(binding, endpoint, materialization).statements
        return statements

    def _require_table(self, binding: Binding, endpoint: Endpoint, schema: tuple[str, ...]) -> None:
        """Require that a table is there of which the checkpoint says what it has.

        Raises:
            EndpointError: it is not.
        """
        path = self._path(schema, binding.resource_path[-1])
        if endpoint.describe(path) is None:
            raise EndpointError(
                f"{self.dialect.title}: the table '{'.'.join(path)}' was dropped; made anew, it would lack what it had",
                hint="restore it; or, to have all stored again, raise 'backfill' of its binding, or start over: flowctl"
                " reset",
            )

    def _migration(self, binding: Binding, endpoint: Endpoint, materialization: Materialization) -> Migration:
        path = self._path(self.schema_of(materialization.config), binding.resource_path[-1])
        table = table_of(binding, self.dialect, path)
        migration = migrate(table, endpoint.describe(path), self.dialect)
        for field, reason in migration.faults.items():
            what = f"table '{'.'.join(path)}' cannot have the field '{field}': {reason}" if field else reason
            hint = "exclude the field, or name another table; rows that are there are never changed to fit"
            raise EndpointError(what, hint=hint)
        return migration

    def _ready(self, binding: Binding, endpoint: Endpoint, materialization: Materialization) -> Table:
        migration = self._migration(binding, endpoint, materialization)
        if not migration.is_ready:
            raise self._not_ready(f"the table '{'.'.join(migration.table.path)}' is not as this version needs it")
        return migration.table

    def _not_ready(self, what: str) -> EndpointError:
        return EndpointError(
            f"{self.dialect.title}: {what}", hint="it was changed since; apply the materialization again"
        )

    def _path(self, schema: tuple[str, ...], table: str) -> tuple[str, ...]:
        reason = "checkpoints are in it" if table == CHECKPOINTS else self.dialect.naming.refusal(table)
        if reason is not None:
            raise EndpointError(f"no table can be called '{table}': {reason}", hint="name another one")
        return (*schema, table)

    def _refuse_shared(self, paths: Sequence[tuple[str, ...]]) -> None:
        names = [self.dialect.naming.fold(path[-1]) for path in paths]
        for name, path in zip(names, paths, strict=True):
            if names.count(name) > 1:
                raise EndpointError(f"two bindings name the table '{path[-1]}'", hint="a table is of one binding")


def _described(statements: Sequence[str]) -> str:
    return "".join(f"{statement};\n" for statement in statements)
