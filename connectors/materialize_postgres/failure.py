"""PostgreSQL's errors as ours, by what a person can do about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from derive.errors import BusyError, DeniedError, DiskFullError, EndpointError, EndpointGoneError, FlowError

_BY_STATE: dict[str, tuple[type[FlowError], str | None]] = {
    "25006": (DeniedError, "the server, or this role, only reads; name one that may write"),
    "42501": (DeniedError, "grant the role what it lacks: it creates tables in the schema, reads and writes them"),
    "28": (DeniedError, "compare user and password with those of the server"),
    "3D000": (EndpointError, "create the database, or name another"),
    "3F000": (EndpointError, "create the schema, or name another"),
    "40": (BusyError, "others were at the same rows; it is tried again"),
    "53100": (DiskFullError, "make space on the server's disk"),
    "53": (EndpointGoneError, "the server has no connection or memory to spare"),
    "54": (EndpointError, "keys of a table may have about 2,700 bytes in PostgreSQL, and values 1 GB"),
    "55": (BusyError, "something else holds what is needed; it is tried again"),
    "57": (EndpointGoneError, "the server stops, or begins; it is tried again"),
    "58": (EndpointGoneError, "see the server's log"),
    "08": (EndpointGoneError, "see whether the server runs"),
}
"""By SQLSTATE, or how it begins: what happened, and what to do about it."""

_BY_TEXT = (
    ("password authentication failed", "28"),
    ("no password supplied", "28"),
    ("no pg_hba.conf entry", "28"),
    ("role ", "28"),
    ("is not permitted to log in", "28"),
    ("permission denied for database", "42501"),
    ("database ", "3D000"),
    ("too many", "53"),
    ("remaining connection slots", "53"),
    ("the database system is", "57"),
)
"""What a refusal to connect says, of which psycopg knows the text only."""


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Within, an error of PostgreSQL is a `FlowError` that names the database.

    Args:
        where: the database.
    """
    try:
        yield
    except psycopg.Error as exc:
        raise explain(where, exc) from exc


def explain(where: str, exc: psycopg.Error) -> FlowError:
    """The error that says what happened to a database."""
    diagnosis = exc.diag
    said = [diagnosis.message_primary or str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__]
    said += [
        text for text in (diagnosis.message_detail, (diagnosis.context or "").splitlines()[:1]) if isinstance(text, str)
    ]
    said += (diagnosis.context or "").splitlines()[:1]
    state = exc.sqlstate or _guess(exc)
    kind, hint = _BY_STATE.get(state) or _BY_STATE.get(state[:2]) or (EndpointError, None)
    return kind(f"PostgreSQL {where}: {'; '.join(said)}", hint=hint)


def _guess(exc: psycopg.Error) -> str:
    if not isinstance(exc, psycopg.OperationalError):
        return ""
    text = str(exc)
    refusal = text.partition("FATAL:")[2].strip()
    return next((state for begin, state in _BY_TEXT if refusal and begin in refusal), "08")
