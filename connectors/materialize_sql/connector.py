"""A connector for one SQL database: what the kit asks, answered with a dialect and a way to connect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from connectors.kit.connector import Session
from connectors.kit.requests import (
    Application,
    Applied,
    ConnectorSpec,
    Opening,
    ValidatedBinding,
    Validation,
)
from connectors.materialize_sql.application import Preparation
from connectors.materialize_sql.column import Column
from connectors.materialize_sql.constraints import constrain, room_for
from connectors.materialize_sql.dialect import Dialect
from connectors.materialize_sql.endpoint import Endpoint
from connectors.materialize_sql.fence import CHECKPOINTS, Fence, raise_fence
from connectors.materialize_sql.names import literal
from connectors.materialize_sql.refill import read_notes
from connectors.materialize_sql.session import SqlSession
from connectors.materialize_sql.tables import Tables, not_ready, table_path
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
        return ConnectorSpec(self.endpoint_schema, RESOURCE_SCHEMA, "docs/materialize.md", refills=True)

    def validate(self, request: Validation) -> Sequence[ValidatedBinding]:
        """What the tables, as they are now, ask of fields."""
        schema = self.schema_of(request.config)
        paths = [table_path(schema, binding.resource["table"], self.dialect) for binding in request.bindings]
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

    def apply(self, request: Application) -> Applied:
        """Create tables and change them, or have refills replace rows, in one transaction."""
        materialization = request.materialization
        with closing(self.connect(materialization.config, for_writing=not request.dry_run)) as endpoint:
            tables = Tables(self.dialect, endpoint, self.schema_of(materialization.config))
            if request.dry_run:
                return self._preparation(tables, request).outcome
            if request.completed:
                self.make_way(endpoint, Fence(tables.checkpoints, materialization.name, 0, 0xFFFF_FFFF))
            with endpoint.transaction():
                if self.locked is not None:  # others may be about to create the table of checkpoints, too
                    endpoint.query(self.locked(literal(CHECKPOINTS)))
                    endpoint.query(self.locked(literal(materialization.name)))
                preparation = self._preparation(tables, request)
                preparation.execute()
            return preparation.outcome

    def open(self, opening: Opening) -> Session:
        """Open a session, and fence off those of any of its keys."""
        materialization = opening.materialization
        endpoint = self.connect(materialization.config, for_writing=True)
        try:
            tables = Tables(self.dialect, endpoint, self.schema_of(materialization.config))
            path = tables.checkpoints
            if endpoint.describe(path) is None:
                raise not_ready(self.dialect, f"the table '{CHECKPOINTS}' is not there")
            fence = Fence(path, materialization.name, opening.key_begin, opening.key_end)
            self.make_way(endpoint, fence)
            with endpoint.transaction():
                if self.locked is not None:
                    endpoint.query(self.locked(literal(materialization.name)))
                notes = read_notes(endpoint.query, self.dialect, path, materialization.name)
                stored = [tables.stored(binding, notes) for binding in materialization.bindings]
                fence, checkpoint = raise_fence(endpoint.query, self.dialect, fence)
            places, contents = [table for table, _ in stored], [identity for _, identity in stored]
            return SqlSession(checkpoint, places, endpoint.transfer(places, fence), self.encoder, contents)
        except BaseException:
            endpoint.close()
            raise

    def _preparation(self, tables: Tables, request: Application) -> Preparation:
        statements = self.schema_statements(request.materialization.config, tables.endpoint)
        return Preparation(tables, request, statements)

    def _refuse_shared(self, paths: Sequence[tuple[str, ...]]) -> None:
        names = [self.dialect.naming.fold(path[-1]) for path in paths]
        for name, path in zip(names, paths, strict=True):
            if names.count(name) > 1:
                raise EndpointError(f"two bindings name the table '{path[-1]}'", hint="a table is of one binding")
