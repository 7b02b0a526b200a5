"""Following: an input goes on with the relation that has its source's name now.

An input of a table or materialized view takes a *switch*: at one time the rows of the former relation, as far as the
input has read them, are taken back, and those of the other one are added. To the task that is one commit that empties a
table and fills it again. The switch is noted with the task before anything of it is read, so it is the same after a
crash; its rows lie in a file of the data folder, which is written anew where it is missing.

A derivation that could not take rows back, and a reader of a collection that was reset, begin again.
"""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from derive.engine.transactor import TaskSpec
from derive.failpoint import reach
from derive.protocol.installed import find_runtime
from derive.protocol.specs import JSON, DerivationSpec, InputSpec
from derive.storage.roles import Readable
from derive.storage.segments.partition import INGESTED, NO_PARTITION, collection_folder
from derive.storage.segments.rows import WrittenRows
from derive.storage.segments.writer import SegmentWriter
from derive.storage.table import GlobalId, RowUpdate, Table, in_order
from derive.storage.table_files import appended_rows, pieces_of
from derive.storage.table_subscription import read_updates
from derive.time.frontier import BEGINNING, tick_begin
from derive.time.positions import Place, Switch, offset_of
from derive.time.segment import Segment

_INVERTIBLE = frozenset({"merge", "sum", "lastWriteWins"})
"""Reductions that a later document can take back."""

_DELETION = "_meta"
"""How a lambda asks whether a row is taken away."""


def takes_back(task: TaskSpec, spec: InputSpec) -> bool:
    """Return whether a task can take back what an input has read: a switch is enough, and it need not begin again."""
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
    """Return how an input goes over from the relation that it has read to the one with its source's name now."""
    known = store.collection(spec.source)
    former = store.tables.of_relation(place.relation)
    other = known and store.tables.of_relation(known.relation)
    if known is None or (former and not other and not known.documents):  # nothing has the name yet
        return "wait"
    if other and store.replaces_nothing(spec.source, place.relation):  # there is nothing to take back
        return "switch"
    return "switch" if former and other and takes_back(task, spec) else "again"


def find_switch(
    store: Readable, task: TaskSpec, spec: InputSpec, place: Place, position: int, reached: int
) -> Switch | None:
    """Return the switch of an input that has read another relation; None if it has to wait for the other one.

    Args:
        store: the data folder.
        task: which reads.
        spec: its input.
        place: the relation that it has read.
        position: adjusted clock below which it has.
        reached: adjusted clock below which an endpoint may have stored the former relation, as far as that goes, though
            the data folder does not know; it passes over what comes to be read below that.
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


def write_switch(store: Readable, task: TaskSpec, spec: InputSpec, place: Place, position: int) -> tuple[Segment, ...]:
    """Write the rows of a switch: those that an input has read go, and those of the other relation come.

    Before that comes what the input has yet to read of the former relation, which an endpoint may have stored already.

    Returns:
        Durable segments that are part of no collection; `remove_switches` removes them.

    Raises:
        StorageError: one of the relations is not known any more at its time.
    """
    switch = place.switch
    assert switch is not None
    former, other = store.tables.of_relation(place.relation), store.tables.of_relation(switch.relation)
    counts: Counter[tuple[str, bytes]] = Counter()
    updates: list[RowUpdate] = []
    if other is not None:
        counts.update(_told(store, other.id, spec, switch.at + 1))
    if former is not None:
        counts.subtract(_told(store, former.id, spec, switch.end))
        begin = max(position - offset_of(spec, task.tick), spec.not_before or BEGINNING)
        updates += read_updates(store, former.id, begin, switch.end) if begin < switch.end else ()
    updates += [RowUpdate(switch.at, text, key, diff) for (text, key), diff in sorted(counts.items()) if diff]
    shape = other or former
    segments = _written(store.root, task.name, shape, updates) if shape is not None and updates else ()
    reach("switch.written")
    return segments


def _told(store: Readable, table: GlobalId, spec: InputSpec, end: int) -> Counter[tuple[str, bytes]]:
    """Return what an input is told of a table before a time: each row, and how often it is there."""
    counts: Counter[tuple[str, bytes]] = Counter()
    for update in read_updates(store, table, spec.not_before or BEGINNING, end):
        counts[update.text, update.key] += update.diff
    return counts


def _written(root: Path, task: str, shape: Table, updates: list[RowUpdate]) -> tuple[Segment, ...]:
    spec = replace(shape.spec, name=_collection_of(task))
    writer = SegmentWriter(root, spec, f"{INGESTED}{uuid.uuid4()}", is_valid=True)
    try:
        clocks, seqs, diffs, keys, texts = zip(*pieces_of(appended_rows(in_order(updates), 0)), strict=True)
        writer.write(WrittenRows.from_columns(clocks, seqs, diffs, keys, texts, [NO_PARTITION] * len(clocks)))
        return tuple(writer.close())
    except BaseException:
        writer.abort()
        raise


def remove_switches(root: Path, task: str) -> None:
    """Remove the files of switches that a task has behind it, or has not begun."""
    shutil.rmtree(root / collection_folder(_collection_of(task)), ignore_errors=True)
    reach("switch.removed")


def _collection_of(task: str) -> str:
    return f"{task}@switch"
