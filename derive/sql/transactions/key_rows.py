"""The present rows of one key of a table by the values of the key, in memory while they are few.

A look-up or a change of a row in memory takes less than a microsecond. The rows of all keys share an amount of memory;
a key for which it does not suffice moves to a temporary SQLite database, of which only a cache is in memory.
"""

from __future__ import annotations

import marshal
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice, repeat
from operator import itemgetter
from sys import getsizeof
from weakref import WeakSet

import apsw

from derive.algebra.types import Row

MOST_BYTES = 256 << 20
"""Default size of the rows of all keys in memory, in bytes."""
_ENTRY_BYTES = 100
"""Approximate size of an entry of a dict, in bytes."""
_SAMPLE = 20
"""Number of rows whose sizes are measured, of those that are added together."""
_MOST_KEYS = 256
"""Number of keys that one statement looks up."""
FORMAT = 2
"""Format of `marshal` in which equal values have equal bytes."""


class KeyMemory:
    """The memory that the rows of all keys share.

    Args:
        most_bytes: its size, in bytes.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._users = WeakSet[KeyRows]()
        self._turn = threading.Lock()

    def add(self, user: KeyRows) -> None:
        """Add the rows of a key."""
        with self._turn:
            self._users.add(user)

    @property
    def is_exceeded(self) -> bool:
        """Return whether the rows need more memory than there is."""
        with self._turn:
            return sum(user.size for user in self._users) > self._most_bytes


class KeyRows:
    """The present rows of one key.

    Args:
        memory: the memory that the rows share with those of other keys.
    """

    def __init__(self, memory: KeyMemory) -> None:
        self._rows: dict[bytes, Row] | None = {}
        self._bytes_each = 0
        self._memory = memory
        memory.add(self)

    @property
    def size(self) -> int:
        """Return the approximate number of bytes of memory in use."""
        return 0 if self._rows is None else len(self._rows) * self._bytes_each

    def put(self, rows: Mapping[bytes, Row]) -> None:
        """Add rows, or replace the rows of their keys."""
        if self._rows is None:
            self._put(rows)
            return
        sample = [_size_of(key, row) for key, row in islice(rows.items(), _SAMPLE)]
        self._bytes_each = max(self._bytes_each, sum(sample) // len(sample)) if sample else self._bytes_each
        self._rows.update(rows)
        if self._memory.is_exceeded:
            self._move()

    def remove(self, keys: Iterable[bytes]) -> None:
        """Remove the rows of keys."""
        if self._rows is None:
            self._database.executemany("DELETE FROM present WHERE key = ?", ((key,) for key in keys))
            return
        for key in keys:
            self._rows.pop(key, None)

    def has_any(self, keys: Collection[bytes]) -> bool:
        """Return whether some of the keys have a row."""
        if self._rows is None:
            return bool(self.of(keys))
        return not self._rows.keys().isdisjoint(keys)

    def of(self, keys: Iterable[bytes]) -> dict[bytes, Row]:
        """Return the rows of those keys that have one."""
        if self._rows is not None:
            return {key: row for key in keys if (row := self._rows.get(key)) is not None}
        present: dict[bytes, Row] = {}
        listed = list(keys)
        full = len(listed) - len(listed) % _MOST_KEYS
        for begin in range(0, full, _MOST_KEYS):
            asked = f"SELECT key, row FROM present WHERE key IN ({', '.join('?' * _MOST_KEYS)})"
            some = self._database.execute(asked, listed[begin : begin + _MOST_KEYS])
            present.update((key, tuple(marshal.loads(data))) for key, data in some)
        for key in listed[full:]:
            data = self._database.execute("SELECT row FROM present WHERE key = ?", (key,)).get
            if data is not None:
                present[key] = tuple(marshal.loads(data))
        return present

    def _move(self) -> None:
        """Move the rows to a temporary database."""
        assert self._rows is not None
        rows, self._rows = self._rows, None
        self._database = apsw.Connection("")  # a temporary file, which SQLite removes
        self._database.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -32000")
        self._database.execute("CREATE TABLE present (key BLOB PRIMARY KEY, row BLOB) WITHOUT ROWID")
        self._put(rows)

    def _put(self, rows: Mapping[bytes, Row]) -> None:
        ordered: Sequence[tuple[bytes, Row]] = sorted(rows.items(), key=itemgetter(0))  # nearby keys share pages
        data = map(marshal.dumps, map(itemgetter(1), ordered), repeat(FORMAT))
        stored = zip(map(itemgetter(0), ordered), data, strict=False)
        with self._database:
            self._database.executemany("INSERT OR REPLACE INTO present VALUES (?, ?)", stored)


def _size_of(key: bytes, row: Row) -> int:
    """Return the approximate size of a row in memory, in bytes."""
    return _ENTRY_BYTES + getsizeof(key) + getsizeof(row) + sum(map(getsizeof, row))
