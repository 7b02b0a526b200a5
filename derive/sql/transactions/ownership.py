"""Who writes tables and keeps views up to date: one process for each data folder, so that all writes have one order."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from derive.errors import SqlError
from derive.time.frontier import END_OF_TIME

FILE = "sql.lock"


class Ownership:
    """The right to be that process, which ends with it.

    Args:
        root: the data folder.

    Attributes:
        begun: clock since when this process has it; later than all if it has not.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / FILE
        self._descriptor: int | None = None
        self.begun = END_OF_TIME

    @property
    def is_held(self) -> bool:
        """Whether this process has it."""
        return self._descriptor is not None

    @property
    def was_ever_held(self) -> bool:
        """Whether a process ever had it in this data folder."""
        return self._path.exists()

    def is_somebodys(self) -> bool:
        """Whether this process or another one has it."""
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
        """Acquire it; False if another process has it."""
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
        """Have what another object of this process has acquired for the same data folder, and has no more."""
        self._descriptor, acquired._descriptor = acquired._descriptor, self._descriptor

    def require(self) -> None:
        """Acquire it.

        Raises:
            SqlError: another process has it.
        """
        if not self.acquire():
            address = self.address()
            where = f" at {address}" if address else ""
            raise SqlError(
                "55006",
                f"another flowctl serves SQL over this data folder{where}, and only that one writes",
                hint=f"connect to it: psql -h {address.replace(':', ' -p ')}" if address else "try again",
            )

    def announce(self, address: str) -> None:
        """Tell others where this process is served."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, address.encode(), 0)

    def address(self) -> str:
        """Where the process is served that has it; empty if it is not."""
        try:
            return self._path.read_text().strip()
        except FileNotFoundError:
            return ""

    def release(self) -> None:
        """Give it back."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None
