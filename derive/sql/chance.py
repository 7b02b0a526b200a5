"""Time and chance in SQL: `now` is the document's adjusted clock, and `random()` is seeded by the document (law L1).

Nothing is registered, and nothing is paid, unless the derivation's SQL calls such a function. All calls are
overridden then, whatever their arguments, because a document may itself hold the text `now`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from functools import partial
from typing import Any

import apsw

from derive.document.clock import format_rfc3339
from derive.document.exact import dump_exact
from derive.protocol.specs import Document

_TIMES = {"date": 0, "time": 0, "datetime": 0, "julianday": 0, "unixepoch": 0, "strftime": 1}
"""SQLite's functions of time, and which argument of each is the time."""

_CALLED = re.compile(
    rf"\bcurrent_(?:timestamp|date|time)\b"
    rf"|\b(?:{'|'.join(_TIMES)}|timediff|random|randomblob)[\"'`\]]?(?:\s|--[^\n]*\n|/\*.*?\*/)*\(",
    re.IGNORECASE | re.DOTALL,
)
_I64 = 1 << 63
_MOST_BYTES = 1_000_000_000
"""The most that SQLite lets a blob have."""


class Chance:
    """The present and the dice of the document being processed; while migrations run, the time is the epoch."""

    def __init__(self) -> None:
        self._clock = 0
        self._transform = 0
        self._document: Document = {}
        self._random: random.Random | None = None
        self._helper = apsw.Connection(":memory:").cursor()

    def begin(self, transform: int, clock: int, document: Document) -> None:
        """Another document is processed from now on.

        Args:
            transform: index of the transform that reads it.
            clock: its adjusted clock, microseconds.
            document: the document.
        """
        self._clock, self._transform, self._document, self._random = clock, transform, document, None

    def register(self, db: apsw.Connection) -> None:
        """Override the functions of a connection."""
        # Time is fixed within one run of a statement, as SQLite's own functions have it; so it may index by them.
        for name, index in _TIMES.items():
            db.create_scalar_function(name, partial(self._time, name, index), deterministic=True)
        db.create_scalar_function("timediff", self._timediff, 2, deterministic=True)
        for name, function in (("current_timestamp", "datetime"), ("current_date", "date"), ("current_time", "time")):
            db.create_scalar_function(name, partial(self._time, function, 0), 0, deterministic=True)
        db.create_scalar_function("random", self._random_integer, 0)
        db.create_scalar_function("randomblob", self._randomblob, 1)

    def _dice(self) -> random.Random:
        if self._random is None:
            seed = b"%d %d %s" % (self._transform, self._clock, dump_exact(self._document))
            self._random = random.Random(seed)
        return self._random

    def _random_integer(self, *_: Any) -> int:
        return self._dice().randrange(-_I64, _I64)

    def _randomblob(self, *arguments: Any) -> bytes:
        size = self._helper.execute("SELECT CAST(? AS INTEGER)", arguments).get or 1
        if size > _MOST_BYTES:
            raise apsw.TooBigError("string or blob too big")
        return self._dice().randbytes(max(1, size))

    def _now(self) -> str:
        # SQLite's clock has milliseconds, and more digits would round up, into the future.
        return format_rfc3339(self._clock // 1000 * 1000)

    def _time(self, function: str, index: int, *arguments: Any) -> Any:
        values = list(arguments)
        if len(values) == index:
            values.append(self._now())
        elif len(values) > index and isinstance(values[index], str):
            given = values[index].lower()
            if given == "now":
                values[index] = self._now()
            elif given in ("subsec", "subsecond"):
                values[index : index + 1] = [self._now(), given]
        return self._helper.execute(f"SELECT {function}({','.join('?' * len(values))})", values).get

    def _timediff(self, *arguments: Any) -> Any:
        values = [
            self._now() if isinstance(argument, str) and argument.lower() == "now" else argument
            for argument in arguments
        ]
        return self._helper.execute("SELECT timediff(?, ?)", values).get


def calls_chance(texts: Iterable[str]) -> bool:
    """Whether any SQL asks for the time or for a random value."""
    return any(_CALLED.search(text) for text in texts)
