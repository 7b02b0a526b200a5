"""A connector for one SQL database: the kit's methods, implemented with a dialect and a connection."""

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
    """The kit's `MaterializeConnector` for an SQL database.

    Attributes:
        name: name of the connector, such as `materialize-sqlite`.
        dialect: dialect of the database.
        endpoint_schema: JSON Schema of an endpoint's configuration.
        connect: function that connects by a configuration; `for_writing` creates the database where that is usual.
        encoder: function that returns the encoder of a column, from packed values to those of a transfer.
        schema_of: function that returns the schema of a configuration, as the beginning of its tables' paths.
        schema_statements: function that returns the statements that create a missing schema.
        locked: function that returns a statement that locks a name; None if transactions exclude each other.
        make_way: function called before a session opens, to end sessions that block it.
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
        """Return the configuration schemas."""
        return ConnectorSpec(self.endpoint_schema, RESOURCE_SCHEMA, "docs/materialize.md", refills=True)

    def validate(self, request: Validation) -> Sequence[ValidatedBinding]:
        """Return the constraints of fields by the existing tables."""
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
        """Create and change tables, or replace rows by those of refills, in one transaction."""
        materialization = request.materialization
        with closing(self.connect(materialization.config, for_writing=not request.dry_run)) as endpoint:
            tables = Tables(self.dialect, endpoint, self.schema_of(materialization.config))
            if request.dry_run:
                return self._preparation(tables, request).outcome
            if request.completed:
                self.make_way(endpoint, Fence(tables.checkpoints, materialization.name, 0, 0xFFFF_FFFF))
            with endpoint.transaction():
                if self.locked is not None:  # other sessions may be about to create the table of checkpoints, too
                    endpoint.query(self.locked(literal(CHECKPOINTS)))
                    endpoint.query(self.locked(literal(materialization.name)))
                preparation = self._preparation(tables, request)
                preparation.execute()
            return preparation.outcome

    def open(self, opening: Opening) -> Session:
        """Open a session, and fence other sessions of any of its keys."""
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
            transfer = endpoint.transfer(places, fence)
            return SqlSession(checkpoint, places, transfer, self.encoder, contents, fence.narrower)
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
