"""Interfaces through which planners of clauses reach the planners of queries and expressions that use them.

A query has expressions, and an expression may have a query. Modules that plan one kind of either take these interfaces,
so imports go one way: from `queries` to `expressions`, and from both to the modules for clauses and kinds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from derive.algebra.expression import Expression
from derive.algebra.relation import Relation
from derive.sql.parser.ast import Query, QueryBody, SyntaxNode, With
from derive.sql.planner.body import Body
from derive.sql.planner.coercion import Coercion, ParameterTypes
from derive.sql.planner.names import Names
from derive.sql.planner.scope import Frame


@dataclass(frozen=True, slots=True)
class CommonRelation:
    """A query that WITH names.

    Attributes:
        relation: its rows.
        names: of its columns.
        level: how many queries are around the one that defines it.
    """

    relation: Relation
    names: tuple[str, ...]
    level: int


class Queries(Protocol):
    """The planner of the queries of one statement.

    Attributes:
        names: resolves names of relations.
        parameters: types of `$1` and so on.
        coercion: casts values.
        common: queries that WITH has named so far, by name.
        recursions: numbers of recursive queries.
    """

    names: Names
    parameters: ParameterTypes
    coercion: Coercion
    common: Mapping[str, CommonRelation]
    recursions: Iterator[int]

    def plan(self, query: Query, parent: Frame | None, *, keeps_unknown: bool = False) -> Body:
        """Plan a query."""
        ...

    def subquery(self, query: Query, frame: Frame) -> Relation:
        """Plan a query inside of an expression of another one."""
        ...

    def define(self, common: With, parent: Frame | None) -> None:
        """Let names stand for the queries of WITH, from here on."""
        ...

    def unordered(self, body: QueryBody, parent: Frame | None, keeps_unknown: bool) -> Body:
        """Plan a query without WITH, ORDER BY and LIMIT."""
        ...

    def expressions(self, frame: Frame) -> Expressions:
        """Return the planner of the expressions of one query."""
        ...


class Expressions(Protocol):
    """The planner of the expressions of one query.

    Attributes:
        queries: plans subqueries.
        coercion: casts values.
        frame: resolves names of columns.
    """

    queries: Queries
    coercion: Coercion
    frame: Frame

    def plan(self, node: SyntaxNode) -> Expression:
        """Plan an expression; a literal or parameter may still be of the type `UNKNOWN`."""
        ...

    def boolean(self, node: SyntaxNode, clause: str) -> Expression:
        """Plan an expression that must be boolean."""
        ...

    def known(self, node: SyntaxNode) -> Expression:
        """Plan an expression; its type is text if nothing has decided it."""
        ...

    def operation(self, symbol: str, values: Sequence[Expression], offsets: Sequence[int], offset: int) -> Expression:
        """Apply an operator to planned operands."""
        ...
