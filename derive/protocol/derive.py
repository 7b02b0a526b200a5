"""The derive protocol: what the runtime asks of a connector.

A connector is stateless and makes sessions; a session serves one shard through one transaction. A session is handed
batches, not documents: crossing a process or a statement boundary once per document is what makes runtimes slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from derive.document.columns import Columns
from derive.errors import Issue
from derive.position import Position
from derive.protocol.specs import JSON, DerivationSpec, Document

if TYPE_CHECKING:
    import apsw
    import numpy as np

Level: TypeAlias = Literal["debug", "info", "warn", "error"]

Log: TypeAlias = Callable[[Level, str], None]
"""Takes what lambdas say, for the log of their task."""

Causes: TypeAlias = "Sequence[int] | np.ndarray"
"""For each published document, the place in a batch of the document that caused it."""

STATE_TABLES = frozenset({"flow_shard"})
"""Tables of a shard's database that are the runtime's own: a connector keeps lambdas away from them."""


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Source documents in processing order; the four sequences run in parallel.

    Attributes:
        transforms: index of the transform that reads each document; behind the last index, where a session asks for it,
            the end of a tick, whose clock is the last of the tick and whose document is empty.
        clocks: adjusted clock, microseconds: the time that `now` means to a lambda.
        published: the document's own clock, microseconds, which `flow_published_at` shows.
        documents: parsed and valid under their source's read schema; not to be modified. With `fields`, each is looked
            for when it is asked for, which takes long: for messages.
        fields: if the connector reads fields (`ReadsFields`) and they can be had without documents: for each transform,
            for each field in the order it gave, the values of the transform's own documents, in order. In place of a
            value that a document lacks there is the schema's default, or None.
        written: gives a part of the documents as the text of a JSON array, if they are at hand like that. A connector
            that only sends them on need not have them parsed, which is done when the first of `documents` is asked for.
    """

    transforms: Sequence[int]
    clocks: Sequence[int]
    published: Sequence[int]
    documents: Sequence[Document]
    fields: Sequence[Sequence[Sequence[JSON]]] | None = None
    written: Callable[[slice], bytes] | None = None


class DeriveSession(Protocol):
    """One shard's lambdas, open over its state for one transaction."""

    @property
    def flushes(self) -> bool:
        """Whether batches must also tell it the end of each tick in which there were documents."""

    def invoke(self, batch: ReadBatch) -> Iterator[tuple[int, Document]]:
        """Run the lambdas over a batch, in order.

        Yields `(index, document)` for each published document, where `index` is the place in the batch of the
        document that caused it; indexes never decrease. The batch is done when the iterator ends.

        Raises:
            LambdaError: a lambda failed; it names the transform, the place in its code, and the document.
        """

    def prepare_commit(self) -> None:
        """Write what the next session must know into the state database, inside its open transaction."""

    def close(self) -> None:
        """Release everything. Called once, also after an error."""


@dataclass(frozen=True, slots=True)
class PublishedColumns:
    """Documents that were published and have the same properties, in order.

    Attributes:
        causes: for each, the place in the batch of the document that caused it; these never decrease.
        columns: the documents; values are those of JSON.
    """

    causes: Causes
    columns: Columns


@dataclass(frozen=True, slots=True)
class PublishedDocuments:
    """Documents that were published and may differ in their properties, in order.

    Attributes:
        causes: for each, the place in the batch of the document that caused it; these never decrease.
        documents: at least one.
    """

    causes: Causes
    documents: Sequence[Document]


@runtime_checkable
class ColumnSession(Protocol):
    """What a session may do besides: publish many documents at once, which costs less than one by one."""

    def invoke_columns(self, batch: ReadBatch) -> Iterator[PublishedColumns | PublishedDocuments] | None:
        """Run the lambdas over a batch, as `invoke` does, and publish the same documents.

        Returns:
            What they publish, some thousand documents at a time; None, and nothing is run, if `invoke` is to do it.

        Raises:
            LambdaError: a lambda failed.
        """


@dataclass(frozen=True, slots=True)
class SharedCode:
    """Code of a derivation that all of its transforms share, such as a module.

    Attributes:
        name: what messages call it, such as `module`.
        text: all of it, files that it imports included: it changes when what the code does is edited.
        position: where it is written.
    """

    name: str
    text: str
    position: Position


class DeriveRuntime(Protocol):
    """What a language does for tasks that run, and for their shards."""

    def open(self, spec: DerivationSpec, database: apsw.Connection, log: Log) -> DeriveSession:
        """A session over a shard's state.

        `database` is inside an open transaction, which the runtime commits or rolls back; the session must not end it.
        """

    def keeps_state(self, spec: DerivationSpec) -> bool:
        """Whether documents can meet one another in the state that the lambdas keep."""

    def shared_code(self, spec: DerivationSpec) -> SharedCode | None:
        """The code that is no single transform's; None if each transform's `script` is all there is."""

    def refusal(self, spec: DerivationSpec) -> Issue | None:
        """What the derivation asks for and its limits do not grant; None if it may run."""


@runtime_checkable
class ReadsFields(Protocol):
    """What a `DeriveRuntime` may fulfil as well: its lambdas name the fields that they need.

    Documents are then neither parsed nor moved where that can be helped. A connector that does not is given documents.
    """

    def fields_read(self, spec: DerivationSpec) -> Sequence[Sequence[str]] | None:
        """For each transform, all fields (names of projections of its source) that its lambda needs.

        None if lambdas need documents. It is asked before a session is open, on every worker, and must be the same.
        """
