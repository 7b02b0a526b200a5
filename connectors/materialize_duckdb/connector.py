"""The connector `materialize-duckdb`."""

from __future__ import annotations

from connectors.materialize_duckdb.dialect import DUCKDB, encoder_of
from connectors.materialize_duckdb.endpoint import connect
from connectors.materialize_sql.connector import SqlConnector

ENDPOINT_SCHEMA = {
    "title": "DuckDB",
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


class MaterializeDuckdb(SqlConnector):
    """Tables in a file of DuckDB."""

    def __init__(self) -> None:
        super().__init__("materialize-duckdb", DUCKDB, ENDPOINT_SCHEMA, connect, encoder_of)
