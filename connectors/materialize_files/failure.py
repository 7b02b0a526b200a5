"""Errors of the file system, with hints for people."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from derive.errors import DeniedError, DiskFullError, EndpointError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextmanager
def reporting(doing: str) -> Iterator[None]:
    """Translate an OSError into an error that names the action.

    Raises:
        DiskFullError: there is no space left.
        DeniedError: permission is denied.
        EndpointError: any other error.
    """
    try:
        yield
    except OSError as exc:
        reason = exc.strerror or str(exc)
        if exc.errno in _FULL:
            raise DiskFullError(f"{doing}: {reason}", hint="free some space; it goes on by itself") from exc
        if exc.errno in _DENIED:
            raise DeniedError(f"{doing}: {reason}", hint="let whoever runs the connector write there") from exc
        raise EndpointError(f"{doing}: {reason}") from exc
