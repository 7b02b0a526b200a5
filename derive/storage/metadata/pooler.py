"""Connection poolers, such as PgBouncer, before the PostgreSQL server of the metadata.

The metadata need sessions: LISTEN, prepared statements, settings and the lock of `flowctl metadata copy` belong to a
session of the server. A pooler in transaction mode gives each transaction of a client any session. Then settings and
locks reach the sessions of others, and notifications are lost, without an error. So such a pooler is refused. In
session mode, a client keeps its session, and nothing differs from the server itself.

A pooler answers with another process than that of the session, because it has to forward cancellations.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeAlias

import psycopg
from psycopg import errors

from derive.errors import StorageError
from derive.storage.metadata.place import Place

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"


def direct_guard(connection: Connection) -> str:
    """Return a query that divides by zero if the connection leads to a pooler."""
    return f"SELECT 1 / (pg_backend_pid() = {connection.info.backend_pid})::int"


def require_sessions(place: Place, connection: Connection, another: Callable[[], Connection]) -> None:
    """Raise an error if a pooler gives the session of an idle connection to another connection.

    Args:
        place: the place of the metadata.
        connection: an idle connection to a pooler, without settings.
        another: returns another connection.

    Raises:
        StorageError: the pooler is not in session mode.
    """
    # A pooler that takes turns gives a client another session for each transaction; most poolers give the session that
    # was used last, also to another client.
    sessions = [_session_of(connection), _session_of(connection)]
    with closing(another()) as other:
        try:
            other.execute("BEGIN")
            is_shared = _session_of(other) in sessions
            is_shared |= len({*sessions, _session_of(connection)}) > 1
            other.rollback()
        except errors.ProtocolViolation:  # a pooler in statement mode refuses transactions
            is_shared = True
    if is_shared:
        raise StorageError(
            f"the metadata database {place.shown} is behind a connection pooler that shares sessions among its clients,"
            " such as PgBouncer in transaction mode; flowctl needs sessions of its own",
            hint="name the address of the server itself; or set pool_mode = session for this user in the pooler",
        )


def _session_of(connection: Connection) -> Any:
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    return row and row[0]
