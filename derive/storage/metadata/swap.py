"""Shadows in the metadata database: derivations that run beside the live derivations, and replace these at once.

A shadow of `x` is the task and collection `x@2`: the number is the number of the version that the shadow derives.
Shadows of one group begin and end together, because at each time all members of the group must be of one version.

The swap exchanges content, and names stay: the segments, the relation, the progress and the past of `x@2` are given to
`x`, and the former segments of `x` become the collection `x@1`. Both tasks are fenced. The state of the shards stays in
its folder, which the task records.

Bindings have shadows, too: bindings that fill a table beside the table of a live binding. A materialization with an
entry has some of its bindings twice: live bindings under their former definition, and shadows under the definition of
the catalog. The entry ends with the decision to swap or to give the shadows up. From the decision to swap on, the
materialization has only the bindings of the catalog, and a shadow is a usual refill: it replaces the rows as soon as it
has reached them. So the decision is one commit, and a run that is killed after the commit continues the refill.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from derive.errors import FencedError, FlowError
from derive.protocol.collection import quarantine_name, version_name
from derive.protocol.definition_text import Definition
from derive.storage.capability.table import release_run, rewind_inputs
from derive.storage.metadata.chain import give_chains
from derive.storage.metadata.collection import (
    delete_collection,
    empty_collection,
    frontiers_of,
    new_identifier,
    upper_of,
)
from derive.storage.metadata.descriptions import TaskState
from derive.storage.metadata.materializations import read_record, write_refills, write_restart
from derive.storage.metadata.quarantine import internal_collections
from derive.storage.metadata.tasks import (
    epoch_of,
    forget_past,
    forget_task,
    insert_definition,
    last_definition,
    read_applied,
    read_task,
    rewind_task,
)
from derive.storage.metadata.transaction import Transaction
from derive.storage.metadata.versions import begin_version, describe_version, versions_of
from derive.time import BEGINNING


@dataclass(frozen=True, slots=True)
class Shadow:
    """A member of a group of derivations that is to be replaced.

    Attributes:
        task: name of the live derivation.
        number: number of the version that the shadow derives.
        definition: digest of the definition that the shadow runs, with the names of live collections.
        is_held: whether the swap waits for a person.
    """

    task: str
    number: int
    definition: str
    is_held: bool

    @property
    def name(self) -> str:
        """Return the name of the shadow's task and collection."""
        return version_name(self.task, self.number)


@dataclass(frozen=True, slots=True)
class Meeting:
    """The progress of the members of a group.

    Attributes:
        at: timestamp of the swap: the greatest `upper` of the live collections.
        behind: names of shadows, and of live derivations that can still reach this timestamp, that are not there yet.
    """

    at: int
    behind: tuple[str, ...]


def read_shadows(db: Transaction) -> list[Shadow]:
    """Return the members of the present group, by name; none if there is no shadow."""
    rows: list[Any] = db.execute("SELECT task, number, definition, is_held FROM shadow ORDER BY task").fetchall()
    return [Shadow(task, number, digest, bool(is_held)) for task, number, digest, is_held in rows]


def begin_shadows(
    db: Transaction,
    definitions: Mapping[str, Definition],
    past: Mapping[str, str | None],
    former: Mapping[str, str],
    *,
    is_held: bool,
) -> None:
    """Record the members of a group, and the definitions under which the live collections are read from now on.

    Runs of the members are fenced, because their definitions may be those of the shadows.

    Args:
        db: a write transaction without shadows.
        definitions: definition that each member's shadow runs, by the name of the derivation.
        past: text of the last definition that each member has run when the group was found; None without one.
        former: JSON of the definition of each live collection.
        is_held: whether the swap waits for a person.

    Raises:
        FencedError: a member has run with another definition since the group was found, or was reset.
    """
    for name, definition in definitions.items():
        if last_definition(db, name) != past.get(name):
            raise FencedError(
                f"another process has applied an edit of '{name}', or has reset it, so no shadow of it begins",
                hint="see what is edited: flowctl plan",
            )
        _fence(db, name)
        number = max([1, *(version.number for version in versions_of(db, name))]) + 1
        db.execute("INSERT INTO shadow VALUES (?, ?, ?, ?)", (name, number, definition.digest, int(is_held)))
        if name in former and frontiers_of(db, name) is not None:
            describe_version(db, name, former[name])


