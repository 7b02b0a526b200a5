"""Materialization into DuckDB: `{path}` is a file with a table for each binding."""

from __future__ import annotations

from connectors.materialize_duckdb.endpoint import DUCKDB, connect, encoder_of
from connectors.materialize_sql.connector import SqlConnector, file_schema

ENDPOINT_SCHEMA = file_schema("DuckDB")
"""JSON Schema of an endpoint's configuration."""


class MaterializeDuckdb(SqlConnector):
    """Tables in a file of DuckDB."""

    def __init__(self) -> None:
        super().__init__("materialize-duckdb", DUCKDB, ENDPOINT_SCHEMA, connect, encoder_of, is_local=True)
