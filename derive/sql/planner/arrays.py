"""Arrays in expressions: written element by element or as a query, and looked into."""

from __future__ import annotations

from derive.algebra.expression import Call, Column, Expression, Literal, Subquery, SubqueryKind
from derive.algebra.relation import Aggregate, Reduce
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.registry import builder_of, resolve_aggregate
from derive.functions.types.array import EMPTY
from derive.sql.parser.ast import ArrayQuery, ArrayValue, NullLiteral, Operation, Subscript, SyntaxNode
from derive.sql.planner.body import limited
from derive.sql.planner.coercion import folded
from derive.sql.planner.extent import start_of
from derive.sql.planner.interfaces import Expressions

_LAST = (1 << 31) - 1
"""The end of a slice that has none."""


class ArrayPlanner:
    """Plans the arrays of one query."""

    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions
        self._coercion = expressions.coercion

    def plan(self, node: ArrayValue, kind: Type | None = None) -> Expression:
        """`ARRAY[…]`.

        Args:
            node: as it was written.
            kind: of its elements; None for what they have in common.
        """
        offsets = [start_of(item) for item in node.items]
        values = [self._expressions.plan(item) for item in node.items]
        if kind is None and not values:
            hint = "Explicitly cast to the desired type, for example ARRAY[]::integer[]."
            raise SqlError("42P18", "cannot determine type of empty array", offset=node.offset, hint=hint)
        element = kind or self._coercion.common([value.type for value in values], offsets, "ARRAY")
        if element.array is None:
            message = f"arrays of {element.value} are not supported"
            raise SqlError("0A000", message, offset=node.offset, hint="Use jsonb.")
        if kind is None:
            items = self._coercion.arguments(values, [element] * len(values), offsets)
        else:
            pairs = zip(values, offsets, strict=True)
            items = tuple(self._coercion.explicit(value, kind, offset, offset) for value, offset in pairs)
        return folded(Call(builder_of(element), items, element.array))

    def of_query(self, node: ArrayQuery) -> Expression:
        """`ARRAY(query)`: the rows of a query of one column, in its order."""
        queries = self._expressions.queries
        body = queries.plan(node.query, self._expressions.frame)
        if len(body.names) != 1:
            raise SqlError("42601", "subquery must return only one column", offset=node.offset)
        relation = body.relation
        if body.limit is not None or body.offset is not None:
            relation = limited(relation, body.order, body.limit, body.offset)
        column = Column(0, relation.types[0])
        if column.type.array is None:
            message = f"arrays of {column.type.value} are not supported"
            raise SqlError("0A000", message, offset=node.offset, hint="Use jsonb.")
        kind = column.type.array
        resolution = resolve_aggregate("array_agg", (column.type,), node.offset)
        aggregate = Aggregate(resolution.function, (column,), kind, order=body.order)
        listed = Subquery(SubqueryKind.SCALAR, Reduce(relation, (), (aggregate,)), (), kind)
        return Call("coalesce", (listed, Literal(EMPTY, kind)), kind)

    def subscript(self, node: Subscript) -> Expression:
        """`x[i]` and `x[i:j]`; of jsonb, its member."""
        operand = self._expressions.plan(node.operand)
        if operand.type is Type.UNKNOWN or operand.type.element is None:
            if node.is_slice or operand.type is not Type.JSONB:
                message = f"cannot subscript type {operand.type.value} because it does not support subscripting"
                raise SqlError("42804", message, offset=start_of(node.operand))
            index = node.index or NullLiteral(node.offset)
            return self._expressions.plan(Operation("->", (node.operand, index), node.offset))
        bounds = [self._index(node.index, 1)]
        if node.is_slice:
            bounds.append(self._index(node.end, _LAST))
        symbol = "[:]" if node.is_slice else "[]"
        offsets = [start_of(node.operand), *[node.offset] * len(bounds)]
        return self._expressions.operation(symbol, [operand, *bounds], offsets, node.offset)

    def _index(self, node: SyntaxNode | None, omitted: int) -> Expression:
        if node is None:
            return Literal(omitted, Type.INTEGER)
        value = self._expressions.plan(node)
        index = self._coercion.cast(value, Type.INTEGER, start_of(node), "assignment")
        if index is None:
            raise SqlError("42804", "array subscript must have type integer", offset=start_of(node))
        return index
