"""Spill files: temporary files for rows that exceed the memory limit.

Files are unlinked as soon as they are open, so the system frees them when the process ends.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Self

from derive.storage.disk_errors import translated


class Spill:
    """Unnamed files in one folder, closed at the end of the context.

    Args:
        folder: folder of the files, created on demand.
        memory: approximate memory limit for the rows of a user, bytes.
    """

    def __init__(self, folder: Path, memory: int) -> None:
        self.folder = folder
        self.memory = memory
        self._files = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._files.close()

    def open(self) -> IO[bytes]:
        """Return a new file, to write and then to read. Closing the file frees its space.

        Raises:
            StorageError: the file cannot be created.
        """
        with translated(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            # An unbuffered file cannot fail to flush when it is closed.
            return self._files.enter_context(TemporaryFile(dir=self.folder, buffering=0))
