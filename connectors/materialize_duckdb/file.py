"""A database file that several processes open in turn.

DuckDB lets only one process open a file. So the file is open only while it is read or written, and other processes,
such as other shards or readers of the rows, can open it in between.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock

import duckdb

from connectors.materialize_duckdb.failure import explain, translated
from derive.errors import BusyError, EndpointError

_PATIENCE = 20.0
"""Seconds to wait for other processes."""

_PAUSE = 0.01
_CONFIG: dict[str, str | bool | int | float | list[str]] = {"autoinstall_known_extensions": "false"}
"""The connector needs no extension that is not installed, and a server may have no network."""


@cache
def _lock_of(path: str) -> Lock:
    """Return the lock that admits one thread of this process at a time."""
    return Lock()


class DatabaseFile:
    """A database file.

    Args:
        path: path of the file.
    """

    def __init__(self, path: str) -> None:
        folder = Path(path).parent
        if not folder.is_dir():
            hint = "create it, or name another"
            raise EndpointError(f"DuckDB database '{path}': there is no folder '{folder}'", hint=hint)
        self.path = path
        self._lock = _lock_of(os.path.realpath(path))

    @contextmanager
    def opened(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a connection that no other session has meanwhile.

        Raises:
            BusyError: other processes, or threads of this one, have the file for too long.
        """
        if not self._lock.acquire(timeout=_PATIENCE):
            raise BusyError(f"DuckDB database '{self.path}' is in use by other sessions", hint="it is tried again")
        try:
            connection = self._connect()
            try:
                yield connection
            finally:
                with translated(self.path):
                    connection.close()
        finally:
            self._lock.release()

    def _connect(self) -> duckdb.DuckDBPyConnection:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return duckdb.connect(self.path, config=_CONFIG)
            except duckdb.Error as exc:
                error = explain(self.path, exc)
                if not isinstance(error, BusyError) or time.monotonic() > deadline:
                    raise error from exc
                time.sleep(_PAUSE)
