"""Planner of arrays: `ARRAY[…]`, `ARRAY(query)` and subscripts."""

from __future__ import annotations

from collections.abc import Sequence

from derive.algebra.expression import Call, Column, Expression, Literal, Subquery, SubqueryKind
from derive.algebra.relation import Aggregate, Reduce
from derive.algebra.types import ModifiedType, Type
from derive.errors import SqlError
from derive.functions.registry import builder_of, resolve_aggregate
from derive.functions.types.array import EMPTY, MOST_DIMENSIONS
from derive.functions.types.array_literal import too_many_dimensions
from derive.sql.parser.ast import (
    ArrayQuery,
    ArrayValue,
    FunctionCall,
    NullLiteral,
    NumberLiteral,
    Operation,
    QualifiedName,
    Subscript,
    SubscriptPart,
    SyntaxNode,
)
from derive.sql.planner.coercion import folded, located
from derive.sql.planner.interfaces import Expressions, limited
from derive.sql.planner.output import start_of
from derive.sql.planner.scope import Frame

_LAST = (1 << 31) - 1
"""The end of a slice without an upper bound."""


def check_no_vector(value: Expression, frame: Frame, offset: int) -> None:
    """Check that a value is no vector of PostgreSQL's catalogs, whose arrays do not have several dimensions.

    Raises:
        SqlError: the value is a vector (0A000).
    """
    modifier = frame.modifier_of(value) if value.type.element is not None else None
    if modifier is not None and modifier.is_vector:
        message = f"arrays of {modifier.name.value} are not supported"
        raise SqlError("0A000", message, offset=offset, hint="Cast the vector to text.")


