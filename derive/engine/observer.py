"""Observers: who is told what a run does."""

from __future__ import annotations

from typing import Protocol

from derive.engine.transaction import Committed
from derive.errors import FlowError


class Observer(Protocol):
    """Is told what a run does."""

    def working(self, task: str, documents: int) -> None:
        """A transaction of `task` has processed this many documents so far; it begins with 0."""

    def committed(self, task: str, done: Committed) -> None:
        """The transaction is committed; it did not begin if there were no documents, and only time moved."""

    def failed(self, task: str, error: FlowError) -> None:
        """The task stopped."""


class Silent:
    """An observer that is not interested."""

    def working(self, task: str, documents: int) -> None:
        """Ignore it."""

    def committed(self, task: str, done: Committed) -> None:
        """Ignore it."""

    def failed(self, task: str, error: FlowError) -> None:
        """Ignore it."""
