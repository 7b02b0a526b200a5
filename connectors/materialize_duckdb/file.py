"""A database file that processes take turns with.

DuckDB lets one process open a file. So it is open for as long as there is something to do in it, and no longer: other
processes, such as those of other shards or of who looks at the rows, come in between.
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
"""How long to wait for other processes, seconds."""

_PAUSE = 0.01
_CONFIG: dict[str, str | bool | int | float | list[str]] = {"autoinstall_known_extensions": "false"}
"""Nothing of ours needs an extension that is not there, and a server may have no network."""


@cache
def _lock_of(path: str) -> Lock:
    """What lets one thread of this process in at a time."""
    return Lock()


class DatabaseFile:
    """A database, and when it is open.

    Args:
        path: the file.
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
        """A connection, which nobody else has meanwhile.

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
