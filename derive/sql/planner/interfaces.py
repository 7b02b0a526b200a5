"""Interfaces between the planners of queries, expressions and clauses.

A query has expressions, and an expression may have a query. Planners of clauses take these interfaces, so imports go
one way: from `queries` to `expressions`, and from both to the planners of clauses.
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
    """A common table expression.

    Attributes:
        relation: its rows.
        names: names of its columns.
        level: number of queries around its definition.
    """

    relation: Relation
    names: tuple[str, ...]
    level: int


class Queries(Protocol):
    """The planner of the queries of one statement.

    Attributes:
        names: names of relations.
        parameters: types of `$1` and so on.
        coercion: casts of values.
        common: common table expressions so far, by name.
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
        """Plan a subquery of an expression."""
        ...

    def define(self, common: With, parent: Frame | None) -> None:
        """Define the common table expressions of WITH."""
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
        queries: planner of subqueries.
        coercion: casts of values.
        frame: columns in scope.
    """

    queries: Queries
    coercion: Coercion
    frame: Frame

    def plan(self, node: SyntaxNode) -> Expression:
        """Plan an expression; a literal or parameter may have the type `UNKNOWN`."""
        ...

    def boolean(self, node: SyntaxNode, clause: str) -> Expression:
        """Plan an expression that must be boolean."""
        ...

    def known(self, node: SyntaxNode) -> Expression:
        """Plan an expression; an unknown type becomes text."""
        ...

    def operation(self, symbol: str, values: Sequence[Expression], offsets: Sequence[int], offset: int) -> Expression:
        """Apply an operator to planned operands."""
        ...
