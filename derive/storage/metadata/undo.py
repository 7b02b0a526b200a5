"""Undo of loads: removal of the documents of a load that no reader has read.

Contents below `upper` do not change for a reader (law L3). So a load is undone only if all of these hold:

- No task has processed the first timestamp of the load.
- No running task may be reading the load.
- No endpoint may have rows of the load.
- No process, view or index holds a capability to read the collection, because the frontier of such a capability does
  not show how far its holder has read.

The time of the load stays final.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from derive.document.clock import format_rfc3339
from derive.errors import StorageError, UsageError, suggest
from derive.protocol.collection import owner_of_version
from derive.storage.capability.table import Capability, read_capabilities, release_expired, run_capability
from derive.storage.metadata.ingestions import Load, find_load, mark_undone, read_loads
from derive.storage.metadata.segment import read_segments, replace_segments
from derive.storage.metadata.tables import name_of
from derive.storage.metadata.tasks import read_tasks
from derive.storage.metadata.transaction import Transaction
from derive.storage.segments.partition import INGESTED
from derive.time import BEGINNING


class ReadLoadError(StorageError):
    """A load that readers have read, or may be reading."""


def undo_load(db: Transaction, collection: str, load_id: str) -> None:
    """Remove the documents of a load from its collection; do nothing if the load was undone already.

    Args:
        db: a write transaction, in which readers may have been reset.
        collection: name of the collection.
        load_id: identifier of the load.

    Raises:
        UsageError: the collection does not have the load.
        StorageError: compaction has merged the load with other documents.
        ReadLoadError: readers have read the load, or may be reading it.
    """
    release_expired(db)
    load = find_load(db, collection, load_id)
    if load is None:
        _require_undone(db, collection, load_id)
        return
    prefix = f"{INGESTED}{load.writer}-"
    segments = [
        segment
        for segment in read_segments(db, collection, BEGINNING)
        if PurePosixPath(segment.path).name.startswith(prefix)
    ]
    if sum(segment.documents for segment in segments) != load.documents:
        raise StorageError(
            f"load '{load_id}' cannot be undone: compaction has merged its documents with others of '{collection}'",
            hint="ingest documents that correct it",
        )
    if load.clock_min is not None:
        _require_unread(db, load, load.clock_min)
    replace_segments(db, collection, segments, [])
    mark_undone(db, load)


def _require_undone(db: Transaction, collection: str, load_id: str) -> None:
    names = {load.load_id: load.undone is not None for load in read_loads(db, collection) if load.load_id is not None}
    if not names.get(load_id):
        guess = suggest(load_id, names)
        hint = f"did you mean '{guess}'?" if guess else "list the loads: flowctl ingestions list"
        raise UsageError(f"there is no load '{load_id}' of '{collection}'", hint=hint)


def _require_unread(db: Transaction, load: Load, clock: int) -> None:
    """Raise an error if a reader has read a load, or may be reading it.

    Args:
        db: a write transaction in which expired capabilities were dropped.
        load: the load.
        clock: its first timestamp.

    Raises:
        ReadLoadError: the load has such readers.
    """
    capabilities = read_capabilities(db, load.collection)
    tasks = {held.task: held.frontier for held in capabilities if held.task is not None and ":" not in held.task}
    others = [describe_reader(db, held) for held in capabilities if held.task is None or ":" in held.task]
    stored = set()
    for state in read_tasks(db):
        for key, place in state.places.items():
            if place.source == load.collection and key in state.positions:
                tasks[state.name] = max(tasks.get(state.name, BEGINNING), state.positions[key] - place.offset)
                if not db.execute("SELECT 1 FROM collection WHERE name = ?", (state.name,)).get:
                    stored.add(state.name)  # an endpoint commits first, so it may be ahead of the position
    readers = {
        task: f"'{task}' has read up to {format_rfc3339(reached)}" for task, reached in tasks.items() if reached > clock
    }
    readers |= {task: f"'{task}' is running" for task in tasks.keys() - readers if run_capability(db, task) is not None}
    readers |= {task: f"'{task}' may have stored them in its endpoint" for task in stored - readers.keys()}
    if not readers and not others:
        return
    ways = ["end the other readers, or drop the views and indexes of SQL"] if others else []
    shadows = [task for task in readers if owner_of_version(task) is not None]
    if shadows:
        ways.append("drop the shadow: flowctl shadow drop")
    if len(readers) > len(shadows):
        ways.append("reset the tasks that read it: --reset-readers")
    raise ReadLoadError(
        f"load '{load.load_id}' of '{load.collection}' cannot be undone, because its documents from"
        f" {format_rfc3339(clock)} on have readers: {', '.join([*map(readers.__getitem__, sorted(readers)), *others])}",
        hint="; then ".join(ways),
    )


def describe_reader(db: Transaction, held: Capability) -> str:
    """Return the name of a task, of a view, of an index or of a process that holds a read capability."""
    kind, is_of_sql, identifier = (held.task or "").partition(":")
    if not is_of_sql:
        return held.holder
    name = name_of(db, int(identifier))
    return f"the {kind} '{name}' of SQL" if name else f"the {kind} {identifier} of SQL"
