"""Transactions of any task, and transactors, which process the documents that a task reads.

Every task reads its inputs as time allows, transaction after transaction, and resumes from its last checkpoint. Its
transactor processes the documents of a transaction and writes the results. A derivation, for example, runs lambdas and
publishes to a collection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from derive.engine.edits import Unaccepted
from derive.errors import FlowError
from derive.protocol.specs import CollectionSpec, InputSpec
from derive.storage.capability.table import TaskCapability
from derive.storage.metadata.chain import Chain, ChainMove, extended
from derive.storage.metadata.descriptions import Edit, Renamed, TaskCommit, TaskState, Work
from derive.time import BEGINNING
from derive.time.extent import Limits, Size
from derive.time.positions import Place, Segment, SourceRead


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The progress of a task, as of its last commit.

    Attributes:
        positions: for each input (by `state_key`), the adjusted timestamp before which all documents are processed.
        places: for each input (by `state_key`), the relation that its position refers to.
        shards: number of shards with the task's state.
        tokens: for each shard (by number), the name of the attempt whose state the shard must have.
        home: the task in whose folder the state is; empty for the task's own folder.
        chains: chain of the state of each shard (by number) whose state travels.
    """

    positions: Mapping[str, int]
    places: Mapping[str, Place]
    shards: int
    tokens: Mapping[int, str]
    home: str = ""
    chains: Mapping[int, Chain] = field(default_factory=dict)

    def position(self, spec: InputSpec) -> int:
        """Return the adjusted timestamp before which an input has processed all documents."""
        return self.positions.get(spec.state_key, BEGINNING)

    def after(self, taking_part: Sequence[InputSpec], end: int, prepared: Prepared) -> Checkpoint:
        """Return the checkpoint after a transaction.

        Args:
            taking_part: the inputs that the transaction has read.
            end: adjusted timestamp at which the transaction ended.
            prepared: the work of the transaction.
        """
        return self.moved({spec.state_key: end for spec in taking_part}, prepared)

    def moved(self, positions: Mapping[str, int], prepared: Prepared | None = None) -> Checkpoint:
        """Return the checkpoint after inputs have moved.

        Args:
            positions: new positions of the inputs.
            prepared: work with the states of shards; None for none.
        """
        moved = replace(self, positions={**self.positions, **positions})
        if prepared is None or not prepared.tokens:
            return moved
        chains = dict(self.chains)
        for shard in {*self.chains, *prepared.links} & prepared.tokens.keys():
            chains[shard] = extended(self.chains.get(shard, ()), prepared.links.get(shard, ()))
        chains = {shard: chain for shard, chain in chains.items() if chain}
        return replace(moved, tokens={**self.tokens, **prepared.tokens}, chains=chains)

    def chain_moves(self, prepared: Prepared) -> tuple[ChainMove, ...]:
        """Return the changes of the chains of shards by a transaction."""
        moves = []
        for shard in sorted({*self.chains, *prepared.links} & prepared.tokens.keys()):
            chain, links = self.chains.get(shard, ()), prepared.links.get(shard, ())
            moves.append(ChainMove(shard, len(extended(chain, links)) - len(links), links))
        return tuple(moves)


@dataclass(frozen=True, slots=True)
class Transaction:
    """One attempt at a transaction.

    Attributes:
        number: number of the attempt in this run of the task, from 1.
        token: unique name of the attempt; it begins with the identifier of the capability.
        capability: the capability to run the task, and to write for it.
        checkpoint: the checkpoint before the transaction.
        reads: one read of each input.
        end: adjusted timestamp at which the transaction ends, the end of a tick.
        limits: limits for cutting its work.
    """

    number: int
    token: str
    capability: TaskCapability
    checkpoint: Checkpoint
    reads: tuple[SourceRead, ...]
    end: int
    limits: Limits


