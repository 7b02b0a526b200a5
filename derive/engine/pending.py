"""Pending documents: stored documents that a task cannot process yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from derive.engine.inputs import Inputs, look
from derive.engine.transactor import TaskSpec
from derive.errors import SegmentMissingError
from derive.storage.roles import Maintainable, Runnable
from derive.time.frontier import BEGINNING
from derive.time.positions import Place
from derive.time.source_read import Segment


@dataclass(frozen=True, slots=True)
class PendingDocuments:
    """Documents that one input of a task cannot process yet.

    Attributes:
        task: name of the task.
        transform: name of the input.
        delay: the input's read delay, microseconds.
        documents: number of documents; 0 if a refill has stored all documents, and ends at a later time.
        due: least adjusted timestamp among them; of a refill, the last one that it has to cover.
        behind: the failed or stopped task that they wait for, if there is one.
    """

    task: str
    transform: str
    delay: int
    documents: int
    due: int
    behind: str | None = None


def find_pending(
    store: Maintainable | Runnable,
    task: TaskSpec,
    positions: Mapping[str, int],
    places: Mapping[str, Place] | None = None,
    switched: Mapping[str, Sequence[Segment]] | None = None,
) -> list[PendingDocuments]:
    """Return the pending documents of each input of a task; arguments are as for `look`.

    Raises:
        SegmentError: a source's file cannot be read.
        SourceReplacedError: the name of a source stands for another relation than the one read so far.
    """
    while True:
        try:
            return _waiting_in(look(store, task, positions, places, switched), task, positions)
        except SegmentMissingError:
            if store.missing(task.sources):
                raise
            # A source was reset since it was looked up: try again.


def _waiting_in(inputs: Inputs, task: TaskSpec, positions: Mapping[str, int]) -> list[PendingDocuments]:
    waiting = []
    for spec in task.inputs:
        position = positions.get(spec.state_key, BEGINNING)
        if spec.index in inputs.others:
            waiting.append(PendingDocuments(task.name, spec.name, spec.read_delay, inputs.others[spec.index], position))
            continue
        due = inputs.earliest(spec, position)
        if due is not None:
            waiting.append(PendingDocuments(task.name, spec.name, spec.read_delay, inputs.pending(spec, position), due))
    return waiting


def find_blamed(stopped: Iterable[str], sources: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the tasks that cannot advance by themselves, each with the task that blocks it.

    Args:
        stopped: tasks that have failed or do not run; each blocks itself and its readers.
        sources: for every running task, the names of its sources.
    """
    blamed = {name: name for name in stopped}
    count = -1
    while count < len(blamed):
        count = len(blamed)
        for name, read in sources.items():
            held_by = [blamed[source] for source in read if source in blamed]
            if held_by:
                blamed.setdefault(name, held_by[0])
    return blamed
