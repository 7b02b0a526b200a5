"""Materialization into DuckDB: `{path}` is a file with a table for each binding."""

from connectors.materialize_duckdb.connector import MaterializeDuckdb as MaterializeDuckdb