def _fence(db: Transaction, task: str) -> None:
    """Fence the run of a task, if there is one."""
    release_run(db, task)
    db.execute("UPDATE task SET epoch = epoch + 1 WHERE name = ?", (task,))


def hold_shadows(db: Transaction, *, is_held: bool) -> None:
    """Set whether the swap waits for a person."""
    db.execute("UPDATE shadow SET is_held = ?", (int(is_held),))


def drop_shadows(db: Transaction) -> list[str]:
    """Drop the present group: fence the shadows, and discard their documents; return their names."""
    shadows = read_shadows(db)
    for shadow in shadows:
        db.execute("DELETE FROM capability WHERE task = ?", (shadow.name,))
        for name in (shadow.name, *internal_collections(db, shadow.name)):
            empty_collection(db, name)
        forget_task(db, shadow.name)
        describe_version(db, shadow.task, None)
    db.execute("DELETE FROM shadow")
    return [shadow.name for shadow in shadows]


def find_meeting(db: Transaction, shadows: Sequence[Shadow]) -> Meeting:
    """Return the progress of the members of a group.

    A live derivation with a permanent error does not count as behind, nor does a live derivation that has never run:
    such derivations derive nothing more. Neither do their readers, after the time that their source has reached.
    """
    at = max((upper_of(db, shadow.task) for shadow in shadows), default=BEGINNING)
    behind = [shadow.name for shadow in shadows if upper_of(db, shadow.name) < at]
    live = {shadow.task: read_task(db, shadow.task) for shadow in shadows}
    stopped = {name for name, state in live.items() if state is None or _has_failed(state)}
    count = -1
    while count < len(stopped):
        count = len(stopped)
        stopped |= {name for name, state in live.items() if state and _is_held(db, state, stopped, at)}
    return Meeting(at, (*behind, *(name for name in live if name not in stopped and upper_of(db, name) < at)))


def _has_failed(state: TaskState) -> bool:
    return state.error is not None and not FlowError.from_json(orjson.loads(state.error)).heals


def _is_held(db: Transaction, state: TaskState, stopped: Collection[str], at: int) -> bool:
    """Return whether a stopped source keeps a derivation from reaching a timestamp."""
    return any(
        place.source in stopped and upper_of(db, place.source) + place.offset < at for place in state.places.values()
    )


def swap_shadows(
    db: Transaction,
    definitions: Mapping[str, Definition],
    restarts: Mapping[str, Collection[str]],
    resets: Mapping[str, str],
) -> int | None:
    """Replace the live derivations of the present group by their shadows.

    Args:
        db: a write transaction.
        definitions: definition that each member's shadow has run, by the name of the derivation.
        restarts: bindings that start over because they read the group, as state keys by materialization.
        resets: JSON of the reset of each of these materializations, by name.

    Returns:
        The timestamp of the swap; None if the group is not ready, or has changed.
    """
    shadows = read_shadows(db)
    if {shadow.task: shadow.definition for shadow in shadows} != {
        name: definition.digest for name, definition in definitions.items()
    }:
        return None
    meeting = find_meeting(db, shadows)
    if not shadows or meeting.behind or any(shadow.is_held for shadow in shadows):
        return None
    for shadow in shadows:  # a killed process may have left the empty collection of the former swap's shadow
        delete_collection(db, version_name(shadow.task, shadow.number - 1))
    live = {shadow.name: shadow.task for shadow in shadows}
    for shadow in shadows:
        release_run(db, shadow.task)
        release_run(db, shadow.name)
        _exchange_documents(db, shadow, meeting.at)
        _exchange_quarantine(db, shadow)
    for shadow in shadows:
        _exchange_progress(db, shadow, live, definitions[shadow.task])
    db.execute("DELETE FROM shadow")
    for name, keys in restarts.items():
        rewind_task(db, name, keys)
        rewind_inputs(db, name, keys)
    for name, reset in resets.items():
        write_restart(db, name, reset)
    return meeting.at


