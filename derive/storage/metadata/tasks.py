"""Tasks as the metadata keeps them: what is known of one, and what a transaction of it changes."""

from __future__ import annotations

from typing import Any

import apsw
import orjson

from derive.errors import FrontierError
from derive.storage.metadata.descriptions import Edit, TaskCommit, TaskState
from derive.storage.rights import move_task
from derive.time.positions import Place


def read_task(db: apsw.Connection, name: str) -> TaskState | None:
    """What is known of a task; None if it has never run."""
    row: Any = db.execute(
        "SELECT shards, positions, error, documents_in, documents_out, transactions, places, fingerprints,"
        " edits FROM task WHERE name = ?",
        (name,),
    ).fetchone()
    numbered: list[Any] = db.execute("SELECT number, token FROM shard WHERE task = ?", (name,)).fetchall()
    if row is None:
        return None
    shards, positions, error, documents_in, documents_out, transactions, places, fingerprints, edits = row
    return TaskState(
        name,
        shards,
        orjson.loads(positions),
        dict(numbered),
        error,
        documents_in,
        documents_out,
        transactions,
        places={key: Place(*place) for key, place in orjson.loads(places).items()},
        fingerprints=orjson.loads(fingerprints),
        edits=tuple(Edit(*edit) for edit in orjson.loads(edits)),
    )


def commit_task(db: apsw.Connection, task: TaskCommit) -> None:
    """Move a task on, in the write transaction in which its documents are committed.

    Raises:
        FrontierError: a transform would step back.
    """
    _check_positions(db, task)
    db.execute(
        "UPDATE task SET positions = ?, places = ?, error = NULL, documents_in = documents_in + ?,"
        " documents_out = documents_out + ?, transactions = transactions + ? WHERE name = ?",
        (
            orjson.dumps(dict(task.positions)).decode(),
            orjson.dumps({key: list(place) for key, place in task.places.items()}).decode(),
            task.documents_in,
            task.documents_out,
            int(task.documents_in > 0),
            task.task,
        ),
    )
    db.executemany(
        "INSERT INTO shard VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET token = excluded.token",
        [(task.task, number, token) for number, token in task.shards.items()],
    )
    move_task(db, task.task, task.needs)


def _check_positions(db: apsw.Connection, task: TaskCommit) -> None:
    """Require that no transform steps back in its source, which would derive documents twice.

    Positions are adjusted clocks, and count from the clocks of the source by an offset that the catalog may change.
    """
    row: Any = db.execute("SELECT positions, places FROM task WHERE name = ?", (task.task,)).fetchone()
    before = orjson.loads(row[0])
    places = {key: Place(*place) for key, place in orjson.loads(row[1]).items()}
    for key, position in task.positions.items():
        old, new = places.get(key), task.places.get(key)
        if key not in before or old is None or new is None or old.source != new.source:
            continue
        if position - new.offset < before[key] - old.offset:
            raise FrontierError(f"'{key}' of '{task.task}' would step back in '{new.source}'; nothing was committed")
