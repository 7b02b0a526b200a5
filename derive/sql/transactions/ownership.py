"""Ownership of a data folder: one process writes tables and maintains views, so that all writes have one order."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from derive.errors import SqlError
from derive.storage.metadata.process import is_stopped, lock_holder, ways_to_release
from derive.time import END_OF_TIME

FILE = "sql.lock"


class Ownership:
    """Ownership by this process, which ends with the process.

    Args:
        root: the data folder.

    Attributes:
        begun: time at which this process acquired ownership; `END_OF_TIME` before.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / FILE
        self._descriptor: int | None = None
        self.begun = END_OF_TIME

    @property
    def is_held(self) -> bool:
        """Return whether this process is the owner."""
        return self._descriptor is not None

    @property
    def was_ever_held(self) -> bool:
        """Return whether the data folder ever had an owner."""
        return self._path.exists()

    def is_somebodys(self) -> bool:
        """Return whether any process is the owner; the owner may be this process."""
        if self._descriptor is not None:
            return True
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def acquire(self) -> bool:
        """Acquire ownership; return False if another process is the owner."""
        if self._descriptor is None:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            os.ftruncate(descriptor, 0)
            self._descriptor = descriptor
        return True

    def take_over(self, acquired: Ownership) -> None:
        """Take over the ownership that another object of this process has acquired."""
        self._descriptor, acquired._descriptor = acquired._descriptor, self._descriptor

    def require(self) -> None:
        """Acquire ownership.

        Raises:
            SqlError: another process is the owner.
        """
        if not self.acquire():
            address = self.address()
            where = f" at {address}" if address else ""
            hint = (
                f"Connect to that server: psql -h {address.replace(':', ' -p ')}"
                if address
                else "Run the statement again."
            )
            holder = lock_holder(self._path.stat(), "FLOCK")
            if holder is not None and is_stopped(holder):
                hint = f"That process is stopped: {ways_to_release(holder)}"
            raise SqlError(
                "55006",
                f"another flowctl serves SQL over this data folder{where}, and only that process may write",
                hint=hint,
            )

    def announce(self, address: str) -> None:
        """Publish the address of this process's server."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, address.encode(), 0)

    def address(self) -> str:
        """Return the address of the owner's server; empty if there is none."""
        try:
            return self._path.read_text().strip()
        except FileNotFoundError:
            return ""

    def release(self) -> None:
        """Release ownership."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None
