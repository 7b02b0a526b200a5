"""Translation of SQLite's errors to this runtime's, by the action that resolves them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from derive.errors import BusyError, DeniedError, DiskFullError, EndpointError, FlowError


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Translate an error of SQLite in the block to a `FlowError` that names the database.

    Args:
        path: file of the database.
    """
    try:
        yield
    except apsw.Error as exc:
        raise explain(path, exc) from exc


def explain(path: str, exc: apsw.Error) -> FlowError:
    """Return the translated error of a database."""
    what = f"SQLite database '{path}': {exc}"
    match exc:
        case apsw.BusyError() | apsw.LockedError():
            return BusyError(what, hint="another process has kept it locked; it is tried again")
        case apsw.FullError():
            return DiskFullError(what, hint="make space on the disk of the database")
        case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError():
            return DeniedError(what, hint="let this user write the file, and files beside it")
        case apsw.CantOpenError():
            return EndpointError(what, hint="name a file in a folder that exists and can be written")
        case apsw.NotADBError() | apsw.CorruptError():
            return EndpointError(what, hint="name another file, or restore this one")
        case _:
            return EndpointError(what)
