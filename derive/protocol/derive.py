"""The derive protocol between the runtime and a connector.

A connector is stateless and creates sessions; a session serves one shard for one transaction. A session receives
batches of documents, because a call of another process, or a statement, for each document would be slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, overload, runtime_checkable

from derive.document.columns import Columns
from derive.document.pointer import JSON
from derive.errors import Issue, LambdaError
from derive.position import Position
from derive.protocol.specs import DerivationSpec, Document

if TYPE_CHECKING:
    from pathlib import Path

    import apsw
    import numpy as np


Level: TypeAlias = Literal["debug", "info", "warn", "error"]

Log: TypeAlias = Callable[[Level, str], None]
"""A function that writes a message of a lambda to the task's log."""

Causes: TypeAlias = "Sequence[int] | np.ndarray"
"""Index in a batch of the causing document, for each published document."""


class Integers(Sequence[int]):
    """An array of integers, as a sequence for callers that want Python's integers. NumPy takes it without a copy.

    Args:
        array: the integers.
    """

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        listed: int | list[int] = self._array[index].tolist()
        return listed

    def __iter__(self) -> Iterator[int]:
        return iter(self[:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the array, for NumPy."""
        return self._array if dtype is None else self._array.astype(dtype, copy=bool(copy))


STATE_TABLES = frozenset({"flow_shard"})
"""Tables of the runtime in a shard's database, which a connector hides from lambdas."""


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Source documents in processing order; the four sequences are parallel.

    Attributes:
        transforms: index of the transform that reads each document. For a session that requests it, the index after the
            last transform marks the end of a tick, with the last timestamp of the tick and an empty document.
        clocks: adjusted timestamps, microseconds: the time `now` of a lambda.
        published: timestamps of the documents, microseconds: the field `flow_published_at`.
        documents: documents that are parsed and valid under their source's read schema; read-only. With `fields`, each
            access is slow, so only messages should use them.
        fields: for a connector that reads fields (`ReadsFields`), and if documents are not needed: for each transform,
            and then for each field in the connector's order, the values in the documents of the transform. A missing
            value is the schema's default, or None. For a connector that reads arrays (`ReadsArrays`), each field is an
            Arrow array, where a missing value is null, or a list if no array can hold its values; the other columns of
            the batch are `Integers` then.
        written: returns a slice of the documents as the text of a JSON array, if the text is available; None otherwise.
            With it, a connector that only forwards documents avoids the parsing, which the first access to `documents`
            causes.
    """

    transforms: Sequence[int]
    clocks: Sequence[int]
    published: Sequence[int]
    documents: Sequence[Document]
    fields: Sequence[Sequence[Sequence[JSON]]] | None = None
    written: Callable[[slice], bytes] | None = None


class DeriveSession(Protocol):
    """One shard's lambdas, with access to its state for one transaction."""

    @property
    def flushes(self) -> bool:
        """Return true if the session needs the end of each tick that has documents."""

    def invoke(self, batch: ReadBatch) -> Iterator[tuple[int, Document]]:
        """Run the lambdas over a batch, in order.

        Yields `(index, document)` for each published document, where `index` is the index of the causing document in
        the batch; indices never decrease. The batch is done when the iterator ends.

        Raises:
            LambdaError: a lambda failed; the error names the transform, the place in its code, and the document.
        """

    def prepare_commit(self) -> None:
        """Write the connector's state for the next session into the state database, inside its open transaction."""

    def close(self) -> None:
        """Release all resources; called once, also after an error."""


@dataclass(frozen=True, slots=True)
class PublishedColumns:
    """Published documents with the same properties, in order.

    Attributes:
        causes: index of the causing document in the batch, for each document; these never decrease.
        columns: the documents, with JSON values.
    """

    causes: Causes
    columns: Columns


@dataclass(frozen=True, slots=True)
class PublishedDocuments:
    """Published documents with possibly different properties, in order.

    Attributes:
        causes: index of the causing document in the batch, for each document; these never decrease.
        documents: the documents, at least one.
    """

    causes: Causes
    documents: Sequence[Document]


@runtime_checkable
class ColumnSession(Protocol):
    """Optional interface of a session: publish many documents at once, which is cheaper than one by one."""

    def invoke_columns(self, batch: ReadBatch) -> Iterator[PublishedColumns | PublishedDocuments] | None:
        """Run the lambdas over a batch, and publish the same documents as `invoke`.

        Returns:
            The published documents, some thousand at a time; None, before any lambda has run, to fall back to `invoke`.

        Raises:
            LambdaError: a lambda failed.
        """


@runtime_checkable
class RunsAhead(Protocol):
    """Optional interface of a session whose lambdas run in a process of their own.

    Within a batch, this process computes results while the runtime uses the results before them. Between batches it
    waits.
    """

    @property
    def batch_documents(self) -> int:
        """Return the number of documents up to which parts of the input are joined into one batch."""


@runtime_checkable
class RevertibleSession(Protocol):
    """Optional interface of a session: it undoes the work of documents, so that a failing document can be put aside."""

    def mark(self) -> None:
        """Remember the present state; called between batches."""

    def keep(self) -> None:
        """Keep the work since the mark."""

    def undo(self) -> None:
        """Return to the state at the mark, also after a lambda has failed.

        Raises:
            LambdaError: the lambdas cannot be prepared again.
        """


@dataclass(frozen=True, slots=True)
class SharedCode:
    """Code that all transforms of a derivation share, such as a module.

    Attributes:
        name: name for messages, such as `module`.
        text: complete text including imported files, which changes with the behaviour of the code.
        position: position in the catalog.
    """

    name: str
    text: str
    position: Position


class DeriveRuntime(Protocol):
    """The runtime side of a language, for running tasks and their shards."""

    def open(self, spec: DerivationSpec, database: apsw.Connection, log: Log) -> DeriveSession:
        """Return a session over a shard's state.

        `database` is inside an open transaction, which the runtime commits or rolls back; the session must not end it.
        """

    def keeps_state(self, spec: DerivationSpec) -> bool:
        """Return true if the lambdas keep state through which documents can affect one another."""

    def shared_code(self, spec: DerivationSpec) -> SharedCode | None:
        """Return the code that transforms share; None if each transform's `script` is complete."""

    def refusal(self, spec: DerivationSpec) -> Issue | None:
        """Return an issue if the derivation exceeds its limits; None otherwise."""


@runtime_checkable
class StartsAhead(Protocol):
    """Optional interface of a `DeriveRuntime` whose sessions use a process, which takes time to start."""

    def start_ahead(self, spec: DerivationSpec) -> None:
        """Start the process of the next session of a derivation, and do not wait until it is ready.

        If the process cannot be started, the session raises the error.
        """


@runtime_checkable
class ShipsLibraries(Protocol):
    """Optional interface of a `DeriveRuntime` whose derivations have libraries that workers of a cluster may lack."""

    def pack_libraries(self, spec: DerivationSpec) -> Path | None:
        """Return an archive of the libraries of a derivation; None if it has none of its own.

        Raises:
            TaskError: the libraries cannot be moved to other machines.
        """

    def unpack_libraries(self, spec: DerivationSpec, archive: Path) -> None:
        """Make the libraries of a derivation available on this machine, unless they are.

        Raises:
            TaskError: this machine cannot use the libraries.
        """


@runtime_checkable
class ReadsFields(Protocol):
    """Optional interface of a `DeriveRuntime` whose lambdas declare the fields that they need.

    If possible, the runtime then does not parse and move documents. Other connectors receive documents.
    """

    def fields_read(self, spec: DerivationSpec) -> Sequence[Sequence[str]] | None:
        """Return all fields (names of projections of the source) that each transform's lambda needs.

        Return None if lambdas need documents. Every worker calls this before it opens a session, and must get the same
        result.
        """


@runtime_checkable
class ReadsArrays(Protocol):
    """Optional interface of a `DeriveRuntime` whose lambdas take the fields of many documents as Arrow arrays."""

    def arrays_read(self, spec: DerivationSpec) -> Sequence[Sequence[str]] | None:
        """Return the fields that each transform's lambda needs, like `fields_read`."""


@runtime_checkable
class ExplainableSession(Protocol):
    """Optional interface of a session that describes its lambdas and its state, for explanations of documents."""

    def given(self, transform: int, document: Document, published: int) -> Mapping[str, Any]:
        """Return the values that the lambda of a transform takes from a document, by parameter.

        Args:
            transform: index of the transform.
            document: a source document.
            published: its timestamp, microseconds.
        """

    def copied(self, transform: int) -> Sequence[Mapping[str, str]] | None:
        """Return the properties of published documents that are copies of fields of the source document.

        Returns:
            For each statement that publishes, the field (name of a projection of the source) by property; an empty
            sequence if the transform publishes nothing; None if this is unknown.
        """

    def state(self) -> JSON:
        """Return the state that is in no table, in the form of a commit; None without such a state."""


@runtime_checkable
class StoresConfig(Protocol):
    """Optional interface of a `DeriveRuntime` whose configurations are stored, for replays under former configurations.

    Such a configuration is a frozen dataclass whose fields are JSON values, bytes, `Script`, or tuples, mappings and
    dataclasses of such values. Positions are not stored.
    """

    def config_type(self) -> type:
        """Return the dataclass of configurations."""


@runtime_checkable
class ShowsState(Protocol):
    """Optional interface of a `DeriveRuntime` whose state is not in tables of the catalog's author.

    Tables whose names begin with `flow_` are never shown.
    """

    def state_views(self) -> Mapping[str, str]:
        """Return a SELECT for each table to show, by name of the table; `{schema}` in it stands for a shard's database.

        The statement may fail if the shard has no state.
        """


@runtime_checkable
class DividesState(Protocol):
    """Optional interface of a `DeriveRuntime` that keeps state by shuffle key, which a split divides."""

    def divide_state(self, database: apsw.Connection, is_owned: Callable[[Sequence[JSON]], bool]) -> None:
        """Delete the state of keys of other shards from a copy of a shard's database, inside its transaction.

        Args:
            database: the copy of the database; it may be without tables of the connector.
            is_owned: returns true for the components of a shuffle key that the new shard owns.
        """


@runtime_checkable
class AppliesMigrations(Protocol):
    """Optional interface of a `DeriveRuntime` that applies migrations to the state of each shard."""

    def applied_migrations(self, database: apsw.Connection) -> tuple[str, ...]:
        """Return the texts of the migrations that were applied to a shard's state, in order."""

    def find_edited_migration(self, spec: DerivationSpec, applied: Sequence[str]) -> LambdaError | None:
        """Return the error of an applied migration that was edited, moved or removed; None without one."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch of a lambda, such as an arm of CASE.

    Attributes:
        number: number among the branches of the derivation.
        transform: index of the transform.
        position: position of its keyword.
        what: description of the branch that no document reaches, such as `WHERE is never true`.
    """

    number: int
    transform: int
    position: Position
    what: str


Reach: TypeAlias = Callable[[int], None]
"""A function that receives the number of a branch that a document reaches."""


@runtime_checkable
class MeasuresBranches(Protocol):
    """Optional interface of a `DeriveRuntime` that reports which branches of its lambdas documents reach."""

    def branches(self, spec: DerivationSpec) -> Sequence[Branch]:
        """Return the branches that `open_measured` reports."""

    def open_measured(self, spec: DerivationSpec, database: apsw.Connection, log: Log, reach: Reach) -> DeriveSession:
        """Open a session like `DeriveRuntime.open`, which publishes the same documents and reports branches."""
