"""Transactors: what is done with the documents that a task reads.

A task reads its inputs as time allows, transaction after transaction, and goes on from its last checkpoint; all of that
is the same for every task. What a transaction does with what is read, and where its results go, is its transactor's. A
derivation is one: it invokes lambdas, and publishes to a collection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from derive.engine.acceptance import Unaccepted
from derive.engine.transaction import Prepared, Transaction
from derive.errors import FlowError
from derive.protocol.specs import CollectionSpec, InputSpec
from derive.storage.metadata.capability import TaskCapability
from derive.storage.metadata.descriptions import Edit, TaskCommit, TaskState
from derive.time.limits import Limits, Size
from derive.time.positions import Place


class TaskSpec(Protocol):
    """What is known of every task, whatever it does with what it reads."""

    @property
    def name(self) -> str:
        """Unique among all tasks."""

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """What it reads, in catalog order."""

    @property
    def sources(self) -> Mapping[str, CollectionSpec]:
        """Each collection that it reads, by name."""

    @property
    def tick(self) -> int:
        """Length of its ticks, microseconds."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A task that has been taken over.

    Attributes:
        capability: the right to run it, and to write for it.
        state: what was known of it.
        places: for each input (by `state_key`), what its position is a position in from now on.
        fingerprints: of its parts, as in `TaskState`.
        edits: of its parts, as in `TaskState`.
        error: why nothing can be done for it, if nothing can.
        unaccepted: edits that wait to be accepted.
        reset: the command that starts it over.
        is_apart: its inputs have nothing to do with one another, and go on each as far as its own source is final.
    """

    capability: TaskCapability
    state: TaskState
    places: Mapping[str, Place]
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    edits: tuple[Edit, ...] = ()
    error: FlowError | None = None
    unaccepted: tuple[Unaccepted, ...] = ()
    reset: str = ""
    is_apart: bool = False


class Transactor(Protocol):
    """What is done with the documents of one task."""

    @property
    def spec(self) -> TaskSpec:
        """The task."""

    @property
    def has_to_execute(self) -> bool:
        """Whether the next transaction has to be executed even if it has no documents, and only time moves."""

    def open(self, *, if_free: bool = False) -> Opened:
        """Take the task over from whoever ran it, who can commit nothing more, and remove what that run has left.

        Args:
            if_free: only if nobody else runs it.

        Raises:
            FencedError: somebody else runs it, who is not to be superseded.
        """

    def prepare(self, waiting: Size, shards: int, limits: Limits) -> Limits:
        """Be ready to execute a transaction that has something to read.

        Args:
            waiting: about how much there is to read, of which the transaction covers what its limits allow.
            shards: how many the task has.
            limits: how its work may be cut.

        Returns:
            How its work is to be cut, which is within those limits.
        """

    def execute(self, transaction: Transaction, progress: Callable[[int], None]) -> Prepared:
        """Carry a transaction out, up to its commit.

        Args:
            transaction: what to do.
            progress: told now and then how many documents have been processed so far.

        Raises:
            LostError: workers were lost; with fewer documents it may succeed.
            FlowError: it failed.
        """

    def commit(self, transaction: Transaction, prepared: Prepared, commit: TaskCommit) -> TaskCapability:
        """Commit what was prepared, together with how far the task is.

        Args:
            transaction: what was done.
            prepared: what came of it; nothing, if only time has moved.
            commit: how far the task is.

        Returns:
            The right to run the task from here on.

        Raises:
            FencedError: another run has taken over.
        """

    def cancel(self) -> None:
        """Make transactions fail that are being executed in other threads."""
