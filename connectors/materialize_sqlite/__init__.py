"""Materialization into SQLite: `{path}` is a file with a table for each binding."""

from __future__ import annotations

from connectors.materialize_sql.connector import SqlConnector, file_schema
from connectors.materialize_sqlite.endpoint import SQLITE, connect, encoder_of

ENDPOINT_SCHEMA = file_schema("SQLite")
"""JSON Schema of an endpoint's configuration."""


class MaterializeSqlite(SqlConnector):
    """Tables in a file of SQLite."""

    def __init__(self) -> None:
        super().__init__("materialize-sqlite", SQLITE, ENDPOINT_SCHEMA, connect, encoder_of, is_local=True)
