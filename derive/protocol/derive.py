"""The derive protocol: what the shard runtime asks of a connector, and how a connector is found.

A connector is stateless and makes sessions; a session serves one shard through one transaction. A session is handed
batches, not documents: crossing a process or a statement boundary once per document is what makes runtimes slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from derive.errors import Issue, TaskError
from derive.protocol.specs import JSON, DerivationSpec, Document, TransformSpec

if TYPE_CHECKING:
    import apsw

Level: TypeAlias = Literal["debug", "info", "warn", "error"]

Log: TypeAlias = Callable[[Level, str], None]
"""Takes what lambdas say, for the log of their task."""

ENTRY_POINTS = "derive.connectors"
"""Entry point group under which connectors are registered."""


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Source documents in processing order; the four sequences run in parallel.

    Attributes:
        transforms: index of the transform that reads each document; behind the last index, where a session asks for it,
            the end of a tick, whose clock is the last of the tick and whose document is empty.
        clocks: adjusted clock, microseconds: the time that `now` means to a lambda.
        published: the document's own clock, microseconds, which `flow_published_at` shows.
        documents: parsed and valid under their source's read schema; not to be modified.
    """

    transforms: Sequence[int]
    clocks: Sequence[int]
    published: Sequence[int]
    documents: Sequence[Document]


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


class ShuffleSession(Protocol):
    """A computed shuffle, which sees documents and no state."""

    def keys(self, batch: ReadBatch) -> list[tuple[JSON, ...]]:
        """The components of each document's shuffle key, of the types that the transform's shuffle says, or null.

        Raises:
            LambdaError: a document has no such key.
        """


class DeriveConnector(Protocol):
    """A language that lambdas are written in."""

    def check(self, spec: DerivationSpec) -> list[Issue]:
        """Everything wrong with the derivation's code that can be known without documents."""

    def open(self, spec: DerivationSpec, database: apsw.Connection, log: Log) -> DeriveSession:
        """A session over a shard's state.

        `database` is inside an open transaction, which the runtime commits or rolls back; the session applies
        migrations in it and must not end it.
        """

    def open_shuffle(self, spec: DerivationSpec, transform: TransformSpec) -> ShuffleSession:
        """The computed shuffle of a transform whose `shuffle.kind` is `lambda`."""


@cache
def find_connector(name: str) -> DeriveConnector:
    """The installed connector of this name.

    Raises:
        TaskError: none is installed.
    """
    found = entry_points(group=ENTRY_POINTS)
    for entry in found:
        if entry.name == name:
            connector: DeriveConnector = entry.load()()
            return connector
    known = ", ".join(sorted(each.name for each in found)) or "none"
    raise TaskError(f"no derive connector '{name}' is installed", hint=f"installed: {known}")
