"""Queries as they were written. Every node has an `offset` into the statement, in characters from 0 on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from derive.sql.parser.ast import (
    FunctionCall,
    QualifiedName,
    SortItem,
    SyntaxNode,
    WindowDefinition,
)


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name of a relation, and of its first columns."""

    name: str
    columns: tuple[str, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class RelationReference:
    """A relation by its name."""

    name: QualifiedName
    alias: Alias | None
    offset: int


@dataclass(frozen=True, slots=True)
class DerivedTable:
    """A query in FROM; a lateral one may refer to what stands on its left."""

    query: Query
    is_lateral: bool
    alias: Alias | None
    offset: int


@dataclass(frozen=True, slots=True)
class FunctionTable:
    """A call in FROM of a function that returns rows."""

    call: FunctionCall
    has_ordinality: bool
    alias: Alias | None
    offset: int


class JoinKind(Enum):
    """How two relations are joined."""

    CROSS = "CROSS"
    INNER = "INNER"
    LEFT = "LEFT"
    RIGHT = "RIGHT"
    FULL = "FULL"


@dataclass(frozen=True, slots=True)
class JoinedTable:
    """Two relations joined.

    Attributes:
        kind: how.
        left: the first.
        right: the second.
        condition: behind ON.
        using: names of columns, each with its offset; None if USING was not written.
        is_natural: whether the names are those that both have.
        alias: of the join in parentheses.
        offset: of the join's keyword.
    """

    kind: JoinKind
    left: FromItem
    right: FromItem
    condition: SyntaxNode | None
    using: tuple[tuple[str, int], ...] | None
    is_natural: bool
    alias: Alias | None
    offset: int


FromItem: TypeAlias = RelationReference | DerivedTable | FunctionTable | JoinedTable
"""What stands in FROM."""


@dataclass(frozen=True, slots=True)
class SelectItem:
    """A column of a result; its name if one was written."""

    expression: SyntaxNode
    name: str | None
    offset: int


@dataclass(frozen=True, slots=True)
class Groups:
    """What is behind GROUP BY.

    Attributes:
        nodes: what rows are grouped by.
        sets: those that they are grouped by one after the other; empty for all at once.
        is_distinct: whether equal sets count once.
    """

    nodes: tuple[SyntaxNode, ...]
    sets: tuple[tuple[SyntaxNode, ...], ...] = ()
    is_distinct: bool = False


@dataclass(frozen=True, slots=True)
class Select:
    """`SELECT … FROM … WHERE … GROUP BY … HAVING … WINDOW …`.

    Attributes:
        items: columns of the result.
        is_distinct: whether every row is wanted once.
        distinct_on: expressions of which every combination is wanted once; empty for none.
        tables: behind FROM.
        condition: behind WHERE.
        groups: behind GROUP BY; None if it was not written.
        having: behind HAVING.
        windows: named ones.
        offset: where it begins.
    """

    items: tuple[SelectItem, ...]
    is_distinct: bool
    distinct_on: tuple[SyntaxNode, ...]
    tables: tuple[FromItem, ...]
    condition: SyntaxNode | None
    groups: Groups | None
    having: SyntaxNode | None
    windows: tuple[tuple[str, WindowDefinition], ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Values:
    """`VALUES (…), (…)`."""

    rows: tuple[tuple[SyntaxNode, ...], ...]
    offset: int


@dataclass(frozen=True, slots=True)
class SetQuery:
    """`left UNION [ALL] right`, and so with EXCEPT and INTERSECT; `operator` in capitals."""

    operator: str
    is_all: bool
    left: QueryBody
    right: QueryBody
    offset: int


@dataclass(frozen=True, slots=True)
class CommonTable:
    """A query that WITH names."""

    name: str
    columns: tuple[str, ...]
    query: Query
    offset: int


@dataclass(frozen=True, slots=True)
class With:
    """`WITH [RECURSIVE] …`."""

    common_tables: tuple[CommonTable, ...] = ()
    is_recursive: bool = False


NO_WITH = With()


@dataclass(frozen=True, slots=True)
class Query:
    """A query with what stands around it.

    Attributes:
        body: what gives rows.
        common_tables: behind WITH.
        is_recursive: whether behind WITH RECURSIVE.
        order: behind ORDER BY.
        limit: how many rows at most; None for all.
        limit_offset: after how many, behind OFFSET.
        offset: where it begins.
    """

    body: QueryBody
    common_tables: tuple[CommonTable, ...]
    is_recursive: bool
    order: tuple[SortItem, ...]
    limit: SyntaxNode | None
    limit_offset: SyntaxNode | None
    offset: int


QueryBody: TypeAlias = Select | Values | SetQuery | Query
"""What gives the rows of a query; a `Query` here stands in parentheses."""