class ArrayPlanner:
    """Planner of the arrays in one query."""

    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions
        self._coercion = expressions.coercion

    def plan(self, node: ArrayValue, kind: Type | None = None) -> Expression:
        """Plan `ARRAY[…]`; of arrays, it has one more dimension.

        Args:
            node: the array.
            kind: type of the elements; None for their common type.
        """
        offsets = [start_of(item) for item in node.items]
        values = [
            self.plan(item, kind) if isinstance(item, ArrayValue) else self._expressions.plan(item)
            for item in node.items
        ]
        if kind is None and not values:
            hint = "Explicitly cast to the desired type, for example ARRAY[]::integer[]."
            raise SqlError("42P18", "cannot determine type of empty array", offset=node.offset, hint=hint)
        for value, offset in zip(values, offsets, strict=True):
            check_no_vector(value, self._expressions.frame, offset)
        is_nested = any(value.type.element is not None for value in values)
        if kind is None:
            target = self._common([value.type for value in values], offsets, is_nested=is_nested)
            items = self._coercion.arguments(values, [target] * len(values), offsets)
        else:
            target = kind.array or kind if is_nested else kind
            pairs = zip(values, offsets, strict=True)
            items = tuple(self._coercion.explicit(value, target, offset, offset) for value, offset in pairs)
        array = target if target.element is not None else target.array
        if array is None:
            message = f"arrays of {target.value} are not supported"
            raise SqlError("0A000", message, offset=node.offset, hint="Use jsonb.")
        return folded(Call(builder_of(target), items, array))

    def _common(self, types: Sequence[Type], offsets: Sequence[int], *, is_nested: bool) -> Type:
        """Return the common type of elements, of which all must be arrays if one is."""
        target = self._coercion.common(types, offsets, "ARRAY")
        if is_nested and target.element is not None:
            for kind, offset in zip(types, offsets, strict=True):
                if kind.element is None and kind is not Type.UNKNOWN:
                    raise located(
                        SqlError("42804", f"ARRAY types {target.value} and {kind.value} cannot be matched"), offset
                    )
        return target

    def of_query(self, node: ArrayQuery) -> Expression:
        """Plan `ARRAY(query)`: the rows of a query of one column, in its order."""
        queries = self._expressions.queries
        body = queries.plan(node.query, self._expressions.frame)
        if len(body.names) != 1:
            raise SqlError("42601", "subquery must return only one column", offset=node.offset)
        relation = body.relation
        if body.limit is not None or body.offset is not None:
            relation = limited(relation, body.order, body.limit, body.offset)
        column = Column(0, relation.types[0])
        kind = column.type if column.type.element is not None else column.type.array
        if kind is None:
            message = f"arrays of {column.type.value} are not supported"
            raise SqlError("0A000", message, offset=node.offset, hint="Use jsonb.")
        resolution = resolve_aggregate("array_agg", (column.type,), node.offset)
        aggregate = Aggregate(resolution.function, (column,), kind, order=body.order)
        listed = Subquery(SubqueryKind.SCALAR, Reduce(relation, (), (aggregate,)), (), kind)
        return Call("coalesce", (listed, Literal(EMPTY, kind)), kind)

    def subscript(self, node: Subscript) -> Expression:
        """Plan `x[i]`, `x[i][j]` and `x[i:j]`; for jsonb, `x[i]` is a member."""
        operand = self._expressions.plan(node.operand)
        modifier = self._expressions.frame.modifier_of(operand)
        has_slice = any(part.is_slice for part in node.parts)
        if operand.type is Type.UNKNOWN or operand.type.element is None:
            if modifier is not None and modifier.name is ModifiedType.NAME and not has_slice:
                return self._character(node)
            if has_slice or operand.type is not Type.JSONB:
                message = f"cannot subscript type {operand.type.value} because it does not support subscripting"
                raise SqlError("42804", message, offset=start_of(node.operand))
            return self._expressions.plan(_member(node))
        if len(node.parts) > MOST_DIMENSIONS:
            raise located(too_many_dimensions(len(node.parts)), node.offset)
        is_vector = modifier is not None and modifier.is_vector
        bounds = [bound for part in node.parts for bound in self._bounds(part, has_slice=has_slice)]
        if is_vector and not has_slice:
            one = Literal(1, Type.INTEGER)
            bounds = [
                self._expressions.operation("+", [bound, one], [node.offset] * 2, node.offset) for bound in bounds
            ]
        symbol = "[:]" if has_slice else "[]"
        if len(node.parts) > 1:
            symbol += symbol
            bounds = [Call(builder_of(Type.INTEGER), tuple(bounds), Type.INTEGER_ARRAY)]
        offsets = [start_of(node.operand), *[node.offset] * len(bounds)]
        return self._expressions.operation(symbol, [operand, *bounds], offsets, node.offset)

    def _bounds(self, part: SubscriptPart, *, has_slice: bool) -> list[Expression]:
        """Return the index of a bracket; beside a slice, the first and the last index: `[2]` is `[1:2]` there."""
        if not has_slice:
            return [self._index(part.index, 1)]
        first, last = (part.index, part.end) if part.is_slice else (None, part.index)
        return [self._index(first, 1), self._index(last, _LAST)]

    def _character(self, node: Subscript) -> Expression:
        """Plan the character of a name with an index from 0."""
        (part, *others), one = node.parts, NumberLiteral("1", node.offset)
        if others or part.index is None:
            raise SqlError("42804", "a name has one subscript", offset=node.offset, hint="Call substr.")
        number = Operation("+", (part.index, one), node.offset)
        call = FunctionCall(
            QualifiedName("pg_catalog", "substr", node.offset), (node.operand, number, one), node.offset
        )
        return self._expressions.plan(call)

    def _index(self, node: SyntaxNode | None, omitted: int) -> Expression:
        if node is None:
            return Literal(omitted, Type.INTEGER)
        value = self._expressions.plan(node)
        index = self._coercion.cast(value, Type.INTEGER, start_of(node), "assignment")
        if index is None:
            raise SqlError("42804", "array subscript must have type integer", offset=start_of(node))
        return index


def _member(node: Subscript) -> SyntaxNode:
    """Return the member of a document at subscripts."""
    member = node.operand
    for part in node.parts:
        member = Operation("->", (member, part.index or NullLiteral(node.offset)), node.offset)
    return member
