"""Upkeep: what a process with SQL does for its data folder now and then, in a thread of its own."""

from __future__ import annotations

import threading
from contextlib import suppress

from derive.errors import FlowError
from derive.sql.transactions.read_holds import StorageHolds
from derive.storage.store import Store
from derive.storage.table_upkeep import TableUpkeep

SECONDS = 10.0
"""How often something is done. Leases, which last for a minute, are renewed then."""


class Upkeep:
    """Upkeep of one data folder: holds follow the present, and tables, which nobody else looks after, are looked after.

    Args:
        store: the data folder.
        holds: of what can be read.
    """

    def __init__(self, store: Store, holds: StorageHolds) -> None:
        self._holds = holds
        self._tables = TableUpkeep(store)
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="flowctl-sql-upkeep", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Come to an end; what was held may be forgotten from here on."""
        self._is_over.set()
        self._thread.join()
        self._holds.close()

    def hold(self) -> None:
        """Hold what can be read, from now on; all else may wait until clients are served.

        Raises:
            FlowError: the disk is full or broken.
        """
        with self._lock:
            self._holds.follow()

    def tend(self) -> None:
        """Do what is to be done now.

        Raises:
            FlowError: the disk is full or broken; nothing is lost.
        """
        with self._lock:
            needed_from = self._holds.follow()
            if needed_from is not None:
                self._tables.tend(needed_from)

    def _work(self) -> None:
        while not self._is_over.wait(SECONDS):
            with suppress(FlowError):  # it is tried again
                self.tend()
