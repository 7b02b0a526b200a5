"""Opening a task: it is taken over, and it is seen with what it begins."""

from __future__ import annotations

from derive.engine.checkpoint import Checkpoint
from derive.engine.rights import hold
from derive.engine.task import Beginning, Task
from derive.engine.transactor import Transactor
from derive.errors import FlowError
from derive.storage.metadata.descriptions import Edited
from derive.storage.roles import Runnable
from derive.time.limits import Limits
from derive.time.needs import compacted, lost
from derive.time.pace import Pace
from derive.time.positions import current_positions


def open_task(
    store: Runnable,
    transactor: Transactor,
    limits: Limits,
    refused: FlowError | None = None,
    *,
    if_free: bool = False,
) -> Task:
    """Take a task over: whoever ran it before can commit nothing more.

    Args:
        store: the data folder.
        transactor: what is done with the documents that the task reads.
        limits: how its work is cut.
        refused: why it cannot be run as it is defined now, if it cannot.
        if_free: only if nobody else runs it.

    Raises:
        FencedError: yet another run has taken it over meanwhile; or somebody runs it who is not to be superseded.
    """
    task = transactor.spec
    opened = transactor.open(if_free=if_free)
    state = opened.state
    positions = current_positions(task.inputs, task.tick, state.positions, state.places)
    rights = hold(store, task, positions, opened.capability)
    beginning = Beginning(
        again=tuple(spec for spec in task.inputs if state.positions and spec.state_key not in positions),
        compacted=tuple(compacted(task.inputs, positions, rights)),
        edits=tuple(edit for edit in opened.edits if edit not in state.edits),
        error=refused or opened.error or lost(task.name, task.inputs, task.tick, positions, rights),
        is_apart=opened.is_apart,
    )
    is_edited = (opened.fingerprints, opened.edits) != (state.fingerprints, state.edits)
    if is_edited and beginning.error is None:  # else nothing is derived by it, and it may be mended again
        store.note_task(opened.capability, Edited(opened.fingerprints, opened.edits))
    checkpoint = Checkpoint(positions, {**state.places, **opened.places}, state.shards, state.tokens)
    return Task(store, transactor, opened.capability, checkpoint, beginning, Pace(limits))
