"""Opening a task: fence earlier runs, and determine the state with which it begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from derive.engine.edits import refusal_of
from derive.engine.inputs import acquire_inputs, replaced
from derive.engine.task import Beginning, Task
from derive.engine.transactor import Checkpoint, TaskSpec, Transactor
from derive.errors import FlowError
from derive.materialize.restarts import binding_of
from derive.protocol.specs import InputSpec
from derive.storage.capability.table import TaskCapability
from derive.storage.metadata.descriptions import Edited
from derive.storage.roles import Maintainable, Runnable
from derive.time import BEGINNING
from derive.time.extent import Limits, Pace
from derive.time.positions import KeptHistory, Place, arrived_places, compacted, current_places, current_positions, lost


def open_task(
    store: Runnable,
    transactor: Transactor,
    limits: Limits,
    refused: FlowError | None = None,
    *,
    if_free: bool = False,
    is_accepted: bool = False,
) -> Task:
    """Open a task: from now on, earlier runs of the task cannot commit.

    Args:
        store: the data folder.
        transactor: processes the documents that the task reads.
        limits: limits for cutting its work.
        refused: the error of the task's definition, which prevents a run; None if missing.
        if_free: whether to fail if another process runs the task.
        is_accepted: whether its pending edits are accepted.

    Raises:
        FencedError: another run has fenced this run, or runs the task while `if_free` is true.
    """
    opened = _begin(store, transactor, refused, if_free=if_free, is_accepted=is_accepted)
    capability, checkpoint, beginning = opened
    return Task(store, transactor, capability, checkpoint, beginning, Pace(limits))


def reopen_task(store: Runnable, task: Task) -> None:
    """Open a reset task of this run again.

    Raises:
        FencedError: another run has fenced this run meanwhile.
    """
    task.begin_again(*_begin(store, task.transactor, None, if_free=True, is_accepted=False))


def _begin(
    store: Runnable, transactor: Transactor, refused: FlowError | None, *, if_free: bool, is_accepted: bool
) -> tuple[TaskCapability, Checkpoint, Beginning]:
    task = transactor.spec
    opened = transactor.open(if_free=if_free)
    state = opened.state
    relations = {name: known.relation for name in task.sources if (known := store.collection(name))}
    recorded = arrived_places(state.places, state.positions)
    positions = current_positions(task.inputs, task.tick, state.positions, recorded, relations)
    former = current_places(task.inputs, recorded, relations)
    places = {**former, **_places(task, opened.places, former, positions, relations)}
    refused = refused or opened.error
    unaccepted = None if is_accepted else refusal_of(task.name, opened.unaccepted, opened.reset)
    keeps = refused is not None or unaccepted is not None  # if the edit is undone, all unread history is still there
    if opened.renamed is not None and not keeps:
        store.note_task(opened.capability, opened.renamed)
    histories = acquire_inputs(store, task, positions, opened.capability, places, keeps=keeps)
    upper = opened.capability.frontiers.get(task.name, max(positions.values(), default=BEGINNING))
    edits = (*opened.edits, *(edit.remembered(upper, opened.reset) for edit in opened.unaccepted))
    if unaccepted is not None and refused is None:
        beginning = Beginning(error=unaccepted, is_per_input=opened.is_per_input)
    else:
        error = (
            refused
            or error_of_reread(store, task, former, positions, relations)
            or lost(task.name, task.inputs, task.tick, positions, histories, reset=opened.reset)
        )
        new = [spec for spec in task.inputs if state.positions and spec.state_key not in positions]
        beginning = Beginning(
            again=() if error else tuple(new),
            compacted=() if error else tuple(_compacted(store, task, positions, histories)),
            edits=tuple(edit for edit in edits if edit not in state.edits),
            error=error,
            is_per_input=opened.is_per_input,
            is_accepted=bool(opened.unaccepted),
        )
    is_edited = (opened.fingerprints, edits) != (state.fingerprints, state.edits)
    # without this condition: the task has derived no documents, and may be edited again
    if is_edited and beginning.error is None:
        store.note_task(opened.capability, Edited(opened.fingerprints, edits))
    checkpoint = Checkpoint(positions, places, state.shards, state.tokens, state.home, state.chains)
    return opened.capability, checkpoint, beginning


def _compacted(
    store: Runnable, task: TaskSpec, positions: Mapping[str, int], histories: Mapping[str, KeptHistory]
) -> Iterator[tuple[InputSpec, int]]:
    """Yield the inputs that begin with compacted documents; a new table has no documents before its `since`."""
    for spec, since in compacted(task.inputs, task.tick, positions, histories):
        segments = store.segments(task.sources[spec.source], spec.selector, BEGINNING)
        if any(segment.clock_min < since for segment in segments):
            yield spec, since


def error_of_reread(
    store: Maintainable | Runnable,
    task: TaskSpec,
    former: Mapping[str, Place],
    positions: Mapping[str, int],
    relations: Mapping[str, int],
) -> FlowError | None:
    """Return the error of an input whose `backfill` was raised after its source was replaced by another relation."""
    for spec in task.inputs:
        read = [
            place.relation
            for key, place in former.items()
            if binding_of(key) == spec.name and place.source == spec.source and place.relation and key in positions
        ]
        is_known = spec.state_key in positions or relations.get(spec.source) in read
        if read and not is_known and not store.replaces_nothing(spec.source, read[-1]):
            error = replaced(store, task, spec, read[-1])
            error.hint = f"restore the former 'backfill'{spec.follows * ' to follow'}; {error.hint}"
            return error
    return None


def _places(
    task: TaskSpec,
    opened: Mapping[str, Place],
    former: Mapping[str, Place],
    positions: Mapping[str, int],
    relations: Mapping[str, int],
) -> dict[str, Place]:
    """Return the place of each input: the relation that it has read, or the present relation of its source's name."""
    places = {}
    for spec in task.inputs:
        place, before = opened[spec.state_key], former.get(spec.state_key)
        if spec.state_key in positions and before is not None and before.relation:
            places[spec.state_key] = place._replace(relation=before.relation, switch=before.switch)
        else:
            places[spec.state_key] = place._replace(relation=relations.get(spec.source, 0))
    return places
