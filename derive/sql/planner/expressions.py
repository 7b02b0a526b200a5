"""Planner of expressions: name resolution, choice of overloads, and type checks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import cast

from derive.algebra.expression import Call, Case, Column, Expression, Literal, Subquery, SubqueryKind
from derive.algebra.relation import Constant, Relation
from derive.algebra.rewrite import replaced
from derive.algebra.types import ModifiedType, Type
from derive.errors import SqlError
from derive.functions.registry import Resolution, resolve_operator
from derive.functions.scalar.json import IS_JSON
from derive.functions.scalar.logic import DOMAIN_CONDITION
from derive.functions.scalar.row_functions import EXPANDED_FIELDS
from derive.functions.statement_context import check_cancelled
from derive.functions.types.datetime import interval_datum, interval_of_fields
from derive.functions.types.formats import scale_of_text
from derive.functions.types.type_info import datum_of_text
from derive.sql.parser.ast import (
    ArrayQuery,
    ArrayValue,
    Between,
    BooleanLiteral,
    CaseExpression,
    Collation,
    ColumnReference,
    Construct,
    DefaultMarker,
    DistinctTest,
    Exists,
    FieldSelection,
    FunctionCall,
    InList,
    JsonQuery,
    Logical,
    NullLiteral,
    NumberLiteral,
    Operation,
    ParameterReference,
    Quantified,
    Resolved,
    RowValue,
    ScalarQuery,
    Star,
    StringLiteral,
    Subscript,
    SyntaxNode,
    Test,
    TypeCast,
    TypeName,
)
from derive.sql.parser.parse import parse_expression
from derive.sql.planner.arrays import ArrayPlanner
from derive.sql.planner.building import columns_of, projected
from derive.sql.planner.calls import CallPlanner, changes
from derive.sql.planner.coercion import check_path, folded, is_type, located, modifier_of_type, type_of
from derive.sql.planner.dependencies import volatile_function
from derive.sql.planner.equal_values import of_one_type, with_spaces, without_spaces
from derive.sql.planner.interfaces import Domain, NamedColumn, Names, Queries, RowsAs
from derive.sql.planner.json_queries import JsonQueryPlanner
from derive.sql.planner.output import start_of
from derive.sql.planner.predicates import PredicatePlanner
from derive.sql.planner.rows import (
    field_of,
    require_equal_texts,
    require_one_type,
    row_of,
    row_text,
    without_rows,
)
from derive.sql.planner.scope import DOMAIN_CHECK, Frame, Source, VisibleColumn
from derive.sql.planner.set_returning import check_no_rows

_COMPARISONS = frozenset({"=", "<>", "!=", "<", "<=", ">", ">=", "is distinct from", "is not distinct from"})
_PATTERNS = frozenset({"~~", "!~~", "~~*", "!~~*", "~", "!~", "~*", "!~*"})
_MODIFIED = {Type.NUMERIC, Type.NUMERIC_ARRAY, Type.TEXT, Type.SMALLINT_ARRAY, Type.OID_ARRAY}
_BITS = ((Type.INTEGER, 31), (Type.BIGINT, 63))


class ExpressionPlanner:
    """Planner of the expressions of one query."""

    def __init__(self, queries: Queries, frame: Frame) -> None:
        self.queries = queries
        self.coercion = queries.coercion
        self.frame = frame
        self._calls = CallPlanner(self)
        self._predicates = PredicatePlanner(self)
        self._arrays = ArrayPlanner(self)

    def plan(self, node: SyntaxNode) -> Expression:  # noqa: PLR0911 (one for each kind)
        """Plan an expression; a literal or parameter may have the type `UNKNOWN`."""
        check_cancelled()
        match node:
            case ColumnReference():
                return self._column(node)
            case NumberLiteral() | StringLiteral() | BooleanLiteral() | NullLiteral():
                return literal_of(node)
            case ParameterReference(index, offset):
                return self.queries.parameters.reference(index, offset)
            case Operation():
                return self._operation(node)
            case Logical() | Test() | DistinctTest() | Between() | InList() | Quantified():
                return self._predicates.plan(node)
            case FunctionCall():
                call = without_rows(node, self.frame)
                if call is not node and node.is_distinct and (row := row_of(node.arguments[0], self.frame)):
                    require_equal_texts(row, self)
                return self._calls.plan(node) if call is node else self.plan(call)
            case CaseExpression():
                return self._case(node)
            case TypeCast():
                return self._cast(node)
            case ScalarQuery() | Exists():
                return self._subquery(node)
        return self._other(node)

    def _column(self, node: ColumnReference) -> Expression:
        """Plan a column, or an argument of the function whose body is planned; a column hides an argument."""
        try:
            return self.frame.resolve(node)
        except SqlError as error:
            argument = self.queries.arguments.get(".".join(node.parts))
            if argument is None or error.sqlstate not in {"42703", "42P01"}:
                raise
            return self.queries.parameters.reference(argument, node.offset)

    def _other(self, node: SyntaxNode) -> Expression:  # noqa: PLR0911 (one for each kind)
        match node:
            case Collation(operand, name, offset):
                if name.name not in {"C", "POSIX", "default", "ucs_basic"}:
                    hint = 'Text is ordered by code points, which is COLLATE "C".'
                    raise SqlError("0A000", f'collation "{name.name}" is not supported', offset=offset, hint=hint)
                return self.coercion.known(self.plan(operand), start_of(operand))
            case Subscript():
                return self._arrays.subscript(node)
            case FieldSelection():
                return self._field(node)
            case DefaultMarker(offset):
                raise SqlError("42601", "DEFAULT is not allowed in this context", offset=offset)
            case Star(_, offset):
                raise SqlError("42601", 'syntax error at or near "*"', offset=offset)
            case RowValue(_, offset):
                raise SqlError(
                    "0A000",
                    "a row is not supported as a value",
                    offset=offset,
                    hint="Write its columns one by one, or ROW(…)::text, or to_jsonb(ROW(…)).",
                )
            case ArrayValue():
                return self._arrays.plan(node)
            case ArrayQuery():
                return self._arrays.of_query(node)
            case Construct():
                return self.plan(node.value)
            case Resolved(expression):
                return cast(Expression, expression)
            case JsonQuery():
                return JsonQueryPlanner(self).plan(node)
        raise SqlError("0A000", "this expression is not supported", offset=node.offset)

    def boolean(self, node: SyntaxNode, clause: str) -> Expression:
        """Plan an expression that must be boolean."""
        return self.coercion.boolean(self.plan(node), clause, start_of(node))

    def known(self, node: SyntaxNode) -> Expression:
        """Plan an expression; an unknown type becomes text."""
        return self.coercion.known(self.plan(node), start_of(node))

    def operation(self, symbol: str, values: Sequence[Expression], offsets: Sequence[int], offset: int) -> Expression:
        """Apply an operator to planned operands."""
        if symbol in _COMPARISONS:
            values = without_spaces(values, self)
        elif symbol in _PATTERNS:
            values = [with_spaces(values[0], self.frame), *values[1:]]
        elif symbol == "||" and not any(value.type.element for value in values):
            values = [self.coercion.shown(value) for value in values]
        try:
            resolution = _operator(symbol, tuple(value.type for value in values))
        except SqlError as error:
            if symbol == IS_JSON:
                message = f"cannot use type {values[0].type.value} in IS JSON predicate"
                raise SqlError("42804", message, offset=offsets[0]) from None
            raise located(error, offset) from None
        check_path(symbol, values, offsets)
        arguments = self.coercion.arguments(values, resolution.argument_types, offsets)
        return self.coercion.called(resolution.function, arguments, resolution.result_type)

    def _operation(self, node: Operation) -> Expression:
        if any(isinstance(operand, RowValue) for operand in node.operands):
            return self._predicates.rows(node)
        try:
            values = [self.plan(operand) for operand in node.operands]
        except SqlError as error:
            rows = None if error.sqlstate != "0A000" else [row_of(operand, self.frame) for operand in node.operands]
            if rows is None or not all(rows):
                raise
            return self._predicates.records(node.symbol, [row for row in rows if row], node.offset)
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
        # As in PostgreSQL, the type of ELSE counts first.
        order = [len(nodes) - 1, *range(len(nodes) - 1)]
        values = [self.plan(nodes[index]) for index in order]
        if node.is_field:
            require_one_type(values, [nodes[index] for index in order])
            if any(map(changes, conditions)):
                message = "a condition whose value changes cannot choose between rows"
                hint = (
                    "Compute the value in a subquery: SELECT CASE WHEN x < 1 THEN … END FROM (SELECT random() AS x) s."
                )
                raise SqlError("0A000", message, offset=node.offset, hint=hint)
        planned = of_one_type(values, self)
        check_no_rows(self.frame, rows, "CASE")
        alike = self.coercion.alike(planned, [start_of(nodes[index]) for index in order], "CASE")
        results = (*alike[1:], alike[0])
        branches = tuple(zip(conditions, results[:-1], strict=True))
        return Case(branches, results[-1], results[-1].type)

    def _cast(self, node: TypeCast) -> Expression:
        of_domain = domain_of(node.target, self.queries.names)
        if of_domain is not None and of_domain.domain is not None:
            return self._cast_to_domain(node, of_domain, of_domain.domain)
        target = type_of(node.target)
        if isinstance(node.operand, ArrayValue) and target.element:
            listed = self._arrays.plan(node.operand, target.element)
            return self._modified(listed, node) if node.target.modifiers else listed
        if node.target.fields:
            return _interval_with_fields(node)
        row = row_of(node.operand, self.frame) if target is Type.TEXT and not node.target.modifiers else None
        if row is not None:
            return row_text(row, self, self.frame)
        operand = self.plan(node.operand)
        if target.element and node.target.modifiers and modifier_of_type(node.target) is None:
            message = f"modifiers of arrays are not supported, as of {node.target.name}"
            raise SqlError("0A000", message, offset=node.target.offset, hint="Cast to the type without modifiers.")
        value = self.coercion.explicit(operand, target, node.offset, start_of(node.operand))
        if node.target.modifiers:
            return self._modified(value, node)
        return self._as_text(operand, value) if target is Type.TEXT else value

    def _cast_to_domain(self, node: TypeCast, column: NamedColumn, domain: Domain) -> Expression:
        """Plan a cast to the base type of a domain, with its conditions."""
        value = self.coercion.explicit(self.plan(node.operand), column.type, node.offset, start_of(node.operand))
        value = self.coercion.fitted(value, column.modifier, is_cast=True)
        if changes(value) and domain.conditions:
            message = f"a value that changes cannot be cast to domain {domain.name}"
            hint = "Compute the value in a subquery: SELECT x::d FROM (SELECT random() AS x) s."
            raise SqlError("0A000", message, offset=node.offset, hint=hint)
        source = Source(Constant((), (column.type,)), (), (VisibleColumn("value", Column(0, column.type)),))
        planner = ExpressionPlanner(self.queries, Frame(source, None, DOMAIN_CHECK))
        own = value
        for name, text in domain.conditions:
            condition = planner.boolean(parse_expression(text), "CHECK")
            error = domain.violation(name)
            arguments = (
                replaced(condition, lambda _: own),
                Literal(error.sqlstate, Type.TEXT),
                Literal(error.message, Type.TEXT),
            )
            value = Case(
                ((Call(DOMAIN_CONDITION, arguments, Type.BOOLEAN), value),), Literal(None, value.type), value.type
            )
        return value

    def _field(self, node: FieldSelection) -> Expression:
        """Plan a field of a row, or of the result of `_pg_expandarray`."""
        row = row_of(node.operand, self.frame)
        if row is not None:
            of = node.operand.parts[-1] if isinstance(node.operand, ColumnReference) else "record"
            return self.plan(field_of(row, node.name, of, node.offset))
        operand = self.plan(node.operand)
        index = EXPANDED_FIELDS.get(node.name)
        if operand.type is not Type.INTEGER_ARRAY or index is None:
            raise SqlError(
                "0A000",
                "fields of composite values are not supported",
                offset=node.offset,
                hint="Use jsonb for composite values.",
            )
        return self.operation("[]", [operand, Literal(index, Type.INTEGER)], [node.offset] * 2, node.offset)

    def _as_text(self, operand: Expression, value: Expression) -> Expression:
        """Return a cast to text; a number shows all digits of its scale, and `character(n)` loses trailing spaces."""
        modifier = self.frame.modifier_of(operand) if operand.type in _MODIFIED else None
        if modifier is None:
            return value
        if modifier.is_vector:
            return Call("vector_text_text", (value,), Type.TEXT)
        if operand.type is Type.TEXT and modifier.name is not ModifiedType.BPCHAR:
            return Call("plain_text_text", (value,), Type.TEXT)
        return folded(Call("shown_text_integer", (value, Literal(max(modifier.scale, 0), Type.INTEGER)), Type.TEXT))

    def _modified(self, value: Expression, node: TypeCast) -> Expression:
        """Return a value with the type modifiers of a cast applied."""
        modifier, given = modifier_of_type(node.target), node.target.modifiers
        if modifier is not None:
            return self.coercion.fitted(value, modifier, is_cast=True)
        if given[0] >= 6:
            return value
        raise SqlError(
            "0A000",
            f"a precision of {given[0]} is not supported",
            offset=node.target.offset,
            hint="Omit the precision.",
        )

    def _subquery(self, node: ScalarQuery | Exists) -> Expression:
        if isinstance(node, Exists):
            relation = self.queries.plan(node.query, self.frame, rows=RowsAs.COLUMNS).settled()
            return Subquery(SubqueryKind.EXISTS, relation, (), Type.BOOLEAN)
        relation = self.queries.subquery(node.query, self.frame)
        if node.width > 1:
            return _column_of_row(node, relation)
        if len(relation.types) != 1:
            raise SqlError("42601", "subquery must return only one column", offset=node.offset)
        return Subquery(SubqueryKind.SCALAR, relation, (), relation.types[0])


def _column_of_row(node: ScalarQuery, relation: Relation) -> Expression:
    """Return one column of a subquery that gives several columns of a row; each column evaluates the subquery.

    Raises:
        SqlError: 42601, the number of columns differs; 0A000, the columns could come from different rows.
    """
    if len(relation.types) != node.width:
        raise SqlError("42601", "number of columns does not match number of values", offset=node.offset)
    name = volatile_function(relation)
    if name is not None:
        hint = "Assign a query with one column to each column: SET a = (…), b = (…)."
        raise SqlError(
            "0A000", f"{name}() is not supported in a query of several columns", offset=node.offset, hint=hint
        )
    column = projected(relation, (columns_of(relation)[node.column],))
    return Subquery(SubqueryKind.SCALAR, column, (), column.types[0])


def _interval_with_fields(node: TypeCast) -> Literal:
    """Plan an interval literal with fields.

    Raises:
        SqlError: 0A000, the operand is no literal; 22007 or 22008, the text is no interval.
    """
    target = node.target
    if not isinstance(node.operand, StringLiteral) or target.is_array:
        message = f"casts to interval {target.fields} are not supported"
        raise SqlError("0A000", message, offset=target.offset, hint="Cast to interval, and apply date_trunc().")
    try:
        interval = interval_of_fields(node.operand.value, target.fields, min((*target.modifiers, 6)))
        return Literal(interval_datum(interval), Type.INTERVAL)
    except SqlError as error:
        raise located(error, start_of(node.operand)) from None


def domain_of(name: TypeName, names: Names) -> NamedColumn | None:
    """Return a column of the domain that a name means, without a name; None if the name means a type.

    Raises:
        SqlError: the name is that of a relation (0A000).
    """
    if is_type(name) or name.modifiers:
        return None
    try:
        of_domain = names.domain(name.name)
    except SqlError as error:
        raise located(error, name.offset) from None
    return None if name.is_array else of_domain


@lru_cache(maxsize=4096)
def _operator(symbol: str, types: tuple[Type, ...]) -> Resolution:
    """Resolve an operator for operand types; results are cached."""
    return resolve_operator(symbol, types)


def literal_of(node: NumberLiteral | StringLiteral | BooleanLiteral | NullLiteral) -> Literal:
    """Return a literal; a string and NULL have the type `UNKNOWN`."""
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
