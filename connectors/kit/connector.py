"""Protocols that a materialize connector implements, and the installed connectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from connectors.kit.requests import (
    Application,
    Applied,
    ConnectorSpec,
    DriverCheckpoint,
    Opening,
    StoredRows,
    ValidatedBinding,
    Validation,
    Value,
)
from derive.errors import TaskError, suggest
from derive.protocol.entry_points import entry_points_of, load

BEGIN_FROM_NOTHING = b"\xf8\xff\xff\xff\x0f\x01"
"""The checkpoint with which a session lets the runtime start from nothing, without its recorded positions."""


class Session(Protocol):
    """One stream of transactions over a range of keys, with its resources of the endpoint.

    The calls of a transaction are `load` (any number of times), `loaded`, `prepare`, `store` (any number of times), and
    `commit`. No two methods run at the same time, with one exception: `load` of the next transaction may be called
    while `commit` runs in another thread.
    """

    @property
    def checkpoint(self) -> bytes:
        """Return the last committed checkpoint, as passed to `prepare`; empty if the endpoint stores no checkpoints."""

    def load(self, binding: int, keys: Sequence[tuple[Value, ...]]) -> None:
        """Request the documents of keys; `loaded` returns the existing documents.

        Args:
            binding: index of a binding without delta updates.
            keys: values of the key's fields. A key occurs once in a transaction, and not in the transaction that is
                being committed.
        """

    def loaded(self) -> Iterator[tuple[int, Sequence[bytes]]]:
        """Return the documents of the requested keys as JSON: pairs of a binding's index and some of its documents.

        The method is called once in a transaction, after the commit of the previous transaction. Missing keys are
        skipped.
        """

    def prepare(self, flow_checkpoint: bytes) -> DriverCheckpoint | None:
        """Accept the checkpoint to commit with the rows of this transaction.

        Returns:
            A checkpoint that the runtime stores and passes to the next opening.
        """

    def store(self, binding: int, rows: StoredRows) -> None:
        """Store rows to insert, update or delete, each key once in a transaction."""

    def commit(self) -> None:
        """Commit the stored rows and the checkpoint atomically; the session can continue afterwards.

        Raises:
            FencedError: another session has opened for some of these keys.
        """

    def close(self) -> None:
        """Release all resources and roll back uncommitted work. Called once, also after an error."""


@runtime_checkable
class CancellableSession(Protocol):
    """An optional protocol of a session that can be cancelled when its stream ends."""

    def cancel(self) -> None:
        """Let a running operation fail, if possible. Called once, from another thread."""


@runtime_checkable
class RefillingSession(Protocol):
    """A protocol of sessions of connectors that refill, beside `Session`."""

    @property
    def contents(self) -> Sequence[str]:
        """Return for each binding the identity of the rows that the session loads and stores; see `Applied`."""


@runtime_checkable
class NarrowerSession(Protocol):
    """An optional protocol of sessions of endpoints that store checkpoints of split shards, beside `Session`."""

    @property
    def narrower(self) -> Sequence[bytes]:
        """Return the last committed checkpoint of each range that is strictly within the session's range of keys.

        The runtime refuses to continue if the rows of these ranges are newer than its own data. The first commit of the
        session deletes the checkpoints.
        """


class MaterializeConnector(Protocol):
    """A kind of endpoint. Methods may be called from several threads at once."""

    @property
    def name(self) -> str:
        """Return the connector's name, for example `materialize-sqlite`."""

    def spec(self) -> ConnectorSpec:
        """Return the schemas of the connector's configuration."""

    def validate(self, request: Validation) -> Sequence[ValidatedBinding]:
        """Return the endpoint's constraints for the fields of each binding, in the order of the bindings.

        Raises:
            FlowError: the endpoint cannot be reached, or cannot store the bindings.
        """

    def apply(self, request: Application) -> str | Applied:
        """Prepare the endpoint, or plan its preparation; a second call does nothing.

        Returns:
            A description of the changes made or planned, for people; empty without changes. A connector that refills
            returns `Applied`.

        Raises:
            FlowError: the endpoint cannot be prepared.
        """

    def open(self, opening: Opening) -> Session:
        """Open a session, and fence all open sessions for any of its keys.

        Raises:
            FlowError: the endpoint cannot be reached, or is not prepared.
        """


ENTRY_POINTS = "derive.materialize"
"""Entry point group; each entry names a class that implements `MaterializeConnector` and takes no arguments."""


def installed_materialize_connectors() -> dict[str, str]:
    """Return the sorted names of the installed connectors, with their classes (`module:Class`)."""
    return dict(sorted(entry_points_of(ENTRY_POINTS).items()))


def find_materialize_connector(name: str) -> MaterializeConnector:
    """Return the connector with this name.

    Raises:
        TaskError: the connector is not installed, or cannot be loaded.
    """
    entries = installed_materialize_connectors()
    if name not in entries:
        guess = suggest(name, entries)
        hint = f"did you mean '{guess}'?" if guess else f"installed: {', '.join(entries) or 'none'}"
        raise TaskError(f"no materialize connector '{name}' is installed", hint=hint)
    try:
        connector: MaterializeConnector = load(entries[name])()
    except Exception as exc:
        raise TaskError(f"the materialize connector '{name}' ({entries[name]}) cannot be loaded: {exc!r}") from exc
    return connector
