"""Renewing a lease in the background, so that its holder may take, or wait, as long as it likes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from derive.errors import FlowError
from derive.storage.metadata.capability import RENEW_SECONDS, renew
from derive.storage.metadata.database import Metadata


@contextmanager
def renewed(path: Path, identifier: str, every: float = RENEW_SECONDS) -> Iterator[None]:
    """Renew a lease for as long as the block takes.

    A lease that ended nevertheless, because this process was stopped for longer than it lasts, stays ended.

    Args:
        path: of the metadata database.
        identifier: of the capability.
        every: seconds between renewals.
    """
    done = threading.Event()
    renewal = threading.Thread(target=_renew, args=(path, identifier, every, done), daemon=True)
    renewal.start()
    try:
        yield
    finally:
        done.set()
        renewal.join()


def _renew(path: Path, identifier: str, every: float, done: threading.Event) -> None:
    while not done.wait(every):
        # A failure is not told: the next time may do, and else the lease runs out, which its holder finds.
        with suppress(FlowError), closing(Metadata(path)) as metadata, metadata.transaction() as db:
            renew(db, identifier)