@dataclass(frozen=True, slots=True)
class Prepared:
    """The work that an attempt has prepared, which takes effect with the commit.

    Attributes:
        documents_in: number of processed source documents.
        segments: written files.
        tokens: for each shard (by number) with new state, the name of the attempt that prepared this state.
        stored: number of documents stored outside the data folder.
        cleared: state keys of inputs that start again, because an endpoint has lost all of their rows.
        stepped_back: for each input (by state key) that rewinds because an endpoint has lost rows, its new position;
            such an attempt has no other work.
        rejected: written files of a derivation's quarantine.
        work: work of each lambda of a derivation, by state key of its transform.
        links: for each shard (by number) with new state that travels, the links that are added to its chain.
    """

    documents_in: int = 0
    segments: tuple[Segment, ...] = ()
    tokens: Mapping[int, str] = field(default_factory=dict)
    stored: int = 0
    cleared: tuple[str, ...] = ()
    stepped_back: Mapping[str, int] = field(default_factory=dict)
    rejected: tuple[Segment, ...] = ()
    work: Mapping[str, Work] = field(default_factory=dict)
    links: Mapping[int, Chain] = field(default_factory=dict)

    @property
    def documents_out(self) -> int:
        """Return the number of written documents, in segments and in endpoints."""
        return sum(segment.documents for segment in self.segments) + self.stored

    @property
    def bytes_out(self) -> int:
        """Return the number of bytes of the written segments."""
        return sum(segment.bytes for segment in (*self.segments, *self.rejected))


class Phases(NamedTuple):
    """The seconds of each phase of a transaction. Tasks of a cycle share the phases of their transaction.

    Attributes:
        plan: the look for work, and its division.
        execute: the work.
        commit: the commit.
    """

    plan: float
    execute: float
    commit: float


NO_PHASES = Phases(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed transaction.

    Attributes:
        documents_in: number of processed source documents.
        documents_out: number of published documents.
        seconds: duration of the work and the commit.
        bytes_in: approximate number of bytes read, as stored.
        bytes_out: bytes of the written segments.
        phases: duration of each phase.
    """

    documents_in: int
    documents_out: int
    seconds: float
    bytes_in: int = 0
    bytes_out: int = 0
    phases: Phases = NO_PHASES


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
        """Return the source collections, by name."""

    @property
    def tick(self) -> int:
        """Return the length of a tick, microseconds."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A task whose earlier runs are fenced.

    Attributes:
        capability: the capability to run the task, and to write its output.
        state: its recorded state.
        places: for each input (by `state_key`), the relation that its position refers to from now on.
        fingerprints: fingerprints of its parts, as in `TaskState`.
        edits: edits of its parts, as in `TaskState`.
        error: the error that prevents all transactions; None if missing.
        unaccepted: edits that wait to be accepted.
        renamed: new names of its parts, which `state` has already, and which are recorded unless the task stops; None
            for none.
        reset: the command that starts the task over.
        is_per_input: whether inputs are independent, and each advances with its own source.
    """

    capability: TaskCapability
    state: TaskState
    places: Mapping[str, Place]
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    edits: tuple[Edit, ...] = ()
    error: FlowError | None = None
    unaccepted: tuple[Unaccepted, ...] = ()
    renamed: Renamed | None = None
    reset: str = ""
    is_per_input: bool = False


class Transactor(Protocol):
    """Processes the documents of one task."""

    @property
    def spec(self) -> TaskSpec:
        """Return the task."""

    @property
    def has_to_execute(self) -> bool:
        """Return whether the next transaction must be executed even if it has no documents."""

    @property
    def refills(self) -> Mapping[str, int]:
        """Return, for each refilled input (by `state_key`), the adjusted timestamp at which the refill is complete."""

    def complete(self, positions: Mapping[str, int]) -> Collection[str]:
        """Return the inputs (by `state_key`) whose refills can replace their rows at the given positions."""

    @property
    def suspended(self) -> Collection[str]:
        """Return the inputs (by `state_key`) that are not read now, because of an error of the input alone."""

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
            waiting: approximate size of the pending documents; the transaction reads as many as its limits allow.
            shards: number of the task's shards.
            limits: limits for cutting its work.

        Returns:
            Limits to use; none is above the given limit.
        """

    def execute(self, transaction: Transaction, progress: Callable[[int], None]) -> Prepared:
        """Execute a transaction, without its commit.

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
            prepared: the result of the transaction; empty if only time has moved.
            commit: the task's progress.

        Returns:
            The new capability to run the task.

        Raises:
            FencedError: another run has fenced this run.
        """

    def cancel(self) -> None:
        """Make running transactions in other threads fail."""
