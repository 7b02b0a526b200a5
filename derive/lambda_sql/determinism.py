"""Time and randomness in SQL: `now` is the document's adjusted time, and the document seeds `random()` (law L1).

The time zone is UTC, and not the time zone of the process.

The functions are overridden only if the SQL of the derivation calls one of them. Then all calls are overridden, because
every argument may be the text `now`, which can come from a document.
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
from derive.lambda_sql.functions import TIMES
from derive.protocol.specs import Document, LambdaLimits

_CALLED = re.compile(
    rf"\bcurrent_(?:timestamp|date|time)\b"
    rf"|\b(?:{'|'.join(TIMES)}|timediff|random|randomblob)[\"'`\]]?(?:[\s\ufeff]|--[^\n]*\n|/\*.*?\*/)*\(",
    re.IGNORECASE | re.DOTALL,
)
_PRESENT, _ZONES = frozenset({"now", "subsec", "subsecond"}), frozenset({"localtime", "utc"})
_NO_ZONE = "+0 seconds"
"""The modifier equivalent to `localtime` and `utc` if the time zone is UTC."""

_I64 = 1 << 63
_MOST_BYTES = 1_000_000_000
"""SQLite's limit on the size of a blob."""

_PART_BYTES = 1 << 20


class Chance:
    """The present time and the random generator of the current document; in migrations, the time is 1970-01-01.

    Args:
        megabytes: memory limit of one document.
    """

    def __init__(self, megabytes: int = LambdaLimits().sqlite_megabytes) -> None:
        self._most = megabytes << 20
        self._clock = 0
        self._transform = 0
        self._document: Document = {}
        self._random: random.Random | None = None
        self._helper = apsw.Connection(":memory:").cursor()

    def begin(self, transform: int, clock: int, document: Document) -> None:
        """Start with another document.

        Args:
            transform: index of the transform that reads the document.
            clock: adjusted timestamp of the document, microseconds.
            document: the document.
        """
        self._clock, self._transform, self._document, self._random = clock, transform, document, None

    def register(self, db: apsw.Connection) -> None:
        """Override the functions of a connection."""
        # Time is constant within one run of a statement, as for SQLite's own functions, so the functions may be
        # declared deterministic and used in an index. `find_present` refuses an index that itself asks for the
        # present.
        for name, index in TIMES.items():
            db.create_scalar_function(name, partial(self._time, name, index), deterministic=True)
        db.create_scalar_function("timediff", self._timediff, 2, deterministic=True)
        for name, function in (("current_timestamp", "datetime"), ("current_date", "date"), ("current_time", "time")):
            db.create_scalar_function(name, partial(self._time, function, 0), 0)
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
        size = self._helper.execute("SELECT CAST(? AS INTEGER)", arguments).get
        size = max(1, size or 0)
        if size > _MOST_BYTES:
            raise apsw.TooBigError("string or blob too big")
        if size > self._most:
            raise apsw.NoMemError("out of memory")
        dice = self._dice()  # several calls give the same bytes as one call, which is limited to 256 MB
        return b"".join(dice.randbytes(min(_PART_BYTES, size - begin)) for begin in range(0, size, _PART_BYTES))

    def _now(self) -> str:
        # SQLite has millisecond resolution, and would round more digits up, to a time in the future.
        return format_rfc3339(self._clock // 1000 * 1000)

    def _time(self, function: str, index: int, *arguments: Any) -> Any:
        values = [
            _NO_ZONE if place > index and _word(value) in _ZONES else value for place, value in enumerate(arguments)
        ]
        if len(values) == index:
            values.append(self._now())
        elif len(values) > index:
            given = _word(values[index])
            if given in _PRESENT:
                values[index : index + 1] = [self._now(), *([] if given == "now" else [given])]
        return self._helper.execute(f"SELECT {function}({','.join('?' * len(values))})", values).get

    def _timediff(self, *arguments: Any) -> Any:
        values = [self._now() if _word(argument) in _PRESENT else argument for argument in arguments]
        return self._helper.execute("SELECT timediff(?, ?)", values).get


def _word(value: Any) -> str | None:
    """Return a value as SQLite reads a keyword: the text up to a NUL, in lower case; None for a number."""
    if isinstance(value, str):
        return value.partition("\0")[0].lower()
    return value.partition(b"\0")[0].decode("ascii", "replace").lower() if isinstance(value, bytes) else None


def calls_chance(texts: Iterable[str]) -> bool:
    """Return whether any SQL text calls a function of the time or of randomness."""
    return any(_CALLED.search(text) for text in texts)
