"""Renewals of the capabilities of this process, in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial

from derive.errors import FlowError
from derive.storage.capability.table import RENEW_SECONDS, renew_all
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.transaction import Transaction
from derive.storage.timeline import uptime


class Renewals:
    """Capabilities of this process in one data folder, which one thread renews in one commit.

    A capability that has expired, because the process was stopped for longer than the lifetime, is not renewed.

    Args:
        metadata: metadata database; the thread has a connection of its own.
        every: seconds between renewals.
        renew: renews some capabilities, as the body of a commit.
        after: called after a renewal, with the time of its begin, microseconds since the boot.
    """

    def __init__(
        self,
        metadata: Metadata,
        every: float = RENEW_SECONDS,
        renew: Callable[[Sequence[str], Transaction], Callable[[], None]] = renew_all,
        after: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._metadata, self._every, self._renew, self._after = metadata, every, renew, after
        self._ids: set[str] = set()
        self._thread: threading.Thread | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()

    @contextmanager
    def renewed(self, identifier: str) -> Iterator[None]:
        """Renew a capability while the block runs.

        Args:
            identifier: identifier of the capability.
        """
        with self._lock:
            self._ids.add(identifier)
            if self._thread is None:
                self._done = threading.Event()
                self._thread = threading.Thread(target=self._work, args=(self._done,), daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._ids.discard(identifier)
                ended = None if self._ids else self._thread
                if ended is not None:
                    self._thread = None
                    self._done.set()
            if ended is not None:
                ended.join()

    def _work(self, done: threading.Event) -> None:
        while not done.wait(self._every):
            with self._lock:
                ids = list(self._ids)
            # A failure is not reported: the next attempt may succeed; if not, the holder finds that the capability has
            # expired. No sync is needed, because a loss of power ends the capability.
            begun = uptime()
            with suppress(FlowError, OSError), closing(self._metadata.another()) as metadata:
                metadata.commit(partial(self._renew, ids), synced=False)
                self._after(begun)
