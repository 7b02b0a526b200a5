"""Observers: receive the events of a run."""

from __future__ import annotations

from typing import Protocol

from derive.engine.transaction import Committed
from derive.errors import FlowError


class Observer(Protocol):
    """Receives the events of a run."""

    def working(self, task: str, documents: int) -> None:
        """A transaction of `task` has processed this many documents so far; the first call has 0."""

    def committed(self, task: str, done: Committed) -> None:
        """The transaction is committed; without documents, only time moved and `working` was not called."""

    def failed(self, task: str, error: FlowError) -> None:
        """The task stopped."""


class SilentObserver:
    """An observer that ignores events."""

    def working(self, task: str, documents: int) -> None:
        """Ignore it."""

    def committed(self, task: str, done: Committed) -> None:
        """Ignore it."""

    def failed(self, task: str, error: FlowError) -> None:
        """Ignore it."""
