"""Planner of queries: WITH, set operations, VALUES, ORDER BY and LIMIT around SELECT."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count

from derive.algebra.expression import Column, Expression
from derive.algebra.relation import Relation
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.sql.parser.ast import ColumnReference, Query, QueryBody, Select, SetQuery, SyntaxNode, Values, With
from derive.sql.planner.body import Body
from derive.sql.planner.building import has_subquery
from derive.sql.planner.coercion import Coercion, ParameterTypes
from derive.sql.planner.expressions import ExpressionPlanner
from derive.sql.planner.extent import start_of
from derive.sql.planner.interfaces import CommonRelation
from derive.sql.planner.names import Names
from derive.sql.planner.output import ordinal_of, output_named, sorted_by
from derive.sql.planner.recursive import recursive, refers_to, renamed
from derive.sql.planner.scope import NO_SOURCE, Clause, Frame, Source, VisibleColumn
from derive.sql.planner.select import SelectPlanner
from derive.sql.planner.set_operations import combined, values_of


class QueryPlanner:
    """Planner of the queries of one statement."""

    def __init__(self, names: Names, parameters: ParameterTypes) -> None:
        self.names = names
        self.parameters = parameters
        self.coercion = Coercion(parameters)
        self.common: Mapping[str, CommonRelation] = {}
        self.recursions: Iterator[int] = count()

    def expressions(self, frame: Frame) -> ExpressionPlanner:
        """Return the planner of a query's expressions."""
        return ExpressionPlanner(self, frame)

    def subquery(self, query: Query, frame: Frame) -> Relation:
        """Plan a subquery of an expression."""
        return self.plan(query, frame).settled()

    def plan(self, query: Query, parent: Frame | None, *, keeps_unknown: bool = False) -> Body:
        """Plan a query.

        Args:
            query: the query.
            parent: the outer query that its expressions may refer to; None without one.
            keeps_unknown: whether columns that are untyped literals stay so, for the caller to cast.
        """
        outside = self.common
        try:
            self.define(With(query.common_tables, query.is_recursive), parent)
            return self._ordered(query, parent, keeps_unknown)
        finally:
            self.common = outside

    def define(self, common: With, parent: Frame | None) -> None:
        """Define the common table expressions of WITH."""
        level = parent.level + 1 if parent else 0
        names: set[str] = set()
        for table in common.common_tables:
            if table.name in names:
                message = f'WITH query name "{table.name}" specified more than once'
                raise SqlError("42712", message, offset=table.offset)
            names.add(table.name)
            if common.is_recursive and refers_to(table.query, table.name):
                self.common = {**self.common, table.name: recursive(self, table, parent, level)}
                continue
            body = self.plan(table.query, parent)
            columns = renamed(body.names, table.columns, f'WITH query "{table.name}"', table.offset)
            self.common = {**self.common, table.name: CommonRelation(body.settled(), columns, level)}

    def _ordered(self, query: Query, parent: Frame | None, keeps_unknown: bool) -> Body:
        keeps_unknown = keeps_unknown and not (query.order or query.limit or query.limit_offset)
        if isinstance(query.body, Select):
            body = SelectPlanner(self, query.body, parent).plan(query.order, keeps_unknown=keeps_unknown)
        else:
            body = self.unordered(query.body, parent, keeps_unknown)
            if query.order:
                body = self._with_order(query, body, parent)
        limit = self._count(query.limit, "LIMIT", parent)
        offset = self._count(query.limit_offset, "OFFSET", parent)
        return replace(body, limit=limit, offset=offset)

    def unordered(self, body: QueryBody, parent: Frame | None, keeps_unknown: bool) -> Body:
        """Plan a query without WITH, ORDER BY and LIMIT."""
        match body:
            case Select():
                return SelectPlanner(self, body, parent).plan((), keeps_unknown=keeps_unknown)
            case Values():
                return values_of(self, body, parent, keeps_unknown)
            case SetQuery():
                left = self.unordered(body.left, parent, True)
                right = self.unordered(body.right, parent, True)
                return combined(self.coercion, body, left, right)
            case Query():
                inner = self.plan(body, parent, keeps_unknown=keeps_unknown)
                return Body(inner.settled(), inner.names, offsets=inner.offsets)

    def _with_order(self, query: Query, body: Body, parent: Frame | None) -> Body:
        """Return rows of a query other than SELECT, ordered by names or numbers of their columns."""
        columns = tuple(
            VisibleColumn(name, Column(index, kind))
            for index, (name, kind) in enumerate(zip(body.names, body.relation.types, strict=True))
        )
        expressions = ExpressionPlanner(self, Frame(Source(body.relation, (), columns), parent, Clause("ORDER BY")))
        order = []
        for item in query.order:
            index = ordinal_of(item.expression, len(columns), "ORDER BY")
            if index is None and isinstance(item.expression, ColumnReference):
                index = output_named(item.expression, [(column.name, column.expression) for column in columns])
            if index is not None:
                order.append(sorted_by(columns[index].expression, item))
            elif isinstance(query.body, SetQuery):
                message = "invalid UNION/INTERSECT/EXCEPT ORDER BY clause"
                detail = "Only result column names can be used, not expressions or functions."
                hint = "Add the expression/function to every SELECT, or move the UNION into a FROM clause."
                if isinstance(item.expression, ColumnReference):
                    expressions.plan(item.expression)
                raise SqlError("0A000", message, offset=start_of(item.expression), detail=detail, hint=hint)
            else:
                order.append(sorted_by(expressions.known(item.expression), item))
        return replace(body, order=tuple(order))

    def _count(self, node: SyntaxNode | None, clause: str, parent: Frame | None) -> Expression | None:
        if node is None:
            return None
        frame = Frame(NO_SOURCE, None, Clause(clause))
        value = ExpressionPlanner(self, frame).plan(node)
        if has_subquery(value):
            raise SqlError("0A000", f"subqueries in {clause} are not supported", offset=start_of(node))
        cast = self.coercion.cast(value, Type.BIGINT, start_of(node), "assignment")
        if cast is None:
            message = f"argument of {clause} must be type bigint, not type {value.type.value}"
            raise SqlError("42804", message, offset=start_of(node))
        return cast
