"""The connector `materialize-postgres`."""

from __future__ import annotations

from typing import Any

from connectors.materialize_postgres.dialect import POSTGRES, encoder_of
from connectors.materialize_postgres.endpoint import connect
from connectors.materialize_postgres.eviction import make_way
from connectors.materialize_sql.connector import SqlConnector
from connectors.materialize_sql.endpoint import Endpoint
from connectors.materialize_sql.names import quote

SCHEMA = "public"
"""The default schema of tables."""

ENDPOINT_SCHEMA = {
    "title": "PostgreSQL",
    "type": "object",
    "required": ["address", "user", "password"],
    "properties": {
        "address": {
            "title": "Address",
            "description": "Host, host:port, or the folder of the server's socket; the port is 5432 if none is said.",
            "type": "string",
            "minLength": 1,
        },
        "user": {"title": "User", "description": "The role to log in as.", "type": "string", "minLength": 1},
        "password": {"title": "Password", "description": "The role's password.", "type": "string", "secret": True},
        "database": {
            "title": "Database",
            "description": "Name of the database; the user's if nothing is said.",
            "type": "string",
            "minLength": 1,
        },
        "schema": {
            "title": "Schema",
            "description": "The schema that tables are in; it is created if it is not there.",
            "type": "string",
            "minLength": 1,
            "default": SCHEMA,
        },
        "sslmode": {
            "title": "SSL mode",
            "description": "How the connection is protected, as in libpq.",
            "enum": ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"],
            "default": "prefer",
        },
    },
    "additionalProperties": False,
}
"""JSON Schema of an endpoint's configuration."""


class MaterializePostgres(SqlConnector):
    """Tables in a schema of PostgreSQL."""

    def __init__(self) -> None:
        super().__init__(
            "materialize-postgres",
            POSTGRES,
            ENDPOINT_SCHEMA,
            connect,
            encoder_of,
            schema_of=_schema_of,
            schema_statements=_schema_statements,
            locked=_locked,
            make_way=make_way,
        )


def _schema_of(config: Any) -> tuple[str, ...]:
    return (config.get("schema", SCHEMA),)


def _schema_statements(config: Any, endpoint: Endpoint) -> list[str]:
    (schema,) = _schema_of(config)
    if endpoint.query("SELECT 1 FROM pg_namespace WHERE nspname = $1", [schema]):
        return []
    return [f"CREATE SCHEMA {quote(schema)}"]


def _locked(materialization: str) -> str:
    return f"SELECT pg_advisory_xact_lock(hashtextextended({materialization}, 0))"
