"""Planner of UNION, EXCEPT, INTERSECT and VALUES: inputs are cast to common types."""

from __future__ import annotations

from collections.abc import Sequence

from derive.algebra.expression import Expression, Literal
from derive.algebra.modifier_inference import constant_modifiers
from derive.algebra.relation import (
    Constant,
    Distinct,
    Project,
    Relation,
    SetOperation,
    SetOperator,
    UnionAll,
)
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.sql.parser.ast import SetQuery, Values
from derive.sql.planner.body import Body
from derive.sql.planner.building import columns_of, projected
from derive.sql.planner.coercion import Coercion
from derive.sql.planner.extent import start_of
from derive.sql.planner.interfaces import Queries
from derive.sql.planner.scope import NO_SOURCE, Frame
from derive.sql.planner.scope import VALUES as VALUES_CLAUSE


def combined(coercion: Coercion, node: SetQuery, left: Body, right: Body) -> Body:
    """Plan a set operation of two queries."""
    if len(left.names) != len(right.names):
        message = f"each {node.operator} query must have the same number of columns"
        raise SqlError("42601", message, offset=right.offsets[0] if right.offsets else node.right.offset)
    pairs = zip(left.relation.types, right.relation.types, strict=True)
    types = [
        coercion.common(pair, [right_offset] * 2, node.operator)
        for pair, right_offset in zip(pairs, right.offsets, strict=True)
    ]
    inputs = [retyped(coercion, body.relation, types, body.offsets) for body in (left, right)]
    if node.operator != "UNION":
        operator = SetOperator(node.operator.lower())
        return Body(SetOperation(operator, node.is_all, inputs[0], inputs[1]), left.names, offsets=left.offsets)
    if isinstance(inputs[0], UnionAll):
        inputs[:1] = inputs[0].inputs
    union = UnionAll(tuple(inputs))
    return Body(union if node.is_all else Distinct(union), left.names, offsets=left.offsets)


def retyped(coercion: Coercion, relation: Relation, types: Sequence[Type], offsets: Sequence[int]) -> Relation:
    """Cast the columns of a relation, in its outermost projection if there is one.

    Raises:
        SqlError: 42846, a column cannot be cast.
    """
    if tuple(types) == relation.types:
        return relation
    if isinstance(relation, Constant):
        columns = [
            [coercion.cast(Literal(row[index], kind), target, offsets[index]) for row in relation.rows]
            for index, (kind, target) in enumerate(zip(relation.types, types, strict=True))
        ]
        if all(isinstance(value, Literal) for column in columns for value in column):
            rows = zip(*columns, strict=True)
            return Constant(
                tuple(tuple(value.value for value in row if isinstance(value, Literal)) for row in rows), tuple(types)
            )
    if isinstance(relation, UnionAll):
        return UnionAll(tuple(retyped(coercion, child, types, offsets) for child in relation.inputs))
    is_project = isinstance(relation, Project)
    expressions: Sequence[Expression] = relation.expressions if isinstance(relation, Project) else columns_of(relation)
    cast = []
    for expression, kind, offset in zip(expressions, types, offsets, strict=True):
        value = coercion.cast(expression, kind, offset)
        if value is None:
            message = f"could not convert type {expression.type.value} to {kind.value}"
            raise SqlError("42846", message, offset=offset)
        cast.append(value)
    if isinstance(relation, Project) and is_project:
        return Project(relation.input, tuple(cast))
    return projected(relation, cast)


def values_of(queries: Queries, node: Values, parent: Frame | None, keeps_unknown: bool) -> Body:
    """Plan `VALUES`: one constant if all values are literals, else a union of rows."""
    expressions = queries.expressions(Frame(NO_SOURCE, parent, VALUES_CLAUSE))
    width = len(node.rows[0])
    for row in node.rows:
        if len(row) != width:
            raise SqlError("42601", "VALUES lists must all be the same length", offset=row[0].offset)
    planned = [[expressions.plan(value) for value in row] for row in node.rows]
    for index in range(width):
        column = [row[index] for row in planned]
        offsets = [start_of(row[index]) for row in node.rows]
        if keeps_unknown and all(value.type is Type.UNKNOWN for value in column):
            continue
        alike = queries.coercion.alike(column, offsets, "VALUES")
        for expressions_of_row, value in zip(planned, alike, strict=True):
            expressions_of_row[index] = value
    names = tuple(f"column{number}" for number in range(1, width + 1))
    return Body(rows_of(planned), names, offsets=tuple(start_of(value) for value in node.rows[0]))


def rows_of(rows: Sequence[Sequence[Expression]]) -> Relation:
    """Return rows of expressions as a relation."""
    if all(isinstance(value, Literal) for row in rows for value in row):
        data = tuple(tuple(value.value for value in row if isinstance(value, Literal)) for row in rows)
        return Constant(data, tuple(value.type for value in rows[0]), constant_modifiers(rows))
    projects = tuple(Project(NO_SOURCE.relation, tuple(row)) for row in rows)
    return projects[0] if len(projects) == 1 else UnionAll(projects)
