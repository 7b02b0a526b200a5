"""Time and randomness in SQL: `now` is the document's adjusted time, and the document seeds `random()` (law L1).

The time zone is UTC, and not the time zone of the process.

The functions are overridden only if the SQL of the derivation calls one of them. Then all calls are overridden, because
every argument may be the text `now`, which can come from a document.

SQLite's functions and modules are grouped by the inputs on which their results depend. A function outside of these
groups is refused, because a newer SQLite may have functions that depend on the machine. `docs/sql.md` has the table for
authors.
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
from derive.protocol.specs import Document, LambdaLimits

TIMES = {"date": 0, "time": 0, "datetime": 0, "julianday": 0, "unixepoch": 0, "strftime": 1}
"""Functions of time, with the index of the argument that is a time."""

FOLLOWING = frozenset({*TIMES, "timediff", "current_date", "current_time", "current_timestamp", "random", "randomblob"})
"""Functions that depend on the document's time or random generator: `Chance` overrides them."""

PER_DOCUMENT = frozenset({"changes", "last_insert_rowid"})
"""Counters of the connection, such as `changes()`; a lambda may call them after a statement that sets them."""

CONSOLE_LOG = "console_log"
"""The function of the runtime that writes its argument to the task's log, and returns the argument."""

REFUSED_FUNCTIONS = {
    "total_changes": "may not call total_changes(): it also counts changes for other documents",
    "load_extension": "may not use load_extension(): extensions are not loaded",
    **{
        name: f"may not call {name}(): the version of SQLite differs between machines"
        for name in (
            "sqlite_version",
            "sqlite_source_id",
            "sqlite_compileoption_get",
            "sqlite_compileoption_used",
            "fts5_source_id",
        )
    },
    **{
        name: f"may not use {name}(): the storage of rows differs between machines"
        for name in ("sqlite_offset", "rtreecheck", "rtreedepth", "rtreenode")
    },
    "fts3_tokenizer": "may not use fts3_tokenizer(): it gives an address in memory",
    "sqlite_log": "may not use sqlite_log(): documents must not reach the log of the runtime",
}
"""Functions that no SQL of a catalog may call, with the reasons."""

_SCALARS = """
    -> ->> abs acos acosh asin asinh atan atan2 atanh ceil ceiling char coalesce concat concat_ws cos cosh degrees exp
    floor format glob hex if ifnull iif instr length like likelihood likely ln log log10 log2 lower ltrim match max min
    mod nullif octet_length pi pow power printf quote radians replace round rtrim sign sin sinh soundex sqrt substr
    substring subtype tan tanh trim trunc typeof unhex unicode unistr unistr_quote unlikely upper zeroblob regexp
"""
_JSON = """
    json json_array json_array_insert json_array_length json_error_position json_extract json_group_array
    json_group_object json_insert json_object json_patch json_pretty json_quote json_remove json_replace json_set
    json_type json_valid jsonb jsonb_array jsonb_array_insert jsonb_extract jsonb_group_array jsonb_group_object
    jsonb_insert jsonb_object jsonb_patch jsonb_remove jsonb_replace jsonb_set
"""
_AGGREGATES = """
    avg count group_concat median percentile percentile_cont percentile_disc string_agg sum total cume_dist dense_rank
    first_value lag last_value lead nth_value ntile percent_rank rank row_number
"""
_INDEXES = """
    bm25 fts5 fts5_get_locale fts5_insttoken fts5_locale highlight matchinfo offsets optimize snippet
    geopoly_area geopoly_bbox geopoly_blob geopoly_ccw geopoly_contains_point geopoly_debug geopoly_group_bbox
    geopoly_json geopoly_overlap geopoly_regular geopoly_svg geopoly_within geopoly_xform
"""
ORDINARY = frozenset(f"{_SCALARS} {_JSON} {_AGGREGATES} {_INDEXES}".split())
"""Functions that depend only on their arguments and on the rows that the statement reads."""

_INNER = frozenset(
    """
    sqlite_rename_column sqlite_rename_table sqlite_rename_test sqlite_rename_quotefix sqlite_drop_column
    sqlite_drop_constraint sqlite_add_constraint sqlite_find_constraint sqlite_fail
    """.split()  # noqa: SIM905
)
"""Functions that only ALTER TABLE can call."""

MODULES = frozenset({"fts3", "fts4", "fts5", "fts5vocab", "fts4aux", "fts3tokenize", "rtree", "rtree_i32", "geopoly"})
"""Modules that virtual tables may use, because they store their data in tables of the same database."""

INNER_TABLES = frozenset({"dbstat", "sqlite_dbpage", "sqlite_stmt", "sqlite_memstat", "bytecode", "tables_used"})
"""Tables, besides those whose names begin with `pragma_`, that show SQLite's internals."""


def refusal_of_function(name: str, *, has_clock: bool) -> str | None:
    """Return the reason why SQL of a catalog may not call a function; None if it may call the function.

    Args:
        name: name of the function, in lower case.
        has_clock: whether functions of time and randomness are overridden.
    """
    if name in REFUSED_FUNCTIONS:
        return REFUSED_FUNCTIONS[name]
    if name in FOLLOWING and not has_clock:
        return f"may not call {name}() in this spelling: it would not use the document's time"
    if name in ORDINARY or name in FOLLOWING or name in PER_DOCUMENT or name in _INNER or name == CONSOLE_LOG:
        return None
    return f"may not call {name}(): its result may depend on the machine"


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
