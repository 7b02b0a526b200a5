"""Time and chance in SQL: `now` is the document's adjusted clock, and `random()` is seeded by the document (law L1).

Nothing is registered, and nothing is paid, unless the derivation's SQL mentions such a function.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from typing import Any

import apsw
import orjson

from derive.document.clock import format_rfc3339
from derive.protocol.specs import Document

_MENTIONED = re.compile(r"\b(now|current_\w+|random\w*|datetime|date|time|julianday|unixepoch|strftime)\b", re.I)
_TIME_FUNCTIONS = ("date", "time", "datetime", "julianday", "unixepoch")
_I64 = 1 << 63


class Chance:
    """The present and the dice of the document being processed.

    Attributes:
        clock: its adjusted clock, microseconds.
        document: the document.
    """

    def __init__(self) -> None:
        self.clock = 0
        self.transform = 0
        self.document: Document = {}
        self._random: random.Random | None = None
        self._helper = apsw.Connection(":memory:")

    def begin(self, transform: int, clock: int, document: Document) -> None:
        """Another document is processed from now on."""
        self.clock, self.transform, self.document, self._random = clock, transform, document, None

    def _dice(self) -> random.Random:
        if self._random is None:
            seed = b"%d %d %s" % (self.transform, self.clock, orjson.dumps(self.document))
            self._random = random.Random(seed)
        return self._random

    def register(self, db: apsw.Connection) -> None:
        """Override the functions of a connection."""
        for name in _TIME_FUNCTIONS:
            db.create_scalar_function(name, self._teller(name))
        db.create_scalar_function("strftime", lambda *arguments: self._time("strftime", 1, arguments))
        for name, function in (("current_timestamp", "datetime"), ("current_date", "date"), ("current_time", "time")):
            db.create_scalar_function(name, self._teller(function), 0)
        db.create_scalar_function("random", lambda *_: self._dice().randrange(-_I64, _I64), 0)
        db.create_scalar_function("randomblob", lambda *count: self._dice().randbytes(max(1, int(count[0]))), 1)

    def _teller(self, function: str) -> Callable[..., Any]:
        return lambda *arguments: self._time(function, 0, arguments)

    def _time(self, function: str, place: int, arguments: tuple[Any, ...]) -> Any:
        values = list(arguments)
        if len(values) == place:
            values.append("now")
        if isinstance(values[place], str) and values[place].strip().lower() == "now":
            values[place] = format_rfc3339(self.clock)
        marks = ",".join("?" * len(values))
        return self._helper.execute(f"SELECT {function}({marks})", values).get


def mentions_chance(texts: Iterable[str]) -> bool:
    """Whether any SQL asks for the time or for a random value."""
    return any(_MENTIONED.search(each) for each in texts)
