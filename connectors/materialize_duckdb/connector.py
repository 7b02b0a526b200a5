"""The connector `materialize-duckdb`."""

from __future__ import annotations

from connectors.materialize_duckdb.dialect import DUCKDB, encoder_of
from connectors.materialize_duckdb.endpoint import connect
from connectors.materialize_sql.connector import SqlConnector
from connectors.materialize_sql.file import file_schema

ENDPOINT_SCHEMA = file_schema("DuckDB")
"""JSON Schema of an endpoint's configuration."""


class MaterializeDuckdb(SqlConnector):
    """Tables in a file of DuckDB."""

    def __init__(self) -> None:
        super().__init__("materialize-duckdb", DUCKDB, ENDPOINT_SCHEMA, connect, encoder_of)
