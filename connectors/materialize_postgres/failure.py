"""Translation of PostgreSQL's errors to this runtime's, by the action that resolves them."""

from __future__ import annotations

import re
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
    "54001": (EndpointError, "exclude what is nested so deep"),
    "54011": (EndpointError, "exclude fields: a table of PostgreSQL has at most 1,600 columns, dropped ones included"),
    "54": (EndpointError, "see the limits of PostgreSQL, and exclude fields"),
    "55": (BusyError, "something else holds what is needed; it is tried again"),
    "57": (EndpointGoneError, "the server stops, or begins; it is tried again"),
    "58": (EndpointGoneError, "see the server's log"),
    "08": (EndpointGoneError, "see whether the server runs"),
}
"""Class of the error and hint, by SQLSTATE or its prefix."""

_LIMITS = (
    (re.compile("index row"), "keys of a table may have about 2,700 bytes in PostgreSQL"),
    (re.compile("row is too big"), "exclude fields: a row may have 8,160 bytes beside values that are kept elsewhere"),
    (re.compile("columns in an index"), "take fewer fields into the key: it has at most 32 columns in PostgreSQL"),
    (re.compile("string|field|length|memory|buffer"), "values may have 1 GB in PostgreSQL"),
)
"""Messages of PostgreSQL about limits that share an SQLSTATE, each with a solution."""

_BY_TEXT = (
    (
        re.compile(r"password authentication failed|no password supplied|no pg_hba.conf entry|not permitted to log in"),
        "28",
    ),
    (re.compile('role ".*" does not exist'), "28"),
    (re.compile("permission denied for database"), "42501"),
    (re.compile('database ".*" does not exist'), "3D000"),
    (re.compile("too many (clients|connections)|remaining connection slots"), "53"),
)
"""SQLSTATE of a refused connection by its text, because psycopg only has the text."""


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Translate an error of PostgreSQL in the block to a `FlowError` that names the database.

    Args:
        where: name of the database in messages.
    """
    try:
        yield
    except psycopg.Error as exc:
        raise explain(where, exc) from exc


def explain(where: str, exc: psycopg.Error) -> FlowError:
    """Return the translated error of a database."""
    diagnosis = exc.diag
    lines = str(exc).strip().splitlines() or [type(exc).__name__]
    context = (diagnosis.context or "").splitlines()[:1]
    said = [text for text in (diagnosis.message_primary or lines[0], diagnosis.message_detail, *context) if text]
    state = exc.sqlstate or _guess(exc)
    kind, hint = _BY_STATE.get(state) or _BY_STATE.get(state[:2]) or (EndpointError, None)
    if state in ("54000", "54011"):
        hint = next((told for pattern, told in _LIMITS if pattern.search(said[0])), hint)
    return kind(f"PostgreSQL {where}: {'; '.join(said)}", hint=hint)


def _guess(exc: psycopg.Error) -> str:
    if not isinstance(exc, psycopg.OperationalError):
        return ""
    return next((state for pattern, state in _BY_TEXT if pattern.search(str(exc))), "08")