def _exchange_documents(db: Transaction, shadow: Shadow, at: int) -> None:
    """Give a collection the documents of its shadow, and its former documents to the collection of the version."""
    name, former = shadow.task, version_name(shadow.task, shadow.number - 1)
    query = "SELECT name, relation FROM collection WHERE name IN (?, ?)"
    rows: list[Any] = db.execute(query, (name, shadow.name)).fetchall()
    relations: dict[str, int] = dict(rows)
    for other in relations:
        db.execute("UPDATE collection SET relation = ? WHERE name = ?", (new_identifier(db), other))
    db.execute(
        "INSERT INTO collection (name, key, partitions, since, upper, id, relation, named)"
        " SELECT ?, key, partitions, since, ?, ?, ?, ? FROM collection WHERE name = ?",
        (former, at, new_identifier(db), relations[name], db.now(), name),
    )
    db.execute(
        "UPDATE collection SET (key, partitions, since, upper) = (SELECT key, partitions,"
        " CASE WHEN since < collection.since THEN collection.since ELSE since END, upper"
        " FROM collection AS other WHERE other.name = ?), relation = ?, named = ? WHERE name = ?",
        (shadow.name, relations[shadow.name], db.now(), name),
    )
    for table in ("segment", "replaced"):
        db.execute(f"UPDATE {table} SET collection = ? WHERE collection = ?", (former, name))
        db.execute(f"UPDATE {table} SET collection = ? WHERE collection = ?", (name, shadow.name))
    db.execute("UPDATE discarded SET collection = ? WHERE collection = ?", (name, shadow.name))
    if not versions_of(db, name):
        begin_version(db, name, shadow.number - 1, BEGINNING)
    begin_version(db, name, shadow.number, at)


def _exchange_quarantine(db: Transaction, shadow: Shadow) -> None:
    """Give a derivation the quarantine of its shadow; the former quarantine and its retries are emptied."""
    own, other = quarantine_name(shadow.task), quarantine_name(shadow.name)
    for name in internal_collections(db, shadow.task):
        empty_collection(db, name)
    if frontiers_of(db, other) is None:
        return
    identifier = new_identifier(db)
    db.execute(
        "INSERT INTO collection (name, key, partitions, since, upper, id, relation, named)"
        " SELECT ?, key, partitions, since, upper, ?, ?, ? FROM collection WHERE name = ?"
        " ON CONFLICT (name) DO NOTHING",
        (own, identifier, identifier, db.now(), other),
    )
    db.execute(
        "UPDATE collection SET upper = (SELECT upper FROM collection AS other WHERE other.name = ?) WHERE name = ?",
        (other, own),
    )
    for table in ("segment", "replaced", "discarded"):
        db.execute(f"UPDATE {table} SET collection = ? WHERE collection = ?", (own, other))


def _exchange_progress(db: Transaction, shadow: Shadow, live: Mapping[str, str], definition: Definition) -> None:
    """Give a derivation the progress, the past and the read capabilities of its shadow, and a new epoch.

    Args:
        db: the write transaction.
        shadow: the shadow.
        live: names of the live derivations, by the names of the shadows.
        definition: definition that the shadow has run.
    """
    name = shadow.task
    row: Any = db.execute("SELECT places, fingerprints FROM task WHERE name = ?", (shadow.name,)).fetchone()
    places, fingerprints = map(orjson.loads, row)
    places = {key: [live.get(source, source), *rest] for key, (source, *rest) in places.items()}
    fingerprints = {key: _renamed(key, text, live) for key, text in fingerprints.items()}
    epoch = max(epoch_of(db, name) or 0, epoch_of(db, shadow.name) or 0) + 1
    db.execute("INSERT INTO task (name, shards, positions) VALUES (?, 0, '{}') ON CONFLICT (name) DO NOTHING", (name,))
    db.execute("DELETE FROM shard WHERE task = ?", (name,))
    db.execute("DELETE FROM work WHERE task = ?", (name,))
    forget_past(db, name)
    db.execute(
        "UPDATE task SET (shards, positions, error, documents_in, documents_out, transactions) = (SELECT shards,"
        " positions, error, documents_in, documents_out, transactions FROM task AS other WHERE other.name = ?),"
        " places = ?, fingerprints = ?, edits = '[]', epoch = ?, home = ? WHERE name = ?",
        (shadow.name, orjson.dumps(places).decode(), orjson.dumps(fingerprints).decode(), epoch, shadow.name, name),
    )
    db.execute("UPDATE shard SET task = ? WHERE task = ?", (name, shadow.name))
    db.execute("UPDATE work SET task = ? WHERE task = ?", (name, shadow.name))
    give_chains(db, shadow.name, name)
    insert_definition(db, definition)
    db.execute("UPDATE history SET task = ?, definition = ? WHERE task = ?", (name, definition.digest, shadow.name))
    db.execute("DELETE FROM capability WHERE task = ?", (name,))
    db.execute("UPDATE capability SET task = ? WHERE task = ?", (name, shadow.name))
    db.execute("UPDATE capability SET collection = ? WHERE collection = ?", (name, shadow.name))
    forget_task(db, shadow.name)


