"""The progress of time for derivations without documents, in one commit for all.

Readers of a derived collection need its `upper` to follow the present, even if nothing is derived. An idle run of many
tasks would otherwise commit for each of them, again and again. Such a commit has no effect on documents, so its tasks
need not be those of one cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from derive.engine.derivation import Derivation
from derive.engine.inputs import Inputs
from derive.engine.task import Task
from derive.engine.transactor import NO_PHASES, Checkpoint, Committed, Prepared, Transaction
from derive.storage.metadata.descriptions import TaskMove
from derive.storage.roles import Runnable
from derive.time.extent import Limits


@dataclass(frozen=True, slots=True)
class Idle:
    """A derivation without documents at one look.

    Attributes:
        task: the task.
        inputs: its inputs.
        checkpoint: its checkpoint after the move; None if it is up to date.
        transaction: the transaction of the move; None if it is up to date.
        move: the move; None if it is up to date.
    """

    task: Task
    inputs: Inputs
    checkpoint: Checkpoint | None = None
    transaction: Transaction | None = None
    move: TaskMove | None = None

    @property
    def upper(self) -> int:
        """Return the `upper` of the derivation after the move."""
        name = self.task.spec.name
        updates = self.move.updates if self.move else ()
        return max([self.task.upper, *(update.frontier for update in updates if update.collection == name)])


def find_idle(task: Task, moved: Mapping[str, int], now: int) -> Idle | None:
    """Return a derivation if it has no documents that are due; None for a task that needs a transaction of its own.

    Args:
        task: the task, which is on no cycle.
        moved: uppers of derivations after the moves of the same commit, by name.
        now: timestamp up to which the sources are sealed.

    Raises:
        FlowError: a source cannot be read.
    """
    derivation = task.transactor
    if not isinstance(derivation, Derivation) or derivation.has_to_execute:
        return None
    inputs = task.look(raised=moved)
    step = task.next_step(inputs, now, now)
    if step is None:
        return Idle(task, inputs)
    if step.has_documents:
        return None
    transaction = task.begin(inputs, step.behind, step.bound, Limits())
    keys = [task.spec.inputs[read.index].state_key for read in transaction.reads]
    checkpoint = transaction.checkpoint.moved(dict.fromkeys(keys, step.bound))
    commit = derivation.recorded(transaction, task.commit_of(checkpoint, Prepared()))
    upper = max(transaction.capability.frontiers[task.spec.name], step.bound)
    move = TaskMove(transaction.capability, commit, derivation.updates(Prepared(), upper))
    return Idle(task, inputs, checkpoint, transaction, move)


def commit_idle(store: Runnable, idle: Iterable[Idle]) -> dict[str, Committed]:
    """Commit the moves of derivations, and return the committed moves by task.

    Raises:
        FencedError: another run has fenced one of the tasks; nothing was committed.
    """
    moving = [(one.task, one.move, one.checkpoint, one.transaction) for one in idle]
    moves = [move for _, move, _, _ in moving if move is not None]
    if not moves:
        return {}
    capabilities = iter(store.commit_tasks(moves))
    return {
        task.spec.name: task.moved(next(capabilities), checkpoint, Prepared(), transaction.reads, NO_PHASES)
        for task, move, checkpoint, transaction in moving
        if move is not None and checkpoint is not None and transaction is not None
    }
