"""Planner of predicates: logic, tests, IN, ANY and ALL, and comparisons of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from derive.algebra.expression import Call, Case, Column, Expression, Literal, Parameter, Subquery, SubqueryKind
from derive.algebra.modifier_inference import modifiers_of
from derive.algebra.relation import Project, Relation
from derive.algebra.rewrite import deepened
from derive.algebra.types import Type, TypeModifier
from derive.errors import SqlError
from derive.functions.registry import BESIDE_REAL, resolve_operator, resolve_quantified
from derive.sql.parser.ast import (
    ArrayValue,
    Between,
    BooleanLiteral,
    CaseExpression,
    DistinctTest,
    InList,
    Logical,
    Operation,
    Quantified,
    Query,
    Resolved,
    RowValue,
    ScalarQuery,
    StringLiteral,
    SyntaxNode,
    Test,
    TypeCast,
    TypeName,
)
from derive.sql.planner.building import among, columns_of
from derive.sql.planner.equal_values import compared, is_padded, trimmed, without_spaces
from derive.sql.planner.interfaces import Expressions, RowsAs
from derive.sql.planner.output import start_of
from derive.sql.planner.row_columns import visible_columns
from derive.sql.planner.rows import Row, row_of, row_of_column
from derive.sql.planner.scope import Frame, Source

Predicate: TypeAlias = Logical | Test | DistinctTest | Between | InList | Quantified
_COMPARISONS = frozenset({"<", "<=", ">", ">=", "=", "<>"})
_ORDERED = frozenset({"<", "<=", ">", ">="})


def connected(connective: str, operands: Sequence[Expression]) -> Expression:
    """Return `and` or `or` of boolean expressions."""
    return operands[0] if len(operands) == 1 else Call(connective, tuple(operands), Type.BOOLEAN)


def negated(operand: Expression) -> Expression:
    """Return `NOT` of a boolean expression."""
    return Call("not", (operand,), Type.BOOLEAN)


class PredicatePlanner:
    """Planner of the predicates in one query."""

    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions
        self._coercion = expressions.coercion

    def plan(self, node: Predicate) -> Expression:  # noqa: PLR0911 (one for each kind)
        """Plan a predicate."""
        match node:
            case Logical(connective, operands):
                planned = [self._expressions.boolean(operand, connective.upper()) for operand in operands]
                return negated(planned[0]) if connective == "not" else connected(connective, planned)
            case Test():
                return self._test(node)
            case DistinctTest():
                return self._distinct(node)
            case Between():
                return self._between(node)
            case InList():
                return self._in_list(node)
            case Quantified():
                if not isinstance(node.source, Query):
                    return self._with_array(node, node.source)
                row = None if isinstance(node.operand, RowValue) else row_of(node.operand, self._expressions.frame)
                if row is not None:
                    return self._with_rows(node, node.source, row)
                return self._in_query(node) if node.is_in else self._quantified(node)

    def _test(self, node: Test) -> Expression:
        negation = "not " if node.is_negated else ""
        row = row_of(node.operand, self._expressions.frame) if node.what == "null" else None
        if row is not None:
            tests = [Test(item, "null", node.is_negated, node.offset) for item in row.items]
            return connected("and", [self._test(test) for test in tests])
        if node.what == "null":
            operand = self._expressions.plan(node.operand)
            if not isinstance(operand, Parameter):
                operand = self._coercion.known(operand, start_of(node.operand))
            return Call(f"is_{negation.strip()}_null".replace("__", "_"), (operand,), Type.BOOLEAN)
        clause = f"IS {negation.upper()}{node.what.upper()}"
        operand = self._expressions.boolean(node.operand, clause)
        return self._expressions.operation(f"is {negation}{node.what}", [operand], [node.offset], node.offset)

    def _distinct(self, node: DistinctTest) -> Expression:
        rows = [row_of(side, self._expressions.frame) for side in (node.left, node.right)]
        if all(rows) or isinstance(node.left, RowValue) or isinstance(node.right, RowValue):
            sides = zip(rows, (node.left, node.right), strict=True)
            first, second = (RowValue(row.items, row.offset) if row else side for row, side in sides)
            left, right = self._pair(first, second, node.offset)
            parts = [DistinctTest(*pair, node.is_negated, node.offset) for pair in zip(left, right, strict=True)]
            return connected("and" if node.is_negated else "or", [self._distinct(part) for part in parts])
        symbol = f"is {'not ' if node.is_negated else ''}distinct from"
        values = [self._expressions.plan(node.left), self._expressions.plan(node.right)]
        offsets = [start_of(node.left), start_of(node.right)]
        try:
            return self._expressions.operation(symbol, values, offsets, node.offset)
        except SqlError:
            resolve_operator("=", [value.type for value in values], node.offset)
            raise

    def _between(self, node: Between) -> Expression:
        def within(low: SyntaxNode, high: SyntaxNode) -> Expression:
            at_least = self._expressions.plan(Operation(">=", (node.operand, low), node.offset))
            at_most = self._expressions.plan(Operation("<=", (node.operand, high), node.offset))
            return connected("and", [at_least, at_most])

        inside = within(node.low, node.high)
        if node.is_symmetric:
            inside = connected("or", [inside, within(node.high, node.low)])
        return negated(inside) if node.is_negated else inside

    def _in_list(self, node: InList) -> Expression:
        if isinstance(node.operand, RowValue):
            parts = [self.rows(Operation("=", (node.operand, item), node.offset)) for item in node.items]
            inside = connected("or", parts)
            return negated(inside) if node.is_negated else inside
        if row_of(node.operand, self._expressions.frame) is not None:
            parts = [self._expressions.plan(Operation("=", (node.operand, item), node.offset)) for item in node.items]
            inside = connected("or", parts)
            return negated(inside) if node.is_negated else inside
        values = [self._expressions.plan(item) for item in (node.operand, *node.items)]
        offsets = [start_of(item) for item in (node.operand, *node.items)]
        inside = self._member(values, offsets, node)
        return negated(inside) if node.is_negated else inside

    def _member(self, values: list[Expression], offsets: list[int], node: InList) -> Expression:
        """Return whether the first value equals one of the other values."""
        if len(values) > 2:
            values = list(without_spaces(values, self._expressions))
            try:
                kind = self._coercion.common([value.type for value in values], offsets, "IN")
            except SqlError:
                kind = None
            if kind is not None and kind is not Type.UNKNOWN:
                resolve_operator("=", (kind, kind), node.offset)
                alike = self._coercion.arguments(values, [kind] * len(values), offsets)
                if kind is Type.REAL and values[0].type in BESIDE_REAL:
                    first = self._coercion.cast(values[0], Type.DOUBLE, offsets[0]) or alike[0]
                    alike = (first, *(replace(value, type=Type.DOUBLE) for value in alike[1:]))
                return Call("in", tuple(map(compared, alike)), Type.BOOLEAN)
        equalities = [
            self._expressions.operation("=", [values[0], value], [offsets[0], offset], node.offset)
            for value, offset in zip(values[1:], offsets[1:], strict=True)
        ]
        return connected("or", equalities)

    def _in_query(self, node: Quantified) -> Expression:
        """Plan `operands IN (query)`; columns and operands are cast to the argument types of `=`."""
        assert isinstance(node.source, Query)
        relation = self._expressions.queries.subquery(node.source, self._expressions.frame)
        operands = self._operands(node, relation)
        columns: list[Expression] = [Column(index, kind) for index, kind in enumerate(relation.types)]
        planned: list[Expression] = []
        modifiers = modifiers_of(relation) if Type.TEXT in relation.types else (None,) * len(columns)
        for index, item in enumerate(operands):
            operand, column = self._without_spaces(self._expressions.plan(item), columns[index], modifiers[index])
            resolution = resolve_operator("=", (operand.type, column.type), node.offset)
            offsets = (start_of(item), node.offset)
            operand, columns[index] = self._coercion.arguments((operand, column), resolution.argument_types, offsets)
            planned.append(compared(operand))
            columns[index] = compared(columns[index])
        if tuple(columns) != columns_of(relation):
            relation = Project(relation, tuple(columns))
        inside = Subquery(SubqueryKind.IN, relation, tuple(planned), Type.BOOLEAN)
        return negated(inside) if node.is_negated else inside

    def _without_spaces(
        self, operand: Expression, column: Expression, modifier: TypeModifier | None
    ) -> tuple[Expression, Expression]:
        """Return an operand and a column of a subquery, compared as `character(n)` if one of them is of this type."""
        own = self._expressions.frame.modifier_of(operand) if operand.type is Type.TEXT else None
        if is_padded(modifier) and (operand.type is Type.UNKNOWN or own is not None):
            return trimmed(operand, self._expressions), column
        if is_padded(own) and modifier is not None:
            return operand, trimmed(column, self._expressions)
        return operand, column

    @staticmethod
    def _operands(node: Quantified, relation: Relation) -> tuple[SyntaxNode, ...]:
        operands = node.operand.items if isinstance(node.operand, RowValue) else (node.operand,)
        if len(operands) < len(relation.types):
            raise SqlError("42601", "subquery has too many columns", offset=node.offset)
        if len(operands) > len(relation.types):
            raise SqlError("42601", "subquery has too few columns", offset=node.offset)
        return operands

    def _quantified(self, node: Quantified) -> Expression:
        """Plan `operand operator ANY | ALL (query)`.

        ANY is true if the comparison is true for some row of the query. If not, ANY is NULL if the comparison is NULL
        for some row, and false otherwise. ALL is NOT ANY of the negated comparison.
        """
        if node.symbol == "=" and not node.is_all:
            return self._in_query(node)
        if node.symbol == "<>" and node.is_all:
            return negated(self._in_query(node))
        assert isinstance(node.source, Query)
        relation = self._expressions.queries.subquery(node.source, self._expressions.frame)
        operands = self._operands(node, relation)
        planned = [self._expressions.plan(item) for item in operands]
        if len(planned) > 1 and node.symbol not in _COMPARISONS:
            message = f"operator {node.symbol} is not supported for rows"
            raise SqlError("0A000", message, offset=node.offset, hint="Compare the columns one by one.")

        def compared_by(symbol: str, index: int) -> Expression:
            """Return the comparison of an operand with its column of the query."""
            operand, column = planned[index], Column(index, relation.types[index])
            resolution = resolve_operator(symbol, (operand.type, column.type), node.offset)
            if resolution.result_type is not Type.BOOLEAN:
                raise SqlError("42809", "op ANY/ALL (array) requires operator to yield boolean", offset=node.offset)
            offsets = (start_of(operands[index]), node.offset)
            left, right = self._coercion.arguments((operand, column), resolution.argument_types, offsets)
            return Call(resolution.function, (deepened(left, 1), right), Type.BOOLEAN)

        outcome = _of_rows(node.symbol, len(planned), compared_by)
        outcomes = Project(relation, (negated(outcome) if node.is_all else outcome,))
        is_any = Subquery(SubqueryKind.IN, outcomes, (Literal(1, Type.BOOLEAN),), Type.BOOLEAN)
        return negated(is_any) if node.is_all else is_any

    def _with_rows(self, node: Quantified, query: Query, row: Row) -> Expression:
        """Plan `row operator ANY | ALL (query)` and `row IN (query)` of a column that is a row."""
        frame = self._expressions.frame
        body = self._expressions.queries.plan(query, frame, rows=RowsAs.COLUMNS)
        relation = body.settled()
        columns = visible_columns(body.names, columns_of(relation))
        if len(columns) != 1:
            raise SqlError("42601", "subquery has too many columns", offset=node.offset)
        if not columns[0].fields:
            message = f"operator does not exist: record {node.symbol} {columns[0].expression.type.value}"
            raise SqlError("42883", message, offset=node.offset)

        def outer(value: Expression) -> Resolved:
            return Resolved(deepened(value, 1), row.offset)

        own = replace(
            row,
            items=tuple(outer(self._expressions.plan(item)) for item in row.items),
            presence=outer(self._expressions.boolean(row.is_present, "WHERE")) if row.may_be_null else None,
        )
        inner = PredicatePlanner(self._expressions.queries.expressions(Frame(Source(relation, (), columns), frame)))
        outcome = inner.records(node.symbol, [own, row_of_column(columns[0], node.offset)], node.offset)
        outcomes = Project(relation, (negated(outcome) if node.is_all else outcome,))
        is_any = Subquery(SubqueryKind.IN, outcomes, (Literal(1, Type.BOOLEAN),), Type.BOOLEAN)
        return negated(is_any) if node.is_all or node.is_negated else is_any

    def _with_array(self, node: Quantified, source: SyntaxNode) -> Expression:
        if isinstance(source, ArrayValue) and source.items:
            row = row_of(node.operand, self._expressions.frame)
            others = [row_of(item, self._expressions.frame) for item in source.items] if row else []
            if row and others and all(others):
                parts = [self.records(node.symbol, [row, other], node.offset) for other in others if other]
                return connected("and" if node.is_all else "or", parts)
        if isinstance(node.operand, RowValue):
            raise SqlError(
                "0A000",
                "ANY and ALL compare rows only by =",
                offset=node.offset,
                hint="Write EXISTS (SELECT … WHERE …) with the comparison.",
            )
        if not isinstance(source, ArrayValue) or any(isinstance(item, ArrayValue) for item in source.items):
            return self._with_any_array(node, source)
        if not source.items:
            self._expressions.known(node.operand)
            return Literal(int(node.is_all), Type.BOOLEAN)
        parts = [
            self._expressions.plan(Operation(node.symbol, (node.operand, item), node.offset))
            for item in self._elements(node.operand, source.items)
        ]
        return connected("and" if node.is_all else "or", parts)

    def _elements(self, operand: SyntaxNode, items: Sequence[SyntaxNode]) -> Sequence[SyntaxNode]:
        """Return the elements of an array as an operand is compared with them: literals beside a text are texts."""
        if not any(isinstance(item, StringLiteral) for item in items):
            return items
        if self._expressions.plan(operand).type is not Type.TEXT:
            return items
        return [
            TypeCast(item, TypeName("text", (), item.offset, False), item.offset)
            if isinstance(item, StringLiteral)
            else item
            for item in items
        ]

    def _with_any_array(self, node: Quantified, source: SyntaxNode) -> Expression:
        """Plan `operand operator ANY | ALL (array)` for an array expression that is not a list of elements."""
        operand, array = self._expressions.plan(node.operand), self._expressions.plan(source)
        if array.type is not Type.UNKNOWN and array.type.element is None:
            raise SqlError("42809", "op ANY/ALL (array) requires array on right side", offset=node.offset)
        compared = resolve_operator(node.symbol, (operand.type, array.type.element or Type.UNKNOWN), node.offset)
        if compared.result_type is not Type.BOOLEAN:
            raise SqlError("42809", "op ANY/ALL (array) requires operator to yield boolean", offset=node.offset)
        kind = compared.argument_types[0]
        resolution = resolve_quantified(node.symbol, kind, is_all=node.is_all)
        if resolution is None or compared.argument_types[1] is not kind:
            hint = "Write ANY (ARRAY[…]), or a query."
            raise SqlError(
                "0A000", f"{node.symbol} ANY and ALL of an array are not supported", offset=node.offset, hint=hint
            )
        offsets = (start_of(node.operand), start_of(source))
        arguments = self._coercion.arguments((operand, array), resolution.argument_types, offsets)
        return among(Call(resolution.function, arguments, Type.BOOLEAN))

    @staticmethod
    def _pair(left: SyntaxNode, right: SyntaxNode, offset: int) -> tuple[Sequence[SyntaxNode], Sequence[SyntaxNode]]:
        if not isinstance(left, RowValue) or not isinstance(right, RowValue):
            raise SqlError(
                "0A000",
                "a row can only be compared with a row expression",
                offset=offset,
                hint="Write both rows with their columns, as in (a, b) = (1, 2).",
            )
        if len(left.items) != len(right.items):
            raise SqlError("42601", "unequal number of entries in row expressions", offset=offset)
        return left.items, right.items

    def rows(self, node: Operation) -> Expression:
        """Plan a comparison of two rows."""
        if len(node.operands) != 2 or node.symbol not in _COMPARISONS:
            raise SqlError(
                "0A000",
                f"operator {node.symbol} is not supported for rows",
                offset=node.offset,
                hint="Compare the columns one by one.",
            )
        first, second = node.operands
        if not (isinstance(first, RowValue) and isinstance(second, RowValue | ScalarQuery)):
            records = [row_of(operand, self._expressions.frame) for operand in node.operands]
            if all(records):
                return self.records(node.symbol, [record for record in records if record], node.offset)
        left, right = self._pair(first, _fields_of(second, first), node.offset)

        def compared_by(symbol: str, index: int) -> Expression:
            return self._expressions.plan(Operation(symbol, (left[index], right[index]), node.offset))

        return _of_rows(node.symbol, len(left), compared_by)

    def records(self, symbol: str, rows: Sequence[Row], offset: int) -> Expression:
        """Plan a comparison of the values of two columns that are rows, in which NULL is a value after all others.

        Raises:
            SqlError: the rows have different numbers of columns (42804).
        """
        left, right = rows
        if symbol not in _COMPARISONS:
            raise SqlError("42883", f"operator does not exist: record {symbol} record", offset=offset)
        if len(left.items) != len(right.items):
            message = "cannot compare record types with different numbers of columns"
            raise SqlError("42804", message, offset=offset)
        pairs = list(zip(left.items, right.items, strict=True))

        def compared_by(own: str, index: int) -> Expression:
            first, second = pairs[index]
            if own in {"=", "<>", "!="}:
                return self._distinct(DistinctTest(first, second, own == "=", offset))
            if own.startswith(">"):
                first, second, own = second, first, own.replace(">", "<")
            null = Test(first, "null", False, offset), BooleanLiteral(own == "<=", offset)
            other = Test(second, "null", False, offset), BooleanLiteral(True, offset)
            both = Logical("and", (null[0], other[0]), offset), BooleanLiteral(own == "<=", offset)
            plain = Operation(own, (first, second), offset)
            branches = (both, (null[0], BooleanLiteral(False, offset)), other)
            return self._expressions.plan(CaseExpression(None, branches, plain, offset))

        outcome = _of_rows(symbol, len(pairs), compared_by)
        missing = [row.is_null for row in rows if row.may_be_null]
        if not missing:
            return outcome
        is_missing = connected("or", [self._expressions.boolean(one, "OR") for one in missing])
        return Case(((is_missing, Literal(None, Type.BOOLEAN)),), outcome, Type.BOOLEAN)


def _of_rows(symbol: str, width: int, compared_by: Callable[[str, int], Expression]) -> Expression:
    """Return the comparison of two rows: `(a, b) < (c, d)` is `a < c OR (a = c AND b < d)`.

    Args:
        symbol: the operator.
        width: number of columns.
        compared_by: returns the comparison of the columns with an index, by an operator.
    """
    if width > 1 and symbol not in _ORDERED:
        parts = [compared_by(symbol, index) for index in range(width)]
        return connected("and" if symbol == "=" else "or", parts)
    outcome = compared_by(symbol, width - 1)
    for index in range(width - 2, -1, -1):
        tied = connected("and", [compared_by("=", index), outcome])
        outcome = connected("or", [compared_by(symbol.rstrip("="), index), tied])
    return outcome


def _fields_of(node: SyntaxNode, other: SyntaxNode) -> SyntaxNode:
    """Return a query beside a row as a row of its columns; another expression unchanged."""
    if not isinstance(node, ScalarQuery) or not isinstance(other, RowValue):
        return node
    width = len(other.items)
    return RowValue(tuple(replace(node, column=index, width=width) for index in range(width)), node.offset)
