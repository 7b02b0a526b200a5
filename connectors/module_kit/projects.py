"""Project folders of modules, in the caches of a user: written once for each digest, and removed if unused for long.

The path of a project is constant, because a module can see it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

_UNUSED_SECONDS = 30 * 86_400.0


def user_cache(name: str) -> Path:
    """Return a folder in this user's caches, created if needed.

    A user without a writable folder gets a temporary folder.

    Args:
        name: name of the folder, such as `deno`.
    """
    with suppress(OSError, RuntimeError):
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(home).absolute() / "flowctl" / name
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.gettempdir()) / f"flowctl-{name}-cache-{os.getuid()}"


def write_project(files: Mapping[str, bytes], prefix: str, parent: Path | None = None) -> Path:
    """Write files into a new folder; the caller removes the folder.

    Args:
        files: contents by path, with slashes.
        prefix: prefix of the folder's name.
        parent: parent of the folder; None for the folder of temporary files.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def keep_project(folder: Path, write: Callable[[Path], Path]) -> None:
    """Create the folder of a project if it does not exist, and remove projects that have not been used for long.

    Args:
        folder: the folder.
        write: writes the project into a new folder below the given parent, and returns the new folder.
    """
    if folder.exists():
        os.utime(folder)
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    for other in folder.parent.iterdir():
        with suppress(OSError):  # another process may be faster
            if time.time() - other.stat().st_mtime > _UNUSED_SECONDS:
                shutil.rmtree(other)
    written = write(folder.parent)
    try:
        written.rename(folder)
    except OSError:  # another process has created the folder
        shutil.rmtree(written)


def is_within(path: str, folder: str) -> bool:
    """Return whether a path leads below a folder after resolving symbolic links."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
