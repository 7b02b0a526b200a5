"""Watching a catalog: poll the files it was loaded from, and load it again after an edit.

Loading and checking may take seconds, and run in a thread of their own. An edit ends once two polls see the same files,
so saving several files at once is one edit.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from derive.catalog.loading.resources import Resources
from derive.errors import CatalogError, FlowError
from derive.protocol.resource import is_remote
from derive.protocol.specs import CatalogSpec

_EVERY_SECONDS = 0.25
"""Interval between two polls, in seconds; an edit ends when two polls see the same files."""


@dataclass(frozen=True, slots=True)
class Edit:
    """The result of loading a catalog after an edit.

    Attributes:
        files: names of the edited files.
        outcome: the catalog, or its error.
    """

    files: tuple[str, ...]
    outcome: CatalogSpec | FlowError


class CatalogWatch:
    """Loads a catalog again after each edit of one of its files, for the length of the block.

    Args:
        load: loads and checks the catalog.
        resources: the files of the first load.
        wake: called when there is an edit to take.
        every: seconds between two polls.
    """

    def __init__(
        self,
        load: Callable[[Resources], CatalogSpec],
        resources: Resources,
        wake: Callable[[], None],
        every: float = _EVERY_SECONDS,
    ) -> None:
        self._load, self._wake, self._every = load, wake, every
        self._files = _local(resources)
        self._known = _contents(self._files, resources)
        self._stats: Mapping[str, object] = {}
        self._edit: Edit | None = None
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="catalog", daemon=True)

    def __enter__(self) -> CatalogWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def take(self) -> Edit | None:
        """Return the latest edit since the last call; None without an edit."""
        if self._error is not None:
            raise self._error
        edit, self._edit = self._edit, None
        return edit

    def _work(self) -> None:
        try:
            while not self._over.wait(self._every):
                self._look()
        except BaseException as error:  # any error is raised again in `take`
            self._error = error
            self._wake()

    def _look(self) -> None:
        stats = {file: _stat(file) for file in self._files}
        if stats == self._stats:
            return
        self._stats = stats
        if self._over.wait(self._every) or stats != {file: _stat(file) for file in self._files}:
            self._stats = {}  # a program is still writing
            return
        contents = _contents(self._files)
        edited = tuple(sorted(file for file in self._files if contents[file] != self._known.get(file)))
        if not edited:
            return
        resources = Resources()
        outcome: CatalogSpec | FlowError
        try:
            outcome = self._load(resources)
        except FlowError as error:
            outcome = error
        # A broken catalog may lose the reference to the file that the user mends next: keep watching the former
        # files.
        self._files = _local(resources) | (self._files if isinstance(outcome, CatalogError) else frozenset())
        self._known = {**contents, **_contents(_local(resources), resources)}
        self._stats = {}
        self._edit = Edit(tuple(Path(file).name for file in edited), outcome)
        self._wake()


def _local(resources: Resources) -> frozenset[str]:
    return frozenset(url.removeprefix("file://") for url in resources.asked if not is_remote(url))


def _stat(file: str) -> object:
    try:
        stat = os.stat(file)
    except (OSError, ValueError):
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _contents(files: Iterable[str], resources: Resources | None = None) -> dict[str, str]:
    """Return a hash of each file: as it was loaded, or as it is now."""
    hashes = {}
    for file in files:
        if resources is not None and file in resources.hashes:
            hashes[file] = resources.hashes[file]
            continue
        try:
            hashes[file] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
        except (OSError, ValueError):
            hashes[file] = ""
    return hashes
