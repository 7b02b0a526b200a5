"""The running statement, for functions: its context, and its cancellation.

SQLite checks for cancellation between steps of a statement, but not during a function.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from derive.algebra.types import Datum
from derive.errors import SqlError


class _Running(threading.local):
    """The cancellation check of each thread."""

    cancelled: Callable[[], bool] | None = None


_RUNNING = _Running()


def cancellation() -> SqlError:
    """Return the error of a cancelled statement."""
    return SqlError("57014", "canceling statement due to user request")


class running:  # noqa: N801 (it is called as a function; a generator would cost a look-up more)
    """A context in which the work of this thread can be cancelled."""

    __slots__ = ("_cancelled", "_outer")

    def __init__(self, cancelled: Callable[[], bool] | None) -> None:
        self._cancelled = cancelled
        self._outer: Callable[[], bool] | None = None

    def __enter__(self) -> None:
        self._outer, _RUNNING.cancelled = _RUNNING.cancelled, self._cancelled

    def __exit__(self, *_: object) -> None:
        _RUNNING.cancelled = self._outer


def check_cancelled() -> None:
    """Check that the running statement may continue.

    Raises:
        SqlError: the statement is cancelled (57014).
    """
    if _RUNNING.cancelled is not None and _RUNNING.cancelled():
        raise cancellation()


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CatalogObject:
    """A relation, an index or a function.

    Attributes:
        columns: names of its columns.
        definition: query of a view, or CREATE statement of an index or a function; None for others.
        comment: comment on it.
        is_visible: whether its name needs no schema.
        comments: comments on its columns.
        sequences: for each column, the full name of the sequence of its numbers; None for a column without one.
        arguments: names and types of the arguments of a function; None for others.
        result: type of a function's value.
    """

    columns: tuple[str, ...] = ()
    definition: str | None = None
    comment: str | None = None
    is_visible: bool = True
    comments: tuple[str | None, ...] = ()
    sequences: tuple[str | None, ...] = ()
    arguments: str | None = None
    result: str | None = None


class CatalogNames(Protocol):
    """Objects of PostgreSQL's catalogs by name and by oid."""

    def oid_of(self, kind: str, name: str) -> int | None:
        """Return the oid of a name as SQL writes it; None if no object has the name.

        Args:
            kind: name of a `reg…` type, such as `regclass`.
            name: the name, with or without a schema.
        """

    def name_of(self, kind: str, oid: int) -> str | None:
        """Return the quoted name of an object; None if no object has the oid.

        Args:
            kind: name of a `reg…` type; `role` for a role's name without quotes.
            oid: oid of the object.
        """

    def object_of(self, oid: int) -> CatalogObject | None:
        """Return a relation or an index; None if no such object has the oid."""


@dataclass(frozen=True, slots=True)
class StatementContext:
    """The context of a statement.

    Attributes:
        catalog: names of objects.
        setting: returns the value of a setting; None for an unknown setting.
        effect: executes a function with an effect on the session, and returns the function's value.
        process: number of the session.
        schemas: existing schemas of the search path.
    """

    catalog: CatalogNames
    setting: Callable[[str], str | None]
    effect: Callable[[str, tuple[Datum, ...]], Datum]
    process: int = 0
    schemas: tuple[str, ...] = ("public",)


class _Current(threading.local):
    """The context of each thread."""

    context: StatementContext | None = None


_CURRENT = _Current()


class in_context:  # noqa: N801 (it is called as a function)
    """A context manager that sets the statement's context of this thread."""

    __slots__ = ("_context", "_outer")

    def __init__(self, context: StatementContext) -> None:
        self._context = context
        self._outer: StatementContext | None = None

    def __enter__(self) -> None:
        self._outer, _CURRENT.context = _CURRENT.context, self._context

    def __exit__(self, *_: object) -> None:
        _CURRENT.context = self._outer


def each_in_context(context: StatementContext, items: Iterator[T]) -> Iterator[T]:
    """Yield the same items, each computed in a statement's context."""
    while True:
        with in_context(context):
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


def context_if_any() -> StatementContext | None:
    """Return the context of the running statement; None outside of statements."""
    return _CURRENT.context


def current_context() -> StatementContext:
    """Return the context of the running statement.

    Raises:
        SqlError: the expression is evaluated where no session is (0A000).
    """
    if _CURRENT.context is None:
        message = "functions of the session and of the system catalogs cannot be used here"
        raise SqlError("0A000", message, hint="Use them in a query.")
    return _CURRENT.context
