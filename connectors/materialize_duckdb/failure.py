"""Translation of DuckDB's errors to this runtime's, by the action that resolves them."""

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
"""Parts of DuckDB's messages, which are more specific than its classes of errors."""


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Translate an error of DuckDB in the block to a `FlowError` that names the database.

    Args:
        path: file of the database.
    """
    try:
        yield
    except duckdb.Error as exc:
        raise explain(path, exc) from exc


def explain(path: str, exc: duckdb.Error) -> FlowError:
    """Return the translated error of a database."""
    said = (str(exc).strip().splitlines() or [type(exc).__name__])[0]
    rules = ((kind, hint) for text, kind, hint in _BY_TEXT if text in str(exc))
    kind, hint = next(rules, (EndpointError, None))
    return kind(f"DuckDB database '{path}': {said}", hint=hint)
