"""Maintenance jobs of a data folder, in a thread of the process that serves SQL."""

from __future__ import annotations

import threading
from contextlib import suppress

from derive.errors import FlowError
from derive.sql.transactions.read_capabilities import ReadCapabilities
from derive.storage.store import Store
from derive.storage.table_compaction import TableCompaction

SECONDS = 10.0
"""Interval of the jobs, in seconds; capabilities, which expire after a minute, are renewed in each."""


class MaintenanceThread:
    """Maintenance of one data folder: advances read capabilities, and compacts tables.

    Args:
        store: the data folder.
        capabilities: read capabilities of all readable relations.
    """

    def __init__(self, store: Store, capabilities: ReadCapabilities) -> None:
        self._capabilities = capabilities
        self._tables = TableCompaction(store)
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="flowctl-sql-maintenance", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, and release the read capabilities."""
        self._is_over.set()
        self._thread.join()
        self._capabilities.close()

    def follow(self) -> None:
        """Acquire or advance the read capabilities of all readable relations.

        Raises:
            FlowError: the disk is full or broken.
        """
        with self._lock:
            self._capabilities.follow()

    def compact(self) -> None:
        """Run the jobs that are due now.

        Raises:
            FlowError: the disk is full or broken; nothing is lost.
        """
        with self._lock:
            needed_from = self._capabilities.follow()
            if needed_from is not None:
                self._tables.compact(needed_from)

    def _work(self) -> None:
        while not self._is_over.wait(SECONDS):
            with suppress(FlowError):  # the next interval retries
                self.compact()
