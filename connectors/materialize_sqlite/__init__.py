"""Materializing into SQLite: `{path}` is a file, in which each binding has a table."""

from connectors.materialize_sqlite.connector import MaterializeSqlite as MaterializeSqlite
