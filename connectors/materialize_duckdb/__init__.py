"""Materializing into DuckDB: `{path}` is a file, in which each binding has a table."""

from connectors.materialize_duckdb.connector import MaterializeDuckdb as MaterializeDuckdb
