"""Materialization into PostgreSQL: each binding has a table in one schema of a database."""

from connectors.materialize_postgres.connector import MaterializePostgres as MaterializePostgres
