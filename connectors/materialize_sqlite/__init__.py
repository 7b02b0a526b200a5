"""Materialization into SQLite: `{path}` is a file with a table for each binding."""

from connectors.materialize_sqlite.connector import MaterializeSqlite as MaterializeSqlite
