"""Spilling: files for rows that outgrow the memory they are meant to have.

Its files have no name: they are unlinked as soon as they are open. So the system frees them when the process ends,
however it ends, and nothing is ever left to be cleaned up.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Self

from derive.storage.disk_errors import translated


class Spill:
    """Files without names in one folder, all closed when the block ends that this is the context of.

    Args:
        folder: where; made when it is needed first.
        memory: about how many bytes whoever spills may hold in memory before that.
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
        """A new file, to write and then to read. Closing it frees its space.

        Raises:
            StorageError: it cannot be made.
        """
        with translated(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            # What is not buffered cannot fail to be written when the file is closed.
            return self._files.enter_context(TemporaryFile(dir=self.folder, buffering=0))
