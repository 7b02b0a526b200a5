"""Opening a task: it is taken over, and it is seen with what it begins."""

from __future__ import annotations

from derive.engine.acceptance import refusal_of
from derive.engine.checkpoint import Checkpoint
from derive.engine.rights import hold
from derive.engine.task import Beginning, Task
from derive.engine.transactor import Transactor
from derive.errors import FlowError
from derive.storage.metadata.descriptions import Edited
from derive.storage.roles import Runnable
from derive.time.frontier import BEGINNING
from derive.time.limits import Limits
from derive.time.needs import compacted, lost
from derive.time.pace import Pace
from derive.time.positions import current_places, current_positions


def open_task(
    store: Runnable,
    transactor: Transactor,
    limits: Limits,
    refused: FlowError | None = None,
    *,
    if_free: bool = False,
    is_accepted: bool = False,
) -> Task:
    """Take a task over: whoever ran it before can commit nothing more.

    Args:
        store: the data folder.
        transactor: what is done with the documents that the task reads.
        limits: how its work is cut.
        refused: why it cannot be run as it is defined now, if it cannot.
        if_free: only if nobody else runs it.
        is_accepted: edits of it that wait to be accepted are accepted.

    Raises:
        FencedError: yet another run has taken it over meanwhile; or somebody runs it who is not to be superseded.
    """
    task = transactor.spec
    opened = transactor.open(if_free=if_free)
    state = opened.state
    positions = current_positions(task.inputs, task.tick, state.positions, state.places)
    rights = hold(store, task, positions, opened.capability)
    upper = opened.capability.frontiers.get(task.name, max(positions.values(), default=BEGINNING))
    edits = (*opened.edits, *(edit.remembered(upper, opened.reset) for edit in opened.unaccepted))
    refused = refused or opened.error
    unaccepted = None if is_accepted else refusal_of(task.name, opened.unaccepted, opened.reset)
    if unaccepted is not None and refused is None:
        beginning = Beginning(error=unaccepted, is_apart=opened.is_apart)
    else:
        beginning = Beginning(
            again=tuple(spec for spec in task.inputs if state.positions and spec.state_key not in positions),
            compacted=tuple(compacted(task.inputs, positions, rights)),
            edits=tuple(edit for edit in edits if edit not in state.edits),
            error=refused or lost(task.name, task.inputs, task.tick, positions, rights),
            is_apart=opened.is_apart,
            is_accepted=bool(opened.unaccepted),
        )
    is_edited = (opened.fingerprints, edits) != (state.fingerprints, state.edits)
    if is_edited and beginning.error is None:  # else nothing is derived by it, and it may be mended again
        store.note_task(opened.capability, Edited(opened.fingerprints, edits))
    checkpoint = Checkpoint(
        positions, {**current_places(task.inputs, state.places), **opened.places}, state.shards, state.tokens
    )
    return Task(store, transactor, opened.capability, checkpoint, beginning, Pace(limits))
