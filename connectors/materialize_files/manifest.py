"""What is committed: versions of one small JSON file, each made by linking the next number, which only one can do.

There is no lock, so nobody waits for a process that was stopped while it held one. A version is the whole truth: for
each range of keys the session that may commit, its checkpoint, and the files that its last transaction publishes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from uuid import uuid4

from derive.durable import make_folders, sync
from derive.errors import EndpointError, FencedError

_KEPT = 50
"""How many versions stay. A process that has slept for longer finds out by what has become of its change."""


@dataclass(frozen=True, slots=True)
class Shard:
    """What is known of a range of keys.

    Attributes:
        begin: the least hash.
        end: the greatest, which is one of them.
        session: identifies the session that may commit.
        checkpoint: of the last commit, in hexadecimal digits; empty if there was none.
        transaction: counts the session's commits.
        publishing: files of the last transaction: staged names, and paths in the endpoint's folder.
    """

    begin: int
    end: int
    session: str
    checkpoint: str = ""
    transaction: int = 0
    publishing: tuple[tuple[str, str], ...] = ()

    def overlaps(self, begin: int, end: int) -> bool:
        """Whether it has keys of a range."""
        return self.begin <= end and begin <= self.end


@dataclass(frozen=True, slots=True)
class Version:
    """What is committed.

    Attributes:
        number: counts versions from 1; 0 if there is none.
        shards: what is known of ranges of keys, which may overlap.
    """

    number: int = 0
    shards: tuple[Shard, ...] = field(default=())

    def of(self, begin: int, end: int) -> Shard | None:
        """What is known of exactly this range."""
        return next((shard for shard in self.shards if (shard.begin, shard.end) == (begin, end)), None)

    def with_shard(self, changed: Shard) -> Version:
        """This version, with another state of one range."""
        others = tuple(shard for shard in self.shards if (shard.begin, shard.end) != (changed.begin, changed.end))
        return replace(self, shards=(*others, changed))


class Manifest:
    """The versions of one materialization.

    Args:
        folder: where they are; it need not be there yet.
        materialization: its name, for messages.
    """

    def __init__(self, folder: Path, materialization: str) -> None:
        self._folder = folder
        self._materialization = materialization

    def read(self) -> Version:
        """The last version."""
        while True:
            number = max(self._numbers(), default=0)
            if not number:
                return Version()
            try:
                return self._read(number)
            except FileNotFoundError:
                continue  # it has been removed, as there are newer ones

    def open(self, begin: int, end: int, session: str) -> Version:
        """Have a session own a range: all others that overlap it are fenced off.

        What is committed for the nearest range around it is where it begins.

        Returns:
            The version in which it does, whose number is greater than those of all sessions before.
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
        """Commit a transaction of a session.

        Args:
            shard: its state behind the transaction, which it counts.

        Raises:
            FencedError: another session owns some of the keys.
        """

        def committed(version: Version) -> Version:
            self._check(version, shard)
            return version.with_shard(shard)

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
                # This number was free because it is so old that it had been removed: the change has not happened.
                self._path(version.number).unlink(missing_ok=True)
                continue
            self._prune(version.number)
            return version

    def _has(self, begin: int, end: int, session: str, transaction: int) -> bool:
        """Whether the last version has what a session did last."""
        current = self.read().of(begin, end)
        return current is not None and (current.session, current.transaction) == (session, transaction)

    def _link(self, version: Version) -> bool:
        """Make a version, unless there is one of that number."""
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
            f"another session has opened '{self._materialization}' for keys of {begin:08x}-{end:08x}, so this one was"
            " fenced off"
        )
