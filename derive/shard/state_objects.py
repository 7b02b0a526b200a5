"""Objects with the states of shards: packs that attempts write, and databases that are fetched from chains.

Arrow and NumPy, which pages need, are imported on first use: most commands read no state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw

from derive.errors import StateMissingError, StorageError
from derive.failpoint import reach
from derive.shard.state_database import DATABASE, fault_of, open_database
from derive.storage.blobs import Blobs, translated
from derive.storage.metadata.chain import Chain, Link, chains_folder

PACK_BYTES = 32 << 20
"""Approximate maximum size of an object, bytes; a part is never divided."""


class Pack:
    """The objects of one attempt, with the parts of all its shards.

    Args:
        blobs: the place of the objects.
        task: the task in whose folder the state is.
        epoch: epoch of the run.
        attempt: unique name of the attempt.
    """

    def __init__(self, blobs: Blobs, task: str, epoch: int, attempt: str) -> None:
        self._blobs = blobs
        self._name = f"{chains_folder(task)}/{epoch}-{attempt}"
        self._number = self._size = 0
        self._parts: list[bytes] = []

    def add(self, part: bytes, *, is_snapshot: bool = False) -> Link:
        """Add a part, and return its link. The part is stored when the pack is full, or by `store`."""
        if self._parts and self._size + len(part) > PACK_BYTES:
            self.store()
        digest = hashlib.sha256(part).hexdigest()
        link = Link(self._path, self._size, len(part), digest, is_snapshot)
        self._parts.append(part)
        self._size += len(part)
        return link

    def add_snapshot(self, database: Path) -> Chain:
        """Add all pages of a database file, and return their links."""
        from derive.shard.state_pages import pages_of_database

        return tuple(self.add(part, is_snapshot=True) for part in pages_of_database(database).parts())

    def add_log(self, log: Path) -> Chain:
        """Add the pages of a write-ahead log, and return their links; none without a commit in the log."""
        from derive.shard.state_pages import pages_of_log

        pages = pages_of_log(log)
        return () if pages is None else tuple(map(self.add, pages.parts()))

    @property
    def _path(self) -> str:
        return f"{self._name}.{self._number}"

    def store(self) -> None:
        """Store the added parts durably.

        Raises:
            StorageError: they cannot be stored.
        """
        if not self._parts:
            return
        reach("chain.putting")
        with translated(self._path):
            self._blobs.put(self._path, b"".join(self._parts))
        reach("chain.put")
        self._parts.clear()
        self._number, self._size = self._number + 1, 0


def _fetch_parts(blobs: Blobs, links: Iterable[Link]) -> Iterator[bytes]:
    """Yield the parts of links.

    Raises:
        StateMissingError: an object is missing.
        StorageError: an object is damaged, or cannot be read.
    """
    hint = "restore a backup: flowctl restore; or start the task over: flowctl reset --cascade --task NAME"
    for link in links:
        try:
            with translated(link.path):
                part = blobs.get(link.path, link.start, link.bytes)
        except StorageError as exc:
            if not isinstance(exc.__cause__, FileNotFoundError):
                raise
            raise StateMissingError(f"{link.path}, which has the state of a shard, is missing", hint=hint) from exc
        if len(part) != link.bytes or hashlib.sha256(part).hexdigest() != link.digest:
            raise StorageError(f"{link.path}, which has the state of a shard, is damaged", hint=hint)
        yield part


def apply_links(blobs: Blobs, links: Iterable[Link], database: Path) -> None:
    """Fetch links, and apply them to a database file; a missing file is created.

    Raises:
        StateMissingError: an object is missing.
        StorageError: an object is damaged, or cannot be read.
    """
    from derive.shard.state_pages import apply_parts

    apply_parts(database, _fetch_parts(blobs, links))


@contextmanager
def fetched_state(blobs: Blobs, chain: Chain) -> Iterator[apsw.Connection]:
    """Yield the database of a chain, in a temporary folder.

    Raises:
        StorageError: an object is missing or damaged.
    """
    with TemporaryDirectory(prefix="flowctl-state-") as folder:
        apply_links(blobs, chain, Path(folder) / DATABASE)
        db = open_database(Path(folder) / DATABASE, is_durable=False)
        try:
            yield db
        finally:
            db.close(True)


def fault_of_chain(blobs: Blobs, chain: Chain, committed: str) -> tuple[str, StorageError] | None:
    """Return the path of an object, and its fault: it is missing or damaged, or the database is; None for no fault.

    Args:
        blobs: the place of the objects.
        chain: the chain.
        committed: name of the attempt at which the database should be.
    """
    path = chain[-1].path
    try:
        with TemporaryDirectory(prefix="flowctl-state-") as folder:
            database = Path(folder) / DATABASE
            for link in chain:
                path = link.path
                apply_links(blobs, [link], database)
            fault = fault_of(database, committed)
    except StorageError as exc:
        return path, exc
    return None if fault is None else (path, StorageError(fault))


def divided_chains(
    blobs: Blobs, chain: Chain, successors: Mapping[int, Callable[[apsw.Connection], None] | None], pack: Pack
) -> dict[int, Chain]:
    """Return the chains of the successors of a divided shard.

    Args:
        blobs: the place of the objects.
        chain: the chain of the shard.
        successors: for each successor (by number), a function that deletes the state of the other successor from a
            database; None to keep all state, so that the successor names the objects of the shard.
        pack: the objects of the split.
    """
    chains = {}
    with TemporaryDirectory(prefix="flowctl-state-") as folder:
        for number, divide in successors.items():
            chains[number] = chain
            if divide is not None:
                copy = Path(folder) / f"{number}.db"
                apply_links(blobs, chain, copy)
                with closing(apsw.Connection(str(copy))) as db, db:
                    divide(db)
                chains[number] = pack.add_snapshot(copy)
            reach("split.copied")
    return chains
