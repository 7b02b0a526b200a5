"""Blobs: the files of segments, written once, under names that are never reused; and messages of errors of the disk.

`Blobs` is the whole interface between storage and the place of segments, so segments can be in another place than a
local folder. Readers get Arrow's own file objects, so Python does not copy the bytes of a segment.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

import apsw

from derive.durable import make_folders, sync
from derive.errors import BusyError, DiskFullError, StorageError
from derive.storage.metadata.process import is_stopped, lock_holder, ways_to_release

if TYPE_CHECKING:
    import pyarrow as pa


class NewBlob(Protocol):
    """A blob in writing."""

    @property
    def sink(self) -> pa.NativeFile:
        """Return the file to write and close."""

    @property
    def held(self) -> int:
        """Return the number of written bytes that are held in memory until `finish`."""

    def finish(self) -> tuple[int, str]:
        """Make the blob durable after its sink was closed; return its size in bytes and its checksum.

        The checksum is SHA-256 in hexadecimal digits.
        """


class Blobs(Protocol):
    """A place for blobs, each under its path; errors are the errors of the operating system."""

    @property
    def is_local(self) -> bool:
        """Return true if blobs are files, so that a request takes no time on a network."""

    def create(self, path: str) -> NewBlob:
        """Begin a new blob.

        Raises:
            FileExistsError: a blob of this path exists.
        """

    def put(self, path: str, data: bytes) -> None:
        """Store a whole blob durably. To store the same bytes again has no effect.

        Raises:
            FileExistsError: a blob of this path has other bytes.
        """

    def get(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return the bytes of a blob from an offset on, at most `length` of them.

        Raises:
            FileNotFoundError: no blob has this path.
        """

    def open(self, path: str, size: int | None = None) -> pa.NativeFile:
        """Open a blob for random access.

        Args:
            path: path of the blob.
            size: size of the blob in bytes, if it is known.

        Raises:
            FileNotFoundError: no blob has this path.
        """

    def list(self, folder: str, pattern: str) -> list[str]:
        """Return the paths of the blobs below a folder that match a pathlib pattern."""

    def delete(self, paths: Iterable[str]) -> int:
        """Delete the blobs at paths, and return the number of paths. A path without a blob is no error."""


@cache
def _files() -> Any:
    """Return Arrow's file system, which is imported on first use, because the import is slow."""
    from pyarrow.fs import LocalFileSystem

    return LocalFileSystem()


@dataclass(frozen=True, slots=True)
class _NewFile:
    """A file in writing."""

    path: Path
    sink: pa.NativeFile
    held: int = 0

    def finish(self) -> tuple[int, str]:
        """Sync the file and its folder; the checksum reads the file again from the page cache."""
        sync(self.path)
        sync(self.path.parent)
        with self.path.open("rb", buffering=0) as file:
            return self.path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class LocalBlobs:
    """Blobs as files.

    Attributes:
        root: the folder to which paths are relative.
    """

    root: Path

    @property
    def is_local(self) -> bool:
        """Return true."""
        return True

    def create(self, path: str) -> NewBlob:
        """Create a file and its missing parent folders, durably."""
        full = self.root / path
        make_folders(full.parent)
        os.close(os.open(full, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        return _NewFile(full, _files().open_output_stream(str(full)))

    def put(self, path: str, data: bytes) -> None:
        """Write, sync and link a draft beside the file; the name of a draft begins with the name of the file."""
        full = self.root / path
        draft = full.with_name(f"{full.name}.{uuid4()}.draft")
        make_folders(full.parent)
        try:
            with draft.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, full)
        except FileExistsError:
            if full.stat().st_size != len(data) or full.read_bytes() != data:
                raise
        finally:
            draft.unlink(missing_ok=True)
        sync(full.parent)

    def get(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Read a file, or a part of it."""
        with (self.root / path).open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def open(self, path: str, size: int | None = None) -> pa.NativeFile:
        """Open a file."""
        return _files().open_input_file(str(self.root / path))

    def list(self, folder: str, pattern: str) -> list[str]:
        """Return the files below a folder that match a pattern."""
        files = (self.root / folder).glob(pattern)
        return [str(file.relative_to(self.root)) for file in files if file.suffix == ".parquet" or file.is_file()]

    def delete(self, paths: Iterable[str]) -> int:
        """Unlink files."""
        count = 0
        for path in paths:
            (self.root / path).unlink(missing_ok=True)
            count += 1
        return count


def is_there(blobs: Blobs, path: str) -> bool:
    """Return true if a blob exists, even if the blob cannot be read."""
    try:
        blobs.open(path).close()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


@contextmanager
def translated(path: Path | str) -> Iterator[None]:
    """Translate SQLite's and the operating system's errors about a full or broken disk into `StorageError`."""
    try:
        yield
    except apsw.FullError as exc:
        raise _disk_full(path) from exc
    except OSError as exc:
        if exc.errno == 28:
            raise _disk_full(path) from exc
        raise StorageError(f"cannot write {path}: {exc.strerror or exc}") from exc
    except (apsw.BusyError, apsw.LockedError) as exc:
        raise _busy(path) from exc
    except (apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.NotADBError, apsw.CorruptError) as exc:
        raise StorageError(f"the database {path} cannot be used: {exc}") from exc


def _disk_full(path: Path | str) -> DiskFullError:
    """Return the error for a write to a full disk."""
    return DiskFullError(
        f"no space left on the device while writing {path}",
        hint="nothing was committed; free some space and run the command again",
    )


def _busy(path: Path | str) -> BusyError:
    """Return the error for a database that another process has locked for longer than the time limit."""
    holder = None
    with suppress(FileNotFoundError):  # SQLite locks the shared memory file, not the database file
        holder = lock_holder(os.stat(f"{path}-shm"), "POSIX")
    who, way_out = "another process", "run the command again when that process, such as a backup, has ended"
    if holder is not None and holder != os.getpid():
        who = f"process {holder}"
        if is_stopped(holder):
            who = f"process {holder}, which is stopped,"
            way_out = f"{ways_to_release(holder)}; then run the command again"
    return BusyError(f"{who} holds a lock on the database {path}", hint=f"nothing was committed; {way_out}")
