"""Blobs: the files of segments, written once, under names that no other one ever has.

All that storage asks of the place where segments lie is here, so that it can be something else than a local folder.
What is read is handed to Arrow as its own kind of file, through which no byte passes Python.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from derive.durable import make_folders, sync

if TYPE_CHECKING:
    import pyarrow as pa


class Blobs(Protocol):
    """Where blobs lie, each under its path; errors are those of the operating system."""

    def create(self, path: str) -> pa.NativeFile:
        """Begin a blob, to be written and closed.

        Raises:
            FileExistsError: there is one of this path.
        """

    def finish(self, path: str) -> tuple[int, str]:
        """Make a blob that was written survive a loss of power; returns its size in bytes, and its checksum."""

    def checksum(self, path: str) -> str:
        """The checksum of a blob as it is now, SHA-256 in hexadecimal digits.

        Raises:
            FileNotFoundError: there is none of this path.
        """

    def open(self, path: str) -> pa.NativeFile:
        """Open a blob, to read any range of it.

        Raises:
            FileNotFoundError: there is none of this path.
        """

    def list(self, folder: str, pattern: str) -> list[str]:
        """Paths of the blobs below a folder that match a pattern, which is one of pathlib."""

    def delete(self, paths: Iterable[str]) -> int:
        """Delete blobs, of which some may be gone; returns how many paths there were."""


@cache
def _files() -> Any:
    """The file system, in Arrow, which only who reads or writes files has to load."""
    from pyarrow.fs import LocalFileSystem

    return LocalFileSystem()


@dataclass(frozen=True, slots=True)
class LocalBlobs:
    """Blobs as files.

    Attributes:
        root: the folder to which paths are relative.
    """

    root: Path

    def create(self, path: str) -> pa.NativeFile:
        """Begin a file; folders above it are made, durably."""
        full = self.root / path
        make_folders(full.parent)
        os.close(os.open(full, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        return _files().open_output_stream(str(full))

    def finish(self, path: str) -> tuple[int, str]:
        """Sync a file and the folder it is entered in; what was written is read from memory for its checksum."""
        full = self.root / path
        sync(full)
        sync(full.parent)
        return full.stat().st_size, self.checksum(path)

    def checksum(self, path: str) -> str:
        """The checksum of a file."""
        with (self.root / path).open("rb", buffering=0) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def open(self, path: str) -> pa.NativeFile:
        """Open a file."""
        return _files().open_input_file(str(self.root / path))

    def list(self, folder: str, pattern: str) -> list[str]:
        """Files below a folder that match a pattern."""
        files = (self.root / folder).glob(pattern)
        return [str(file.relative_to(self.root)) for file in files if file.suffix == ".parquet" or file.is_file()]

    def delete(self, paths: Iterable[str]) -> int:
        """Unlink files."""
        count = 0
        for path in paths:
            (self.root / path).unlink(missing_ok=True)
            count += 1
        return count


def blobs_of(root: Path) -> Blobs:
    """The blobs of a data folder."""
    return LocalBlobs(root)


def is_there(blobs: Blobs, path: str) -> bool:
    """Whether there is a blob, be it one that cannot be read."""
    try:
        blobs.open(path).close()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
