"""What a materialize connector fulfils."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from connectors.kit.requests import (
    Application,
    ConnectorSpec,
    DriverCheckpoint,
    Opening,
    ValidatedBinding,
    Validation,
)
from connectors.kit.stored import StoredRows, Value

BEGIN_FROM_NOTHING = b"\xf8\xff\xff\xff\x0f\x01"
"""As a session's checkpoint: whatever the runtime knows, it is to begin from nothing."""


class Session(Protocol):
    """One stream of transactions over a range of keys, and whatever it holds of the endpoint.

    A transaction is `load` any number of times, `loaded`, `prepare`, `store` any number of times, and `commit`. No two
    methods run at the same time, with one exception: `load` of the next transaction may be called while `commit` is at
    work in another thread.
    """

    @property
    def checkpoint(self) -> bytes:
        """What was committed last, as it was given to `prepare`; empty if the endpoint keeps none, or has none."""

    def load(self, binding: int, keys: Sequence[tuple[Value, ...]]) -> None:
        """Take keys of which documents are wanted; what is there is given by `loaded`.

        Args:
            binding: its index; it does not have delta updates.
            keys: values of the key's fields. A key comes once a transaction, and is not of those being committed.
        """

    def loaded(self) -> Iterator[tuple[int, Sequence[bytes]]]:
        """The documents of the keys that were taken, as JSON: index of the binding, and some of its documents.

        It is called once a transaction, when the one before is committed. A key that is not there is passed over.
        """

    def prepare(self, flow_checkpoint: bytes) -> DriverCheckpoint | None:
        """Take the checkpoint that is to be committed with what will be stored.

        Returns:
            What the runtime shall keep and give back on the next opening.
        """

    def store(self, binding: int, rows: StoredRows) -> None:
        """Take rows to insert, update or delete, each key once a transaction."""

    def commit(self) -> None:
        """Commit what was stored and the checkpoint, both or neither; the session goes on afterwards.

        Raises:
            FencedError: another session has opened for these keys, or for some of them.
        """

    def close(self) -> None:
        """Release everything and roll back what is not committed. Called once, also after an error."""


@runtime_checkable
class CancellableSession(Protocol):
    """What a session may fulfil besides: it is told when its stream has ended, whatever it is doing."""

    def cancel(self) -> None:
        """Stop what is under way, if that can be stopped, by having it fail. Called from another thread, once."""


class MaterializeConnector(Protocol):
    """A kind of endpoint. Methods may be called from several threads at once."""

    @property
    def name(self) -> str:
        """What people call it, for example `materialize-sqlite`."""

    def spec(self) -> ConnectorSpec:
        """What it can be configured with."""

    def validate(self, request: Validation) -> Sequence[ValidatedBinding]:
        """What the endpoint, as it is now, asks of the fields of bindings, which is given in the order of these.

        Raises:
            FlowError: the endpoint cannot be reached, or cannot take the bindings.
        """

    def apply(self, request: Application) -> str:
        """Make the endpoint ready, or find out what that would take; doing it again does nothing.

        Returns:
            What was done or would be, for people; empty if that is nothing.

        Raises:
            FlowError: it cannot be done.
        """

    def open(self, opening: Opening) -> Session:
        """Open a session, and fence off those that are open for any of its keys.

        Raises:
            FlowError: the endpoint cannot be reached, or is not ready.
        """
