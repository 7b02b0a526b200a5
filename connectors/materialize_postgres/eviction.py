"""Eviction: the connections of fenced sessions that still hold locks are closed.

A process that is stopped or disconnected within a transaction keeps its locks as long as the server believes that it
runs. Its transaction can no longer commit, so closing its connection loses nothing.
"""

from __future__ import annotations

import hashlib

from connectors.materialize_postgres.dialect import POSTGRES
from connectors.materialize_sql.endpoint import Endpoint
from connectors.materialize_sql.fence import Fence
from derive.errors import BusyError

_PATIENCE = "3s"
"""Maximum wait for a running commit."""


def make_way(endpoint: Endpoint, fence: Fence) -> None:
    """Unlock the checkpoints of a range, and name this session so that others can unlock its checkpoints.

    Args:
        endpoint: connection without a transaction.
        fence: the range.
    """
    names = "\0".join((*fence.table, fence.materialization)).encode()
    session = f"materialize-postgres {hashlib.sha256(names).hexdigest()[:12]}"
    span = f"{fence.key_begin:08x}-{fence.key_end:08x}"
    endpoint.query("SELECT set_config('application_name', $1, false)", [f"{session} {span}"])
    try:
        with endpoint.transaction():
            endpoint.query(f"SET LOCAL lock_timeout = '{_PATIENCE}'")
            endpoint.query(
                f'SELECT 1 FROM {POSTGRES.table(fence.table)} WHERE "materialization" = $1 AND "key_end" >= $2'
                ' AND "key_begin" <= $3 FOR UPDATE',
                [fence.materialization, fence.key_begin, fence.key_end],
            )
    except BusyError:
        if not _evict(endpoint, session, fence):
            raise


def _evict(endpoint: Endpoint, session: str, fence: Fence) -> bool:
    """End the connections of sessions with overlapping ranges; return whether there were any."""
    rows = endpoint.query(
        "SELECT pid, application_name FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND starts_with(application_name, $1)",
        [session],
    )
    ended = False
    for pid, name in rows:
        begin, end = (int(text, 16) for text in name.rpartition(" ")[2].split("-"))
        if begin <= fence.key_end and end >= fence.key_begin:
            endpoint.query("SELECT pg_terminate_backend($1::int, 5000)", [pid])
            ended = True
    return ended
