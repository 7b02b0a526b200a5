"""The connector `materialize-sqlite`."""

from __future__ import annotations

from connectors.materialize_sql.connector import SqlConnector
from connectors.materialize_sqlite.dialect import SQLITE, encoder_of
from connectors.materialize_sqlite.endpoint import connect

ENDPOINT_SCHEMA = {
    "title": "SQLite",
    "type": "object",
    "required": ["path"],
    "properties": {
        "path": {
            "title": "Path",
            "description": "The database's file; it is created if it is not there.",
            "type": "string",
            "minLength": 1,
        }
    },
    "additionalProperties": False,
}
"""JSON Schema of an endpoint's configuration."""


class MaterializeSqlite(SqlConnector):
    """Tables in a file of SQLite."""

    def __init__(self) -> None:
        super().__init__("materialize-sqlite", SQLITE, ENDPOINT_SCHEMA, connect, encoder_of)