def _renamed(key: str, fingerprint: str, live: Mapping[str, str]) -> str:
    """Return the fingerprint of a transform with the live name of its source.

    Fingerprints of shared code stay unchanged.
    """
    source, separator, rest = fingerprint.partition(" ")
    return fingerprint if key.startswith("/") else f"{live.get(source, source)}{separator}{rest}"


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


def read_binding_shadows(db: Transaction) -> list[BindingShadow]:
    """Return the shadows of bindings, by materialization."""
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


def begin_binding_shadow(db: Transaction, shadow: BindingShadow, *, is_new: bool) -> None:
    """Record the shadows of a materialization, or continue the same shadows without their error.

    New shadows fence the run of the materialization, because its definition may be that of the shadows.

    Raises:
        FencedError: the run has applied an edit since the new shadows were chosen.
    """
    if is_new:
        state = read_task(db, shadow.task)
        has_begun = state is not None and not shadow.keys.keys().isdisjoint(state.positions)
        if has_begun or read_applied(db, shadow.task) != shadow.live:
            raise FencedError(
                f"another process has applied an edit of '{shadow.task}', so no shadow of it begins",
                hint="see what is edited: flowctl plan",
            )
        _fence(db, shadow.task)
    keys = orjson.dumps(dict(shadow.keys)).decode()
    db.execute(
        "INSERT INTO shadow_binding VALUES (?, ?, ?, ?, ?, NULL) ON CONFLICT (task) DO UPDATE SET keys = excluded.keys,"
        " live = excluded.live, definition = excluded.definition, is_held = excluded.is_held, error = NULL",
        (shadow.task, keys, shadow.live, shadow.definition, int(shadow.is_held)),
    )


def hold_binding_shadows(db: Transaction, *, is_held: bool) -> None:
    """Set whether the swap of all shadows waits for a person."""
    db.execute("UPDATE shadow_binding SET is_held = ?", (int(is_held),))


def note_shadow_error(db: Transaction, task: str, error: FlowError | None) -> None:
    """Record the error that stopped the shadows of a materialization; None if they continue."""
    text = None if error is None else orjson.dumps(error.to_json()).decode()
    db.execute("UPDATE shadow_binding SET error = ? WHERE task = ?", (text, task))


def swap_binding_shadow(db: Transaction, task: str) -> bool:
    """End the shadows of a materialization by the decision to swap; return whether there were shadows.

    Nothing is decided while a shadow is behind its live binding, has failed, or waits for a person. From the decision
    on, the shadows are refills that have yet to replace the former rows.
    """
    shadow = next((one for one in read_binding_shadows(db) if one.task == task), None)
    if shadow is None or shadow.is_held or shadow.error or behind(db, shadow):
        return False
    db.execute("DELETE FROM shadow_binding WHERE task = ?", (task,))
    state = read_task(db, task)
    positions = state.positions if state else {}
    limits = {key: positions[live] for key, live in shadow.keys.items() if live in positions}
    write_refills(db, task, {**read_record(db, task).refills, **limits})
    return True


def drop_binding_shadow(db: Transaction, shadow: BindingShadow) -> None:
    """Drop the shadows of a materialization: forget their progress, and fence its run."""
    rewind_task(db, shadow.task, shadow.keys.keys())
    db.execute("DELETE FROM shadow_binding WHERE task = ?", (shadow.task,))


def behind(db: Transaction, shadow: BindingShadow) -> Collection[str]:
    """Return the state keys of shadows that have not reached their live bindings."""
    state = read_task(db, shadow.task)
    positions = state.positions if state else {}
    return [key for key, live in shadow.keys.items() if positions.get(key, -1) < positions.get(live, 0)]
