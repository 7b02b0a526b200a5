"""Scripts of statements, in PostgreSQL and here: the same tags, rows and errors."""

from __future__ import annotations

from collections.abc import Sequence
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
    return (f"{sqlstate} {message} | {detail} | {violation}" if sqlstate.startswith("23") else sqlstate, [])


def in_postgres(connection: Connection, texts: Sequence[str]) -> list[Outcome]:
    """Run a script in a new schema of a PostgreSQL server."""
    outcomes: list[Outcome] = []
    connection.execute("DROP SCHEMA IF EXISTS writes CASCADE")
    connection.execute("CREATE SCHEMA writes")
    connection.execute("SET search_path = writes")
    for text in texts:
        try:
            cursor = connection.execute(text.encode())
        except psycopg.Error as error:
            said = error.diag
            violation = Violation(said.table_name, said.constraint_name, said.column_name) if said.table_name else None
            outcomes.append(_failure(error.sqlstate or "", said.message_primary, said.message_detail, violation))
            continue
        result = cursor.pgresult
        assert result
        rows = [
            tuple(
                value.decode() if (value := result.get_value(row, column)) is not None else None
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


def outcomes(
    texts: Sequence[str], postgres: Connection, folder: Path
) -> tuple[list[tuple[str, Outcome]], list[tuple[str, Outcome]]]:
    """Return the statements with their outcomes here and in PostgreSQL; rows are sorted."""
    ours = SqlWorld(folder).within(lambda coordinator: in_ours(coordinator, texts))
    return _sorted(texts, ours), _sorted(texts, in_postgres(postgres, texts))


def _sorted(texts: Sequence[str], results: Sequence[Outcome]) -> list[tuple[str, Outcome]]:
    return [(text, (tag, sorted(rows, key=repr))) for text, (tag, rows) in zip(texts, results, strict=True)]
