"""Transactors: process the documents that a task reads.

Every task reads its inputs as time allows, transaction after transaction, and resumes from its last checkpoint. Its
transactor processes the documents of a transaction and writes the results. A derivation, for example, runs lambdas and
publishes to a collection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from derive.engine.edits import Unaccepted
from derive.engine.transaction import Prepared, Transaction
from derive.errors import FlowError
from derive.protocol.specs import CollectionSpec, InputSpec
from derive.storage.capability.table import TaskCapability
from derive.storage.metadata.descriptions import Edit, TaskCommit, TaskState
from derive.time.extent import Limits, Size
from derive.time.positions import Place


class TaskSpec(Protocol):
    """The common properties of all tasks."""

    @property
    def name(self) -> str:
        """Return the name, which is unique among all tasks."""

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """Return the inputs, in catalog order."""

    @property
    def sources(self) -> Mapping[str, CollectionSpec]:
        """Return each source collection, by name."""

    @property
    def tick(self) -> int:
        """Return the length of a tick, microseconds."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A task whose earlier runs are fenced.

    Attributes:
        capability: the capability to run it, and to write for it.
        state: its recorded state.
        places: for each input (by `state_key`), the relation that its position refers to from now on.
        fingerprints: fingerprints of its parts, as in `TaskState`.
        edits: edits of its parts, as in `TaskState`.
        error: the error that prevents all transactions, if there is one.
        unaccepted: edits that wait to be accepted.
        reset: the command that starts it over.
        is_per_input: whether inputs are independent, and each advances with its own source.
    """

    capability: TaskCapability
    state: TaskState
    places: Mapping[str, Place]
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    edits: tuple[Edit, ...] = ()
    error: FlowError | None = None
    unaccepted: tuple[Unaccepted, ...] = ()
    reset: str = ""
    is_per_input: bool = False


class Transactor(Protocol):
    """Processes the documents of one task."""

    @property
    def spec(self) -> TaskSpec:
        """Return the task."""

    @property
    def has_to_execute(self) -> bool:
        """Return whether the next transaction must be executed even if it has no documents, and only time moves."""

    @property
    def refills(self) -> Mapping[str, int]:
        """Return, for each refilled input (by `state_key`), the adjusted timestamp at which the refill is complete."""

    def open(self, *, if_free: bool = False) -> Opened:
        """Fence earlier runs of the task, which then cannot commit, and remove their uncommitted files.

        Args:
            if_free: whether to fail if another process runs it.

        Raises:
            FencedError: another process runs the task, and `if_free` is true.
        """

    def prepare(self, waiting: Size, shards: int, limits: Limits) -> Limits:
        """Prepare for a transaction with documents.

        Args:
            waiting: approximate size of the pending documents, of which the transaction reads what its limits allow.
            shards: number of the task's shards.
            limits: limits for cutting its work.

        Returns:
            Limits to use, within the given ones.
        """

    def execute(self, transaction: Transaction, progress: Callable[[int], None]) -> Prepared:
        """Execute a transaction up to its commit.

        Args:
            transaction: the transaction.
            progress: called from time to time with the number of processed documents.

        Raises:
            LostError: workers were lost; with fewer documents the transaction may succeed.
            FlowError: the transaction failed.
        """

    def commit(self, transaction: Transaction, prepared: Prepared, commit: TaskCommit) -> TaskCapability:
        """Commit the prepared work together with the task's progress.

        Args:
            transaction: the transaction.
            prepared: its result; empty if only time has moved.
            commit: the task's progress.

        Returns:
            The new capability to run the task.

        Raises:
            FencedError: another run has fenced this run.
        """

    def cancel(self) -> None:
        """Make running transactions in other threads fail."""
