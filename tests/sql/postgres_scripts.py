"""Scripts of statements, in PostgreSQL and here: the same tags, rows and errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import psycopg
from psycopg import Connection
from sql_world import Client, SqlWorld

from derive.errors import SqlError, Violation
from derive.sql.coordinator import Coordinator

Outcome: TypeAlias = tuple[str, list[tuple[str | None, ...]]]
"""A tag and rows; or a SQLSTATE, with message, detail and violation for violated constraints, and no rows."""


def _failure(sqlstate: str, message: str | None, detail: str | None, violation: Violation | None) -> Outcome:
    if violation is not None and violation.schema.startswith("pg_temp_"):  # the number differs
        violation = replace(violation, schema="pg_temp")
    return (f"{sqlstate} {message} | {detail} | {violation}" if sqlstate.startswith("23") else sqlstate, [])


def in_postgres(connection: Connection, texts: Sequence[str]) -> list[Outcome]:
    """Run a script in a PostgreSQL server, whose schema `writes` stands for `public`."""
    outcomes: list[Outcome] = []
    for (schema,) in connection.execute("SELECT quote_ident(nspname) FROM pg_namespace WHERE oid >= 16384").fetchall():
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())
    connection.execute("CREATE SCHEMA writes")
    connection.execute("SET search_path = writes")
    for text in texts:
        try:
            cursor = connection.execute(text.replace("public", "writes").encode())
        except psycopg.Error as error:
            said = error.diag
            violation = None
            if said.table_name:
                schema = "public" if said.schema_name == "writes" else said.schema_name or ""
                violation = Violation(said.table_name, said.constraint_name, said.column_name, schema)
            outcomes.append(_failure(error.sqlstate or "", said.message_primary, said.message_detail, violation))
            continue
        result = cursor.pgresult
        assert result
        rows = [
            tuple(
                value.decode().replace("writes", "public")
                if (value := result.get_value(row, column)) is not None
                else None
                for column in range(result.nfields)
            )
            for row in range(result.ntuples)
        ]
        outcomes.append((cursor.statusmessage or "", rows))
    return outcomes


async def in_ours(coordinator: Coordinator, texts: Sequence[str]) -> list[Outcome]:
    """Run a script in one session."""
    client = Client(coordinator)
    outcomes: list[Outcome] = []
    for text in texts:
        try:
            rows, tag = await client.run(text)
        except SqlError as error:
            outcomes.append(_failure(error.sqlstate, error.message, error.detail, error.violation))
        else:
            outcomes.append((tag, rows))
    return outcomes


def maintained(
    definitions: Sequence[str], queries: Sequence[str], changes: Sequence[str], postgres: Connection, folder: Path
) -> tuple[list[tuple[str, str, Outcome]], list[tuple[str, str, Outcome]]]:
    """Return the rows of queries after each change: here of maintained views, in PostgreSQL of plain views.

    Args:
        definitions: statements that define tables.
        queries: queries of the views.
        changes: statements that change the tables.
        postgres: connection to a PostgreSQL server.
        folder: empty data folder.
    """
    steps = [*definitions]
    steps += [f"CREATE VIEW v{number} AS {query}" for number, query in enumerate(queries)]
    for change in changes:
        steps += [change, *(f"TABLE v{number}" for number in range(len(queries)))]
    own = [step.replace("CREATE VIEW", "CREATE MATERIALIZED VIEW", 1) for step in steps]
    ours, theirs = outcomes(own, postgres, folder, steps)
    begin = len(definitions) + len(queries)

    def labelled(results: list[tuple[str, Outcome]]) -> list[tuple[str, str, Outcome]]:
        labels = [(change, query) for change in changes for query in ("", *queries)]
        return [(*label, outcome) for label, (_, outcome) in zip(labels, results[begin:], strict=True)]

    return labelled(ours), labelled(theirs)


def outcomes(
    texts: Sequence[str], postgres: Connection, folder: Path, others: Sequence[str] | None = None
) -> tuple[list[tuple[str, Outcome]], list[tuple[str, Outcome]]]:
    """Return the statements with their outcomes here and in PostgreSQL, which gets `others`; rows are sorted."""
    ours = SqlWorld(folder).within(lambda coordinator: in_ours(coordinator, texts))
    return _sorted(texts, ours), _sorted(texts, in_postgres(postgres, others or texts))


def _sorted(texts: Sequence[str], results: Sequence[Outcome]) -> list[tuple[str, Outcome]]:
    return [(text, (tag, sorted(rows, key=repr))) for text, (tag, rows) in zip(texts, results, strict=True)]
