"""Syntax trees of the statements that begin, end and divide transactions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from derive.sql.parser.ast import QualifiedName


@dataclass(frozen=True, slots=True)
class TransactionModes:
    """Modes of a transaction; None for an unspecified mode. `isolation` is in lower case, such as `serializable`."""

    isolation: str | None = None
    is_read_only: bool | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    """`BEGIN` and `START TRANSACTION`; `tag` is the command tag."""

    modes: TransactionModes = TransactionModes()
    tag: str = "BEGIN"


@dataclass(frozen=True, slots=True)
class Commit:
    """`COMMIT` and `END`."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """`ROLLBACK` and `ABORT`."""


@dataclass(frozen=True, slots=True)
class SetSavepoint:
    """`SAVEPOINT name`."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class ReleaseSavepoint:
    """`RELEASE [SAVEPOINT] name`."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class RollbackTo:
    """`ROLLBACK TO [SAVEPOINT] name`."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class SetTransaction:
    """`SET TRANSACTION …`, or `SET SESSION CHARACTERISTICS AS TRANSACTION …`."""

    modes: TransactionModes
    is_session: bool = False


@dataclass(frozen=True, slots=True)
class SetConstraints:
    """`SET CONSTRAINTS ALL | names DEFERRED | IMMEDIATE`; `names` is None for all."""

    names: tuple[QualifiedName, ...] | None
    is_deferred: bool


TransactionStatement: TypeAlias = (
    Begin | Commit | Rollback | SetSavepoint | ReleaseSavepoint | RollbackTo | SetTransaction | SetConstraints
)
"""A statement that begins, ends or divides a transaction."""
