"""Files of the server that sources may read: those below the folders of the server's options.

A path is resolved before it is compared, and opened folder by folder without following symbolic links, so that a
concurrent change of the path cannot lead elsewhere.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from derive.errors import SqlError

_HINT = "flowctl sql serve --files DIR names folders from which sources may read."
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # opening a pipe must not block


class FileAccess:
    """The files that sources may read.

    Args:
        folders: folders of readable files; None for all files.
        secret: files and folders that are never readable, such as the password file.
    """

    def __init__(self, folders: Iterable[Path] | None = None, secret: Iterable[Path] = ()) -> None:
        self._folders = None if folders is None else tuple(map(_resolved, folders))
        self._secret = tuple(map(_resolved, secret))

    def open(self, path: Path) -> BinaryIO:
        """Open a regular file.

        Raises:
            SqlError: 42501, sources may not read the file; 58P01, there is no such file.
        """
        if self._folders is None:
            return _regular(path, lambda: os.open(path, _FILE))
        folder, parts = self._place(path, self._folders)
        return _regular(path, lambda: _opened_below(folder, parts))

    def size(self, path: Path) -> int:
        """Return the size of a file in bytes; 0 if the file cannot be read, since it may appear later.

        Raises:
            SqlError: 42501, sources may not read the file.
        """
        try:
            with self.open(path) as file:
                return os.fstat(file.fileno()).st_size
        except SqlError as error:
            if error.sqlstate != "58P01":
                raise
            return 0

    def _place(self, path: Path, folders: tuple[Path, ...]) -> tuple[Path, tuple[str, ...]]:
        """Return the allowed folder of a file, and the path of the file below it."""
        try:
            real = _resolved(path)
        except OSError as exc:  # the path is changing right now
            raise _unreadable(path, exc) from exc
        folder = next((folder for folder in folders if real.is_relative_to(folder)), None)
        if folder is None or any(real.is_relative_to(secret) for secret in self._secret):
            raise SqlError("42501", f"permission denied to read '{path}' on the server", hint=_HINT)
        return folder, real.relative_to(folder).parts


def require_right(*, has_right: bool) -> None:
    """Check that a user may read files of the server.

    Raises:
        SqlError: 42501, the user may not.
    """
    if not has_right:
        raise SqlError(
            "42501",
            "permission denied to read files of the server",
            hint="Users who may are marked in the password file, as in bob [files]:password.",
        )


def _resolved(path: Path) -> Path:
    """Return the path without symbolic links and `..`; cyclic links remain, and are not followed later."""
    return Path(os.path.realpath(path))


def _opened_below(folder: Path, parts: tuple[str, ...]) -> int:
    """Return a descriptor of a path below a folder, without following symbolic links."""
    descriptor = os.open(folder, _FOLDER)
    for index, part in enumerate(parts):
        flags = _FOLDER if index < len(parts) - 1 else _FILE | os.O_NOFOLLOW
        try:
            below = os.open(part, flags, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def _regular(path: Path, opened: Callable[[], int]) -> BinaryIO:
    try:
        descriptor = opened()
    except OSError as exc:
        raise _unreadable(path, exc) from exc
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SqlError("58P01", f"cannot read '{path}': it is not a regular file")
    return os.fdopen(descriptor, "rb")


def _unreadable(path: Path, error: OSError) -> SqlError:
    return SqlError("58P01", f"cannot read '{path}': {error.strerror}")


ALL_FILES = FileAccess()
"""Access to all files that the process can read."""
