"""Renew leases in the background, so that their holders need no timer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from derive.errors import FlowError
from derive.storage.metadata.capability import RENEW_SECONDS, renew
from derive.storage.metadata.database import Metadata


class Renewals:
    """Leases of this process in one data folder, which one thread renews in one commit.

    A lease that has expired, because the process was stopped for longer than its duration, stays ended.

    Args:
        path: path of the metadata database.
        every: seconds between renewals.
    """

    def __init__(self, path: Path, every: float = RENEW_SECONDS) -> None:
        self._path, self._every = path, every
        self._leases: set[str] = set()
        self._thread: threading.Thread | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()

    @contextmanager
    def renewed(self, identifier: str) -> Iterator[None]:
        """Renew a lease while the block runs.

        Args:
            identifier: identifier of the capability.
        """
        with self._lock:
            self._leases.add(identifier)
            if self._thread is None:
                self._done = threading.Event()
                self._thread = threading.Thread(target=self._work, args=(self._done,), daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._leases.discard(identifier)
                ended = None if self._leases else self._thread
                if ended is not None:
                    self._thread = None
                    self._done.set()
            if ended is not None:
                ended.join()

    def _work(self, done: threading.Event) -> None:
        while not done.wait(self._every):
            with self._lock:
                leases = list(self._leases)
            # A failure is not reported: the next attempt may succeed, and otherwise the holder finds its lease expired.
            # No sync is needed, because a loss of power ends leases anyway.
            with (
                suppress(FlowError),
                closing(Metadata(self._path)) as metadata,
                metadata.transaction(synced=False) as db,
            ):
                for identifier in leases:
                    renew(db, identifier)
