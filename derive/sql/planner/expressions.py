"""Expressions: names resolved, overloads chosen, types checked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from derive.algebra.expression import Call, Case, Expression, Literal, Subquery, SubqueryKind
from derive.algebra.form_inference import form_of, forms_of
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.cancellation import check_cancelled
from derive.functions.registry import Resolution, resolve_operator
from derive.functions.types.values import datum_of_text, scale_of_text
from derive.sql.parser.ast import (
    ArrayQuery,
    ArrayValue,
    Between,
    BooleanLiteral,
    CaseExpression,
    Collation,
    ColumnReference,
    DefaultMarker,
    DistinctTest,
    Exists,
    FunctionCall,
    InList,
    Logical,
    NullLiteral,
    NumberLiteral,
    Operation,
    ParameterReference,
    Quantified,
    RowValue,
    ScalarQuery,
    Star,
    StringLiteral,
    Subscript,
    SyntaxNode,
    Test,
    TypeCast,
)
from derive.sql.planner.arrays import ArrayPlanner
from derive.sql.planner.calls import CallPlanner
from derive.sql.planner.coercion import folded, located
from derive.sql.planner.extent import start_of
from derive.sql.planner.interfaces import Queries
from derive.sql.planner.predicates import PredicatePlanner
from derive.sql.planner.scope import Frame
from derive.sql.planner.set_returning import check_no_rows
from derive.sql.planner.type_names import form_of_type, type_of

_BITS = ((Type.INTEGER, 31), (Type.BIGINT, 63))


class ExpressionPlanner:
    """Plans the expressions of one query."""

    def __init__(self, queries: Queries, frame: Frame) -> None:
        self.queries = queries
        self.coercion = queries.coercion
        self.frame = frame
        self._calls = CallPlanner(self)
        self._predicates = PredicatePlanner(self)
        self._arrays = ArrayPlanner(self)

    def plan(self, node: SyntaxNode) -> Expression:  # noqa: PLR0911 (one for each kind)
        """An expression; a literal or parameter may still be of the type `UNKNOWN`."""
        check_cancelled()
        match node:
            case ColumnReference():
                return self.frame.resolve(node)
            case NumberLiteral() | StringLiteral() | BooleanLiteral() | NullLiteral():
                return literal_of(node)
            case ParameterReference(index, offset):
                return self.queries.parameters.reference(index, offset)
            case Operation():
                return self._operation(node)
            case Logical() | Test() | DistinctTest() | Between() | InList() | Quantified():
                return self._predicates.plan(node)
            case FunctionCall():
                return self._calls.plan(node)
            case CaseExpression():
                return self._case(node)
            case TypeCast():
                return self._cast(node)
            case ScalarQuery() | Exists():
                return self._subquery(node)
        return self._other(node)

    def _other(self, node: SyntaxNode) -> Expression:
        match node:
            case Collation(operand, name, offset):
                if name.name not in {"C", "POSIX", "default", "ucs_basic"}:
                    hint = 'Text is ordered by code points, which is COLLATE "C".'
                    raise SqlError("0A000", f'collation "{name.name}" is not supported', offset=offset, hint=hint)
                return self.coercion.known(self.plan(operand), start_of(operand))
            case Subscript():
                return self._arrays.subscript(node)
            case DefaultMarker(offset):
                raise SqlError("42601", "DEFAULT is not allowed in this context", offset=offset)
            case Star(_, offset):
                raise SqlError("42601", 'syntax error at or near "*"', offset=offset)
            case RowValue(_, offset):
                raise SqlError("0A000", "values of several columns are not supported here", offset=offset)
            case ArrayValue():
                return self._arrays.plan(node)
            case ArrayQuery():
                return self._arrays.of_query(node)
        raise SqlError("0A000", "this expression is not supported", offset=node.offset)

    def boolean(self, node: SyntaxNode, clause: str) -> Expression:
        """An expression that must be boolean."""
        return self.coercion.boolean(self.plan(node), clause, start_of(node))

    def known(self, node: SyntaxNode) -> Expression:
        """An expression whose type is known: text if nothing has decided it."""
        return self.coercion.known(self.plan(node), start_of(node))

    def operation(self, symbol: str, values: Sequence[Expression], offsets: Sequence[int], offset: int) -> Expression:
        """An operator applied to planned operands."""
        try:
            resolution = _operator(symbol, tuple(value.type for value in values))
        except SqlError as error:
            raise located(error, offset) from None
        arguments = self.coercion.arguments(values, resolution.argument_types, offsets)
        return Call(resolution.function, arguments, resolution.result_type)

    def _operation(self, node: Operation) -> Expression:
        if any(isinstance(operand, RowValue) for operand in node.operands):
            return self._predicates.rows(node)
        values = [self.plan(operand) for operand in node.operands]
        return self.operation(node.symbol, values, [start_of(operand) for operand in node.operands], node.offset)

    def _case(self, node: CaseExpression) -> Expression:
        conditions, rows = [], len(self.frame.rows)
        for condition, _ in node.branches:
            if node.operand is None:
                conditions.append(self.boolean(condition, "CASE/WHEN"))
            else:
                conditions.append(self.plan(Operation("=", (node.operand, condition), node.offset)))
        nodes = [result for _, result in node.branches]
        nodes.append(node.otherwise or NullLiteral(node.offset))
        # PostgreSQL lets ELSE decide first.
        order = [len(nodes) - 1, *range(len(nodes) - 1)]
        planned = [self.plan(nodes[index]) for index in order]
        check_no_rows(self.frame, rows, "CASE")
        alike = self.coercion.alike(planned, [start_of(nodes[index]) for index in order], "CASE")
        results = (*alike[1:], alike[0])
        branches = tuple(zip(conditions, results[:-1], strict=True))
        return Case(branches, results[-1], results[-1].type)

    def _cast(self, node: TypeCast) -> Expression:
        target = type_of(node.target)
        if isinstance(node.operand, ArrayValue) and target.element and not node.target.modifiers:
            return self._arrays.plan(node.operand, target.element)
        operand = self.plan(node.operand)
        if target.element and node.target.modifiers:
            message = f"modifiers of arrays are not supported, as of {node.target.name}"
            raise SqlError("0A000", message, offset=node.target.offset, hint="Cast to the type without modifiers.")
        value = self.coercion.explicit(operand, target, node.offset, start_of(node.operand))
        if node.target.modifiers:
            return self._modified(value, node)
        return self._as_text(operand, value) if target is Type.TEXT else value

    def _as_text(self, operand: Expression, value: Expression) -> Expression:
        """A value that was cast to text, as it is shown: numbers with all digits, `character(n)` without spaces."""
        forms = tuple(forms_of(frame.source.relation) for _, frame in self.frame.frames())
        form = form_of(operand, forms[0], forms[1:]) if operand.type in {Type.NUMERIC, Type.TEXT} else None
        if form is None:
            return value
        return folded(Call("shown_text_integer", (value, Literal(max(form.scale, 0), Type.INTEGER)), Type.TEXT))

    def _modified(self, value: Expression, node: TypeCast) -> Expression:
        """A value cut or rounded as a type's modifiers say."""
        form, modifiers = form_of_type(node.target), node.target.modifiers
        if form is not None:
            return self.coercion.fitted(value, form, is_cast=True)
        if modifiers[0] >= 6:
            return value
        raise SqlError("0A000", f"a precision of {modifiers[0]} is not supported", offset=node.target.offset)

    def _subquery(self, node: ScalarQuery | Exists) -> Expression:
        relation = self.queries.subquery(node.query, self.frame)
        if isinstance(node, Exists):
            return Subquery(SubqueryKind.EXISTS, relation, (), Type.BOOLEAN)
        if len(relation.types) != 1:
            raise SqlError("42601", "subquery must return only one column", offset=node.offset)
        return Subquery(SubqueryKind.SCALAR, relation, (), relation.types[0])


@lru_cache(maxsize=4096)
def _operator(symbol: str, types: tuple[Type, ...]) -> Resolution:
    """Which function an operator means for operands of certain types, remembered."""
    return resolve_operator(symbol, types)


def literal_of(node: NumberLiteral | StringLiteral | BooleanLiteral | NullLiteral) -> Literal:
    """A literal; a string and NULL have no type yet."""
    match node:
        case StringLiteral(value):
            return Literal(value, Type.UNKNOWN)
        case BooleanLiteral(value):
            return Literal(int(value), Type.BOOLEAN)
        case NullLiteral():
            return Literal(None, Type.UNKNOWN)
        case NumberLiteral(text):
            return _number(text)


def _number(text: str) -> Literal:
    if text.lstrip("-").isdigit():
        number = int(text)
        for kind, bits in _BITS:
            if -1 << bits <= number < 1 << bits:
                return Literal(number, kind)
    return Literal(datum_of_text(Type.NUMERIC, text), Type.NUMERIC, scale_of_text(text))
