"""The connector `materialize-postgres`, which closes connections of fenced sessions that still hold locks.

A process that is stopped or disconnected within a transaction keeps its locks as long as the server believes that it
runs. Its transaction can no longer commit, so no data are lost when its connection is closed.
"""

from __future__ import annotations

import hashlib
from typing import Any

from connectors.materialize_postgres.endpoint import POSTGRES, connect, encoder_of
from connectors.materialize_sql.column import quote
from connectors.materialize_sql.connector import SqlConnector
from connectors.materialize_sql.endpoint import Endpoint, Fence
from derive.errors import BusyError

_PATIENCE = "3s"
"""Maximum wait for a running commit."""


def make_way(endpoint: Endpoint, fence: Fence) -> None:
    """End sessions that hold locks on the checkpoints of a range, and name this session, so that a successor finds it.

    Args:
        endpoint: connection without a transaction.
        fence: the range.
    """
    names = "\0".join((*fence.table, fence.materialization)).encode()
    session = f"materialize-postgres {hashlib.sha256(names).hexdigest()[:12]}"
    span = f"{fence.key_begin:08x}-{fence.key_end:08x}"
    endpoint.query("SELECT set_config('application_name', $1, false)", [f"{session} {span}"])
    try:
        with endpoint.transaction():
            endpoint.query(f"SET LOCAL lock_timeout = '{_PATIENCE}'")
            endpoint.query(
                f'SELECT 1 FROM {POSTGRES.table(fence.table)} WHERE "materialization" = $1 AND "key_end" >= $2'
                ' AND "key_begin" <= $3 FOR UPDATE',
                [fence.materialization, fence.key_begin, fence.key_end],
            )
    except BusyError:
        if not _evict(endpoint, session, fence):
            raise


def _evict(endpoint: Endpoint, session: str, fence: Fence) -> bool:
    """End the connections of sessions with overlapping ranges; return whether there were any."""
    rows = endpoint.query(
        "SELECT pid, application_name FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND starts_with(application_name, $1)",
        [session],
    )
    ended = False
    for pid, name in rows:
        begin, end = (int(text, 16) for text in name.rpartition(" ")[2].split("-"))
        if begin <= fence.key_end and end >= fence.key_begin:
            endpoint.query("SELECT pg_terminate_backend($1::int, 5000)", [pid])
            ended = True
    return ended


SCHEMA = "public"
"""The default schema of tables."""

ENDPOINT_SCHEMA = {
    "title": "PostgreSQL",
    "type": "object",
    "required": ["address", "user", "password"],
    "properties": {
        "address": {
            "title": "Address",
            "description": "Host, host:port, or the folder of the server's socket. The default port is 5432.",
            "type": "string",
            "minLength": 1,
        },
        "user": {"title": "User", "description": "The role to log in as.", "type": "string", "minLength": 1},
        "password": {"title": "Password", "description": "The role's password.", "type": "string", "secret": True},
        "database": {
            "title": "Database",
            "description": "Name of the database. Default: the name of the user.",
            "type": "string",
            "minLength": 1,
        },
        "schema": {
            "title": "Schema",
            "description": "The schema that tables are in; it is created if missing.",
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
