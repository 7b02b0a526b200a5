"""Following: an input moves to the relation that now has its source's name.

An input of a table or materialized view takes a *switch*: at one timestamp, the input retracts the rows that it has
read of the former relation, and inserts the rows of the new relation. For the task, a switch equals one commit that
empties a table and fills it again. The task records the switch before the rows are read, so the switch is the same
after a crash. A file of the data folder holds the rows of the switch; a missing file is written again.

A derivation that cannot retract rows, and a reader of a collection that was reset, start over.
"""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from derive.contents.table_updates import read_updates
from derive.document.pointer import JSON
from derive.engine.transactor import TaskSpec
from derive.failpoint import reach
from derive.protocol.entry_points import find_runtime
from derive.protocol.specs import DerivationSpec, InputSpec
from derive.storage.location import Location, blobs_of
from derive.storage.roles import Readable
from derive.storage.segments.partition import INGESTED, NO_PARTITION, collection_folder
from derive.storage.table_types import GlobalId, RowUpdate, Table, in_order
from derive.storage.tables import appended_rows, pieces_of
from derive.time import BEGINNING, END_OF_TIME, tick_begin
from derive.time.positions import Place, Segment, Switch, offset_of

_INVERTIBLE = frozenset({"merge", "sum", "lastWriteWins"})
"""Reductions that a later document can undo."""

_DELETION = "_meta"
"""The property by which a lambda recognizes a deleted row."""


def takes_back(task: TaskSpec, spec: InputSpec) -> bool:
    """Return whether a task can retract the rows of an input; otherwise the task must start over."""
    if not isinstance(task, DerivationSpec):
        return True
    script = task.transforms[spec.index].script
    if script is None or _DELETION not in script.text or find_runtime(task.connector).keeps_state(task):
        return False
    return all(strategy in _INVERTIBLE for strategy in _strategies(task.collection.write_schema))


def _strategies(schema: JSON) -> Iterator[JSON]:
    if isinstance(schema, dict):
        for name, value in schema.items():
            if name == "reduce" and isinstance(value, dict) and "strategy" in value:
                yield value["strategy"]
            else:
                yield from _strategies(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _strategies(value)


def way_to(store: Readable, task: TaskSpec, spec: InputSpec, place: Place) -> Literal["switch", "again", "wait"]:
    """Return how an input moves from the relation that it has read to the relation that has its source's name now."""
    known = store.collection(spec.source)
    former = store.tables.of_relation(place.relation)
    other = known and store.tables.of_relation(known.relation)
    if known is None or (former and not other and not known.documents):  # no relation has the name yet
        return "wait"
    if other and other.upper >= END_OF_TIME:  # dropped; the rows are kept only while a reader needs them
        return "wait"
    if other and store.replaces_nothing(spec.source, place.relation):  # there is nothing to retract
        return "switch"
    return "switch" if former and other and takes_back(task, spec) else "again"


def find_switch(
    store: Readable, task: TaskSpec, spec: InputSpec, place: Place, position: int, reached: int
) -> Switch | None:
    """Return the switch of an input that has read another relation; None if the new relation is not ready.

    Args:
        store: the data folder.
        task: the reading task.
        spec: the task's input.
        place: the relation that the input has read.
        position: adjusted timestamp before which the input has read it.
        reached: adjusted timestamp before which an endpoint may have stored rows of the former relation, though the
            data folder has not recorded them; the endpoint skips rows before it.
    """
    known = store.collection(spec.source)
    if known is None:
        return None
    offset = offset_of(spec, task.tick)
    end = max(position - offset, BEGINNING)
    least = end if isinstance(task, DerivationSpec) else max(reached - offset, end)
    former = store.tables.of_relation(place.relation)
    if former is not None:
        end = max(end, min(least, former.upper))
    at = tick_begin(min(known.sound, store.timeline.present()) + offset, task.tick) - offset - 1
    return Switch(known.relation, end, at) if at >= least else None


def write_switch(
    store: Readable, task: TaskSpec, spec: InputSpec, place: Place, position: int, epoch: int
) -> tuple[Segment, ...]:
    """Write the rows of a switch: deletions of the rows that an input has read, and insertions of the new rows.

    Before them, write the rows of the former relation that the input has yet to read: an endpoint may have stored them.

    Args:
        store: the data folder.
        task: name of the reading task.
        spec: the task's input.
        place: the relation that the input has read, and the switch.
        position: adjusted timestamp before which the input has read the former relation.
        epoch: epoch of the run.

    Returns:
        Durable segments that belong to no collection; `remove_switches` removes them.

    Raises:
        StorageError: the history of a relation at the time of the switch was compacted.
    """
    switch = place.switch
    assert switch is not None
    former, other = store.tables.of_relation(place.relation), store.tables.of_relation(switch.relation)
    counts: Counter[tuple[str, bytes]] = Counter()
    updates: list[RowUpdate] = []
    if other is not None:
        counts.update(_documents_of(store, other.id, spec, switch.at + 1))
    if former is not None:
        counts.subtract(_documents_of(store, former.id, spec, switch.end))
        begin = max(position - offset_of(spec, task.tick), spec.not_before or BEGINNING)
        updates += read_updates(store, former.id, begin, switch.end) if begin < switch.end else ()
    updates += [RowUpdate(switch.at, text, key, diff) for (text, key), diff in sorted(counts.items()) if diff]
    shape = other or former
    segments: tuple[Segment, ...] = ()
    if shape is not None and updates:
        segments = _written(store.location, _collection_of(task.name, epoch), shape, updates)
    reach("switch.written")
    return segments


def _documents_of(store: Readable, table: GlobalId, spec: InputSpec, end: int) -> Counter[tuple[str, bytes]]:
    """Return the rows of a table that an input reads before a timestamp, each with its count."""
    counts: Counter[tuple[str, bytes]] = Counter()
    for update in read_updates(store, table, spec.not_before or BEGINNING, end):
        counts[update.text, update.key] += update.diff
    return counts


def _written(location: Location, name: str, shape: Table, updates: list[RowUpdate]) -> tuple[Segment, ...]:
    from derive.storage.segments.rows import WrittenRows  # imports NumPy
    from derive.storage.segments.writer import SegmentWriter

    spec = replace(shape.spec, name=name)
    writer = SegmentWriter(location, spec, f"{INGESTED}{uuid.uuid4()}", is_valid=True)
    try:
        clocks, seqs, diffs, keys, texts = zip(*pieces_of(appended_rows(in_order(updates), 0)), strict=True)
        writer.write(WrittenRows.from_columns(clocks, seqs, diffs, keys, texts, [NO_PARTITION] * len(clocks)))
        return tuple(writer.close())
    except BaseException:
        writer.abort()
        raise


def remove_switches(location: Location, task: str, epoch: int) -> None:
    """Remove the files of a task's switches, except of a switch in progress and of runs with a later epoch."""
    above = collection_folder(_collection_of(task, epoch)).rpartition("/")[0]
    if isinstance(location, Path):
        folder = location / above
        for epochs in folder.glob("*"):
            if int(epochs.name.rstrip("@")) <= epoch:
                shutil.rmtree(epochs, ignore_errors=True)
        with suppress(OSError):
            folder.rmdir()
    else:
        blobs = blobs_of(location)
        paths = blobs.list(above, "*/*.parquet")
        blobs.delete(path for path in paths if int(path.split("/")[-2].rstrip("@")) <= epoch)
    reach("switch.removed")


def _collection_of(task: str, epoch: int) -> str:
    return f"{task}@switch/{epoch}"
