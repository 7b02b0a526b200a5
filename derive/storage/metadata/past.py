"""The past of tasks in the metadata database: the definitions and transactions by which derivations derived.

The documents of a derivation depend on its sources and on its definition. If a timestamp was raised to the `upper` of
the output, they also depend on the extents of transactions. A replay needs all of these. Consecutive regular
transactions of one definition are one part, whose end is the present position of the task. So a commit usually reads
one row about the past, and writes no row.

Of a materialization, the definition at its last commit is stored.
"""

from __future__ import annotations

from typing import Any

import apsw
import orjson

from derive.protocol.definition_text import Definition
from derive.storage.metadata.collection import upper_of
from derive.storage.metadata.descriptions import Derived, PastPart


def record_part(db: apsw.Connection, task: str, derived: Derived, documents: int) -> None:
    """Record the part to which a transaction belongs, before its positions and its output are written.

    Args:
        db: the write transaction of the commit.
        task: name of the derivation.
        derived: facts about the transaction.
        documents: number of documents that it has processed.
    """
    last: Any = db.execute(
        "SELECT number, definition, is_regular, ends IS NULL FROM history WHERE task = ? ORDER BY number DESC LIMIT 1",
        (task,),
    ).fetchone()
    number = 0
    if last is not None:
        number, digest, was_regular, is_open = last
        # Without documents, only time has moved, so the transaction fits every part of the same definition.
        is_same = digest == derived.definition.digest and is_open
        if is_same and (not documents or (was_regular and derived.is_regular)):
            return
        end_part(db, task, derived.clamp)
        number += 1
    insert_definition(db, derived.definition)
    db.execute(
        "INSERT INTO history VALUES (?, ?, ?, ?, ?, NULL, ?, NULL)",
        (
            task,
            number,
            derived.definition.digest,
            int(derived.is_regular),
            derived.clamp,
            orjson.dumps(dict(derived.begins)).decode(),
        ),
    )


def insert_definition(db: apsw.Connection, definition: Definition) -> None:
    """Store a definition, unless it is stored already."""
    db.execute("INSERT INTO definition VALUES (?, ?) ON CONFLICT DO NOTHING", (definition.digest, definition.text))


def end_part(db: apsw.Connection, task: str, upper: int | None = None) -> None:
    """End the last part of a derivation's past at the task's present positions, unless it has ended.

    Args:
        db: a write transaction.
        task: name of the derivation.
        upper: `upper` of its output; None to look it up.
    """
    db.execute(
        "UPDATE history SET upper = ?, ends = (SELECT positions FROM task WHERE task.name = history.task)"
        " WHERE task = ? AND ends IS NULL",
        (upper_of(db, task) if upper is None else upper, task),
    )


def record_applied(db: apsw.Connection, task: str, definition: Definition) -> None:
    """Record the definition of a materialization, in the write transaction of its commit."""
    if db.execute("SELECT definition FROM applied WHERE task = ?", (task,)).get == definition.digest:
        return
    insert_definition(db, definition)
    db.execute("INSERT OR REPLACE INTO applied VALUES (?, ?)", (task, definition.digest))
    _forget_definitions(db)


def read_applied(db: apsw.Connection, task: str) -> str | None:
    """Return the text of a materialization's definition at its last commit; None if none is recorded."""
    text: str | None = db.execute(
        "SELECT spec FROM applied JOIN definition ON digest = definition WHERE task = ?", (task,)
    ).get
    return text


def _forget_definitions(db: apsw.Connection) -> None:
    """Delete the definitions that no task has."""
    db.execute(
        "DELETE FROM definition WHERE digest NOT IN (SELECT definition FROM history UNION ALL"
        " SELECT definition FROM applied)"
    )


def forget_past(db: apsw.Connection, task: str) -> None:
    """Delete the past of a task, and the definitions that no other task has had."""
    db.execute("DELETE FROM history WHERE task = ?", (task,))
    db.execute("DELETE FROM applied WHERE task = ?", (task,))
    _forget_definitions(db)


def read_past(db: apsw.Connection, task: str) -> list[PastPart]:
    """Return the recorded parts of a derivation's past, in order.

    A folder of an older version has none before a commit.
    """
    positions = db.execute("SELECT positions FROM task WHERE name = ?", (task,)).get
    rows: list[Any] = db.execute(
        "SELECT number, spec, is_regular, clamp, upper, begins, ends FROM history"
        " JOIN definition ON digest = definition WHERE task = ? ORDER BY number",
        (task,),
    ).fetchall()
    return [
        PastPart(
            number,
            definition,
            bool(is_regular),
            clamp,
            upper_of(db, task) if upper is None else upper,
            orjson.loads(begins),
            orjson.loads(positions if ends is None else ends),
        )
        for number, definition, is_regular, clamp, upper, begins, ends in rows
    ]
