"""The SQLite derive connector: lambdas are blocks of SQL, state is tables."""

from connectors.derive_sqlite.connector import SqliteConnector

__all__ = ["SqliteConnector"]
