"""Ownership of a data folder: one process writes tables and maintains views, so that all writes have one order."""

from __future__ import annotations

from math import ceil

from derive.errors import SqlError
from derive.storage.metadata.process import is_local, is_stopped, local_pid, ways_to_release
from derive.storage.serving import Holder
from derive.storage.store import Store
from derive.time import END_OF_TIME


class Ownership:
    """Ownership by this process, which ends with the process.

    Args:
        store: the data folder.

    Attributes:
        store: the data folder.
        begun: time at which this process began to work as the owner; `END_OF_TIME` before.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.begun = END_OF_TIME

    @property
    def is_held(self) -> bool:
        """Return whether this process works as the owner."""
        return self.begun < END_OF_TIME

    def is_somebodys(self) -> bool:
        """Return whether any process is the owner; the owner may be this process."""
        return self.is_held or self.store.serving.holder() is not None

    def require(self) -> int:
        """Acquire ownership, and return its epoch.

        Raises:
            SqlError: another process is the owner.
        """
        serving = self.store.serving
        if not serving.acquire():
            holder = serving.holder()
            where = f" at {holder.address}" if holder and holder.address else ""
            raise SqlError(
                "55006",
                f"another flowctl serves SQL over this data folder{where}, and only that process may write",
                hint="Run the statement again." if holder is None else _way_out(holder),
            )
        assert serving.epoch is not None
        return serving.epoch

    def release(self) -> None:
        """Release ownership."""
        self.begun = END_OF_TIME
        self.store.serving.release()


def _way_out(holder: Holder) -> str:
    """Return the hint of an error of a data folder with another owner."""
    pid, left = local_pid(holder.process), max(1, ceil(holder.seconds))
    if pid is not None and is_stopped(pid):
        ways = ways_to_release(pid)
        return f"That process is stopped: {ways}. If it stays stopped, try again in {left} s."
    way = f"Connect to that server: psql -h {holder.address.replace(':', ' -p ')}" if holder.address else ""
    if is_local(holder.process):
        return way or "Run the statement again."
    return f"{way or 'Run the statement again'}; if that server is gone, try again in {left} s."
