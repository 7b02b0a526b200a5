"""SQLite's functions and modules, grouped by the inputs on which their results depend (law L1).

A function outside of these sets is refused, because a newer SQLite may have functions that depend on the machine.
`docs/sql.md` has the table for authors.
"""

from __future__ import annotations

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
