"""Shadows of bindings in the metadata database: bindings that fill a table beside the table of a live binding.

A materialization with an entry has some of its bindings twice: live bindings under their former definition, and shadows
under the definition of the catalog. The entry ends with the decision to swap or to give the shadows up. From the
decision to swap on, the materialization has only the bindings of the catalog, and a shadow is a usual refill: it
replaces the rows as soon as it has reached them. So the decision is one commit, and a run that is killed after the
commit continues the refill.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import apsw
import orjson

from derive.errors import FlowError
from derive.storage.metadata.tasks import read_task, rewind_task


@dataclass(frozen=True, slots=True)
class BindingShadow:
    """The shadows of a materialization's bindings.

    Attributes:
        task: name of the materialization.
        keys: state key of the live binding of each shadow, by the state key of the shadow.
        live: JSON of the definition that the live bindings have.
        definition: digest of the definition in the catalog when the shadows began.
        is_held: whether the swap waits for a person.
        error: the error that stopped the shadows; None without one.
    """

    task: str
    keys: Mapping[str, str]
    live: str
    definition: str
    is_held: bool
    error: FlowError | None = None


def read_binding_shadows(db: apsw.Connection) -> list[BindingShadow]:
    """Return the shadows of bindings, by materialization; none if a read-only database has no such table yet."""
    if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'shadow_binding'").get:
        return []
    query = "SELECT task, keys, live, definition, is_held, error FROM shadow_binding ORDER BY task"
    rows: list[Any] = db.execute(query).fetchall()
    return [
        BindingShadow(
            task,
            orjson.loads(keys),
            live,
            definition,
            bool(is_held),
            FlowError.from_json(orjson.loads(error)) if error else None,
        )
        for task, keys, live, definition, is_held, error in rows
    ]


def begin_binding_shadow(db: apsw.Connection, shadow: BindingShadow) -> None:
    """Record the shadows of a materialization, or continue the same shadows without their error."""
    keys = orjson.dumps(dict(shadow.keys)).decode()
    db.execute(
        "INSERT OR REPLACE INTO shadow_binding VALUES (?, ?, ?, ?, ?, NULL)",
        (shadow.task, keys, shadow.live, shadow.definition, int(shadow.is_held)),
    )


def hold_binding_shadows(db: apsw.Connection, *, is_held: bool) -> None:
    """Set whether the swap of all shadows waits for a person."""
    db.execute("UPDATE shadow_binding SET is_held = ?", (int(is_held),))


def note_shadow_error(db: apsw.Connection, task: str, error: FlowError | None) -> None:
    """Record the error that stopped the shadows of a materialization; None if they continue."""
    text = None if error is None else orjson.dumps(error.to_json()).decode()
    db.execute("UPDATE shadow_binding SET error = ? WHERE task = ?", (text, task))


def swap_binding_shadow(db: apsw.Connection, task: str) -> bool:
    """End the shadows of a materialization by the decision to swap; return whether there were shadows.

    Nothing is decided while a shadow is behind its live binding, has failed, or waits for a person.
    """
    shadow = next((one for one in read_binding_shadows(db) if one.task == task), None)
    if shadow is None or shadow.is_held or shadow.error or behind(db, shadow):
        return False
    db.execute("DELETE FROM shadow_binding WHERE task = ?", (task,))
    return True


def drop_binding_shadow(db: apsw.Connection, shadow: BindingShadow) -> None:
    """Drop the shadows of a materialization: forget their progress, and fence its run."""
    rewind_task(db, shadow.task, shadow.keys.keys())
    db.execute("DELETE FROM shadow_binding WHERE task = ?", (shadow.task,))


def behind(db: apsw.Connection, shadow: BindingShadow) -> Collection[str]:
    """Return the state keys of shadows that have not reached their live bindings."""
    state = read_task(db, shadow.task)
    positions = state.positions if state else {}
    return [key for key, live in shadow.keys.items() if positions.get(key, -1) < positions.get(live, 0)]
