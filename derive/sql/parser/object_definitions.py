"""Statements that define or drop functions, domains, schemas and sequences: objects without rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from derive.sql.parser.ast import QualifiedName, TypeName


@dataclass(frozen=True, slots=True)
class CreateFunction:
    """`CREATE [OR REPLACE] FUNCTION`, in SQL.

    Attributes:
        name: name of the function.
        arguments: name (None without one) and type of each argument.
        result: type of the value.
        body: text of the query, or of several statements.
        volatility: `i`, `s` or `v`, as PostgreSQL's catalogs have it.
        is_strict: whether the value is NULL if an argument is.
        or_replace: whether an existing function is replaced.
    """

    name: QualifiedName
    arguments: tuple[tuple[str | None, TypeName], ...]
    result: TypeName
    body: str
    volatility: str = "v"
    is_strict: bool = False
    or_replace: bool = False


@dataclass(frozen=True, slots=True)
class CreateDomain:
    """`CREATE DOMAIN`.

    Attributes:
        name: name of the domain.
        type: base type.
        checks: name (None without one) and text of each condition, in which `VALUE` is the value.
        default: text of the default; None without one.
        is_nullable: whether values may be NULL.
    """

    name: QualifiedName
    type: TypeName
    checks: tuple[tuple[str | None, str], ...] = ()
    default: str | None = None
    is_nullable: bool = True


@dataclass(frozen=True, slots=True)
class DropFunction:
    """`DROP FUNCTION`: names, each with the types of its arguments; None for a function of any arguments."""

    names: tuple[tuple[QualifiedName, tuple[TypeName, ...] | None], ...]
    if_exists: bool = False
    is_cascading: bool = False


@dataclass(frozen=True, slots=True)
class CreateSchema:
    """`CREATE SCHEMA name`."""

    name: str
    offset: int
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateSequence:
    """`CREATE SEQUENCE name options`, or the options of an identity column.

    Options that are not given are None. `type` is PostgreSQL's short name. `owner` has the parts of the name of the
    column of OWNED BY, or the one part `none`.
    """

    name: QualifiedName
    if_not_exists: bool = False
    type: str = "int8"
    start: int | None = None
    increment: int | None = None
    least: int | None = None
    most: int | None = None
    owner: tuple[str, ...] = ()


ObjectDefinition: TypeAlias = CreateFunction | DropFunction | CreateDomain | CreateSchema | CreateSequence
"""A statement that defines or drops an object without rows."""
