"""DuckDB's errors as ours, by what a person can do about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

from derive.errors import BusyError, DeniedError, DiskFullError, EndpointError, FlowError

_BY_TEXT: tuple[tuple[str, type[FlowError], str], ...] = (
    ("Could not set lock", BusyError, "another process has the file open; DuckDB lets one in at a time"),
    ("Conflicting lock", BusyError, "another process has the file open; DuckDB lets one in at a time"),
    ("onflict on", BusyError, "others were at the same rows; it is tried again"),
    ("No space left", DiskFullError, "make space on the disk of the database"),
    ("Permission denied", DeniedError, "let this user write the file, and files beside it"),
    ("ead-only", DeniedError, "let this user write the file, and files beside it"),
    ("not a valid DuckDB database", EndpointError, "name another file, or restore this one"),
)
"""What DuckDB says, of which its kinds of errors say less."""


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Within, an error of DuckDB is a `FlowError` that names the database.

    Args:
        path: the database's file.
    """
    try:
        yield
    except duckdb.Error as exc:
        raise explain(path, exc) from exc


def explain(path: str, exc: duckdb.Error) -> FlowError:
    """The error that says what happened to a database."""
    said = (str(exc).strip().splitlines() or [type(exc).__name__])[0]
    rules = ((kind, hint) for text, kind, hint in _BY_TEXT if text in str(exc))
    kind, hint = next(rules, (EndpointError, None))
    return kind(f"DuckDB database '{path}': {said}", hint=hint)
