"""The committed state: versions of one small JSON file, each created by a hard link; and errors of the file system.

There is no lock, so no process waits for a stopped process. A version holds the whole state: for each range of keys,
the session that may commit, its checkpoint, and the files that its last transaction publishes.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from uuid import uuid4

from derive.durable import make_folders, sync
from derive.errors import DeniedError, DiskFullError, EndpointError, FencedError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextmanager
def reporting(doing: str) -> Iterator[None]:
    """Translate an OSError in the block to an error that names the action.

    Raises:
        DiskFullError: there is no space left.
        DeniedError: permission is denied.
        EndpointError: any other error.
    """
    try:
        yield
    except OSError as exc:
        reason = exc.strerror or str(exc)
        if exc.errno in _FULL:
            raise DiskFullError(f"{doing}: {reason}", hint="free some space; the task resumes by itself") from exc
        if exc.errno in _DENIED:
            raise DeniedError(
                f"{doing}: {reason}", hint="grant the user of the connector the right to write there"
            ) from exc
        raise EndpointError(f"{doing}: {reason}") from exc


_KEPT = 50
"""Number of versions kept. A process that sleeps for longer checks whether its change is in the last version."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The state of a range of keys.

    Attributes:
        begin: least hash.
        end: greatest hash, inclusive.
        session: identifier of the session that may commit.
        checkpoint: checkpoint of the last commit, in hexadecimal digits; empty without a commit.
        transaction: number of the session's commits.
        publishing: files of the last transaction: staged names, and paths in the endpoint's folder.
    """

    begin: int
    end: int
    session: str
    checkpoint: str = ""
    transaction: int = 0
    publishing: tuple[tuple[str, str], ...] = ()

    def overlaps(self, begin: int, end: int) -> bool:
        """Return whether the range overlaps another range."""
        return self.begin <= end and begin <= self.end


@dataclass(frozen=True, slots=True)
class Version:
    """The committed state.

    Attributes:
        number: number of the version, from 1; 0 if there is none.
        shards: states of ranges of keys, which may overlap.
    """

    number: int = 0
    shards: tuple[Shard, ...] = field(default=())

    def of(self, begin: int, end: int) -> Shard | None:
        """Return the state of exactly this range; None if the version has none."""
        return next((shard for shard in self.shards if (shard.begin, shard.end) == (begin, end)), None)

    def narrower(self, begin: int, end: int) -> tuple[Shard, ...]:
        """Return the states of the ranges strictly within a range, which belong to former shards."""
        inside = [shard for shard in self.shards if begin <= shard.begin and shard.end <= end]
        return tuple(shard for shard in inside if (shard.begin, shard.end) != (begin, end))

    def with_shard(self, changed: Shard) -> Version:
        """Return this version with another state of one range."""
        others = tuple(shard for shard in self.shards if (shard.begin, shard.end) != (changed.begin, changed.end))
        return replace(self, shards=(*others, changed))


class Manifest:
    """The versions of one materialization.

    Args:
        folder: folder of the versions, which may not exist yet.
        materialization: name of the materialization, for messages.
    """

    def __init__(self, folder: Path, materialization: str) -> None:
        self._folder = folder
        self._materialization = materialization

    def read(self) -> Version:
        """Return the last version."""
        while True:
            number = max(self._numbers(), default=0)
            if not number:
                return Version()
            try:
                return self._read(number)
            except FileNotFoundError:
                continue  # removed, because there are newer versions

    def open(self, begin: int, end: int, session: str) -> Version:
        """Let a session own a range, and fence all sessions of overlapping ranges.

        The range starts with the committed state of the smallest range that contains it.

        Returns:
            The version with the new owner, whose number is greater than the numbers of all earlier sessions.
        """

        def opened(version: Version) -> Version:
            around = [shard for shard in version.shards if shard.begin <= begin and end <= shard.end]
            nearest = min(around, key=lambda shard: shard.end - shard.begin, default=None)
            own = replace(nearest, begin=begin, end=end) if nearest else Shard(begin, end, session)
            fenced = [
                replace(shard, session=session) if shard.overlaps(begin, end) else shard for shard in version.shards
            ]
            own = replace(own, session=session, transaction=0)
            return replace(version, shards=tuple(fenced)).with_shard(own)

        return self._change(opened, begin, end, session, 0)

    def commit(self, shard: Shard) -> None:
        """Commit a transaction of a session; the states of narrower ranges are outdated, and deleted.

        Args:
            shard: state of the range after the transaction, which it counts.

        Raises:
            FencedError: another session owns some of the keys.
        """

        def committed(version: Version) -> Version:
            self._check(version, shard)
            outdated = version.narrower(shard.begin, shard.end)
            others = tuple(other for other in version.shards if other not in outdated)
            return replace(version, shards=others).with_shard(shard)

        self._change(committed, shard.begin, shard.end, shard.session, shard.transaction)

    def check(self, shard: Shard) -> None:
        """Check that a session owns its range.

        Raises:
            FencedError: another session owns some of the keys.
        """
        self._check(self.read(), shard)

    def _check(self, version: Version, shard: Shard) -> None:
        current = version.of(shard.begin, shard.end)
        if current is None or current.session != shard.session:
            raise self._fenced(shard.begin, shard.end)

    def _change(
        self, edit: Callable[[Version], Version], begin: int, end: int, session: str, transaction: int
    ) -> Version:
        while True:
            last = self.read()
            version = replace(edit(last), number=last.number + 1)
            if not self._link(version):
                continue
            if max(self._numbers()) > version.number and not self._has(begin, end, session, transaction):
                # This number was free only because the old version had been removed: the change has not
                # happened.
                self._path(version.number).unlink(missing_ok=True)
                continue
            self._prune(version.number)
            return version

    def _has(self, begin: int, end: int, session: str, transaction: int) -> bool:
        """Return whether the last version contains the session's last change."""
        current = self.read().of(begin, end)
        return current is not None and (current.session, current.transaction) == (session, transaction)

    def _link(self, version: Version) -> bool:
        """Create a version; return False if its number exists."""
        make_folders(self._folder)
        new = self._folder / f"new-{uuid4().hex}"
        with new.open("w", encoding="utf-8") as file:
            json.dump(asdict(version), file)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(new, self._path(version.number))
        except FileExistsError:
            return False
        finally:
            new.unlink()
        sync(self._folder)
        return True

    def _read(self, number: int) -> Version:
        path = self._path(number)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            shards = [Shard(**shard) for shard in content["shards"]]
        except (ValueError, KeyError, TypeError) as exc:
            raise EndpointError(f"{path} is damaged: {exc}") from exc
        pairs = [tuple((staged, path) for staged, path in shard.publishing) for shard in shards]
        known = [replace(shard, publishing=publishing) for shard, publishing in zip(shards, pairs, strict=True)]
        return Version(number, tuple(known))

    def _prune(self, number: int) -> None:
        if number % _KEPT == 0:
            for old in self._numbers():
                if old <= number - _KEPT:
                    self._path(old).unlink(missing_ok=True)

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        return [int(name.removesuffix(".json")) for name in names if name[0].isdigit()]

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:012d}.json"

    def _fenced(self, begin: int, end: int) -> FencedError:
        return FencedError(
            f"another session has opened '{self._materialization}' for keys of"
            f" {begin:08x}-{end:08x}, so this one stores nothing more"
        )
