"""The rule for more shards, and the advice to a person.

A task is far behind if its due documents would take minutes at its present rate. Documents that wait for a read delay
or for the end of their tick are not due, so they never cause a split. A split is permanent and copies the state, so the
rule has hysteresis: a task must stay far behind for a minute, and a new split needs new measurements after a rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from derive.document.clock import format_duration
from derive.engine.transactor import TaskSpec
from derive.plural import counted
from derive.protocol.specs import DerivationSpec

_FAR_SECONDS, _NEAR_SECONDS = 120.0, 30.0
"""Seconds of due work from which a task is far behind, and up to which it is not behind."""

_OBSERVATIONS = 4
"""Number of observations of a task that is far behind before it is split; with `EVERY_SECONDS`, they take a minute."""

EVERY_SECONDS = 20.0
"""Interval between two observations, in seconds."""

_REST_SECONDS = 300.0
"""Rest after a split, in seconds: the first transactions with new shards are slower."""


def can_be_split(spec: TaskSpec, shards: int, most: int) -> bool:
    """Return whether twice as many shards would be useful and are allowed.

    The steps of a cycle are sequential, and most endpoints store the rows of all shards one after the other.
    """
    return isinstance(spec, DerivationSpec) and 2 * shards <= most and not any(read.feedback for read in spec.inputs)


def advise(task: str, shards: int, cores: int, due: int, rate: float | None) -> str | None:
    """Return the advice to split a task that is far behind; None for other tasks.

    >>> advise("acme/sums", 2, 8, 900_000, 1_500.0)
    'acme/sums needs about 10m for 900,000 due documents with its 2 shards, and this machine has 8 cores: more shards \
may help: flowctl split --task acme/sums --shards 4'
    >>> advise("acme/sums", 2, 8, 90_000, 1_500.0)

    Args:
        task: name of the task; `can_be_split` holds for it.
        shards: number of its shards.
        cores: number of cores.
        due: approximate number of documents that are due.
        rate: documents that it reads per second; None if unknown.
    """
    if not rate or due / rate < _FAR_SECONDS:
        return None
    duration = format_duration(int(due / rate) * 1_000_000)
    has = f"with its {counted(shards, 'shard')}, and this machine has {cores} cores"
    command = f"flowctl split --task {task} --shards {2 * shards}"
    return f"{task} needs about {duration} for {counted(due, 'due document')} {has}: more shards may help: {command}"


@dataclass(slots=True)
class Pressure:
    """The observations of one task.

    Attributes:
        observed: time of the last observation; None before the first.
        documents: number of documents processed up to then.
        count: number of observations since the task is far behind.
        rests_until: time before which observations do not count.
    """

    observed: float | None = None
    documents: int = 0
    count: int = 0
    rests_until: float = 0.0

    def observe(self, now: float, due: int, documents: int) -> bool:
        """Take an observation; return whether the task needs more shards.

        Args:
            now: seconds.
            due: approximate number of documents that are due.
            documents: number of documents that the task has processed so far.
        """
        before, processed = self.observed, documents - self.documents
        self.observed, self.documents = now, documents
        if before is None or processed < 0 or now < self.rests_until:
            self.count = 0
            return False
        if due and not processed:  # in a long transaction: nothing is known
            return False
        seconds = due / processed * (now - before) if due else 0.0
        if seconds >= _FAR_SECONDS:
            self.count += 1
        elif seconds < _NEAR_SECONDS:
            self.count = 0
        return self.count >= _OBSERVATIONS

    def rest(self, now: float) -> None:
        """Ignore observations for some time, after a split."""
        self.count, self.rests_until = 0, now + _REST_SECONDS
