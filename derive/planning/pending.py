"""Edits of tasks that the next run will find: edits that it applies, and edits that wait for acceptance."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from derive.engine.edits import Unaccepted, edits_of
from derive.engine.rereading import carried_over, find_rereadings, renaming_of
from derive.protocol.specs import CatalogSpec, DerivationSpec, MaterializationSpec
from derive.storage.metadata.descriptions import Edit, TaskState
from derive.storage.roles import View
from derive.storage.task_log import recent_entries
from derive.time.positions import arrived_places, current_positions

_RECENT = 10
"""Number of transactions over which the rate is averaged."""


def present_state(store: View, spec: DerivationSpec | MaterializationSpec) -> TaskState | None:
    """Return the state of a task, with the present names of its transforms; None if the task has never run."""
    state = store.task(spec.name)
    renamed = renaming_of(spec, state) if state and isinstance(spec, DerivationSpec) else None
    return carried_over(state, renamed) if state and renamed else state


def present_positions(
    store: View, spec: DerivationSpec | MaterializationSpec, state: TaskState | None
) -> Mapping[str, int]:
    """Return the position of each input of a task, in microseconds; empty if the task has never run."""
    if state is None:
        return {}
    known = {name: collection.relation for name in spec.sources if (collection := store.collection(name))}
    places = arrived_places(state.places, state.positions)
    return current_positions(spec.inputs, spec.tick, state.positions, places, known)


def find_unaccepted(
    store: View, spec: DerivationSpec | MaterializationSpec, state: TaskState | None
) -> tuple[Unaccepted, ...]:
    """Return the edits of a task that wait for acceptance.

    Args:
        store: the data folder.
        spec: the task.
        state: state of the task, from `present_state`.

    Raises:
        SegmentError: a file of a source cannot be read.
    """
    if state is None:
        return ()
    if isinstance(spec, DerivationSpec):
        return find_rereadings(store, spec, state)
    from derive.engine.stored_bindings import find_stored_edits  # imports gRPC

    return find_stored_edits(spec, state)


def find_edits(
    spec: DerivationSpec | MaterializationSpec,
    state: TaskState | None,
    reset: str,
    unaccepted: Collection[Unaccepted],
) -> tuple[Edit, ...]:
    """Return the edits that are older than some results: recorded edits, and edits that the next run applies.

    Args:
        spec: the task.
        state: state of the task, from `present_state`.
        reset: the command that starts the task over.
        unaccepted: the edits that wait for acceptance; they are not repeated.
    """
    if state is None:
        return ()
    if isinstance(spec, DerivationSpec):
        told = {edit.former for edit in unaccepted if edit.former is not None}
        return edits_of(spec, state, reset=reset, told=told)
    from derive.engine.stored_bindings import remembered_edits  # imports gRPC

    return remembered_edits(spec, state)


def find_waiting_tasks(
    store: View, catalog: CatalogSpec, names: Iterable[str] | None = None
) -> dict[str, tuple[Unaccepted, ...]]:
    """Return the tasks that the next run does not start because of their edits, each with these edits.

    Args:
        store: the data folder.
        catalog: the catalog.
        names: names of the tasks to run; None for all.

    Raises:
        SegmentError: a file of a source cannot be read.
    """
    chosen = [catalog.tasks[name] for name in (catalog.tasks if names is None else names) if name in catalog.tasks]
    waiting = {
        spec.name: find_unaccepted(store, spec, present_state(store, spec)) for spec in chosen if not spec.disabled
    }
    return {name: edits for name, edits in waiting.items() if edits}


def measured_rate(root: Path, task: str) -> float | None:
    """Return source documents per second over the last transactions that read documents; None if no transaction did.

    Transactions before a reset do not count. Rates below 100 are rounded to tenths.
    """
    entries = list(recent_entries(root, task))
    begin = max((number for number, entry in enumerate(entries, start=1) if entry.get("reset")), default=0)
    done = [entry for entry in entries[begin:] if entry.get("documents_in")][-_RECENT:]
    seconds = sum(entry["seconds"] for entry in done)
    if not seconds:
        return None
    rate: float = sum(entry["documents_in"] for entry in done) / seconds
    return round(rate) if rate >= 100 else round(rate, 1)
