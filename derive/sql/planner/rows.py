"""Rows as arguments: `to_jsonb(t)`, `json_agg(ROW(a, b))`, `count(t)`, `t IS NULL`, `t::text`.

A row is no value of the algebra, so the planner works with its columns: as JSON a row is an object of its columns. In a
subquery, a column that is a row is a column of whether the row is there, and columns of its fields (`row_columns`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from derive.algebra.expression import Call, Case, Column, Expression, Literal
from derive.algebra.modifier_inference import RECORDS
from derive.algebra.relation import Filter, Join, OuterJoin, Relation, Side
from derive.algebra.rewrite import deepened, inputs_of
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.scalar.logic import has_equal_data
from derive.sql.parser.ast import (
    ArrayValue,
    BooleanLiteral,
    CaseExpression,
    ColumnReference,
    FunctionCall,
    Logical,
    NullLiteral,
    NumberLiteral,
    QualifiedName,
    Resolved,
    RowValue,
    ScalarQuery,
    Select,
    Star,
    StringLiteral,
    SyntaxNode,
    Test,
    TypeCast,
    TypeName,
)
from derive.sql.planner.equal_values import with_spaces
from derive.sql.planner.interfaces import Expressions
from derive.sql.planner.output import start_of
from derive.sql.planner.row_columns import field_name
from derive.sql.planner.scope import Frame, VisibleColumn

_OBJECT = "jsonb_build_object"
_MOVING = frozenset({"lag", "lead", "first_value", "last_value", "nth_value"})
"""Window functions that return the argument in another row."""
_OF_JSON = frozenset({"to_json", "to_jsonb", "row_to_json"})
_WITH_JSON = frozenset(
    f"{prefix}_{name}"
    for prefix in ("json", "jsonb")
    for name in (
        *("agg", "agg_strict", "build_array", "build_object", "array[strict]"),
        *(f"object{end}" for end in ("[]", "[strict]", "[unique]", "[unique strict]")),
        *(f"object_agg{end}" for end in ("", "_strict", "_unique", "_unique_strict")),
    )
)


@dataclass(frozen=True, slots=True)
class Row:
    """The columns of a row.

    Attributes:
        names: their names.
        items: their values.
        may_be_null: whether there may be no such row, as behind an outer join.
        offset: start of the row in the statement.
        presence: whether the row is there, for the value of a column; None for another row.
    """

    names: tuple[str, ...]
    items: tuple[SyntaxNode, ...]
    may_be_null: bool
    offset: int
    presence: SyntaxNode | None = None

    @property
    def is_null(self) -> SyntaxNode:
        """Return the condition that the row is missing; of a relation's row, that all columns are NULL."""
        if self.presence is not None:
            return Test(self.presence, "true", True, self.offset)
        return Test(RowValue(self.items, self.offset), "null", False, self.offset)

    @property
    def is_present(self) -> SyntaxNode:
        """Return the condition that the row is there."""
        if self.presence is not None:
            return Test(self.presence, "true", False, self.offset)
        return Logical("not", (self.is_null,), self.offset) if self.may_be_null else BooleanLiteral(True, self.offset)

    def unless_null(self, value: SyntaxNode) -> SyntaxNode:
        """Return a value of the row; NULL if the row is missing."""
        if not self.may_be_null:
            return value
        return CaseExpression(None, ((self.is_null, NullLiteral(self.offset)),), value, self.offset)

    def as_object(self) -> SyntaxNode:
        """Return the row as a JSON object."""
        pairs = zip(self.names, self.items, strict=True)
        arguments = tuple(part for name, item in pairs for part in (StringLiteral(name, self.offset), item))
        return self.unless_null(FunctionCall(QualifiedName(None, _OBJECT, self.offset), arguments, self.offset))


def row_of(node: SyntaxNode, frame: Frame) -> Row | None:
    """Return the columns of `ROW(…)`, or of a relation in FROM that a name or `name.*` refers to; None for no row."""
    if isinstance(node, RowValue):
        items = tuple(part for item in node.items for part in _expanded(item, frame))
        return Row(tuple(f"f{index}" for index in range(1, len(items) + 1)), items, False, node.offset)
    if isinstance(node, Star) and len(node.qualifier) == 1:
        return _whole_row(node.qualifier[0], frame, node.offset)
    if isinstance(node, CaseExpression):
        return _chosen(node, frame)
    if isinstance(node, FunctionCall):
        return _of_call(node, frame)
    if not isinstance(node, ColumnReference) or len(node.parts) > 2:
        return None
    row = _column_row(node, frame)
    return _whole_row(node.parts[0], frame, node.offset) if row is None and len(node.parts) == 1 else row


def _chosen(node: CaseExpression, frame: Frame) -> Row | None:
    """Return the row that CASE chooses: each field is the same choice; None unless all results are rows or NULL."""
    results = [result for _, result in node.branches]
    results.append(NullLiteral(node.offset) if node.otherwise is None else node.otherwise)
    rows = rows_alike([result for result in results if not isinstance(result, NullLiteral)], frame)
    if rows is None:
        return None
    remaining = iter(rows)
    chosen = [None if isinstance(result, NullLiteral) else next(remaining) for result in results]

    def choice(parts: Sequence[SyntaxNode]) -> CaseExpression:
        branches = tuple((when, part) for (when, _), part in zip(node.branches, parts, strict=False))
        return replace(node, branches=branches, otherwise=parts[-1], is_field=True)

    fields = [row.items if row else (NullLiteral(node.offset),) * len(rows[0].items) for row in chosen]
    presence = choice([row.is_present if row else BooleanLiteral(False, node.offset) for row in chosen])
    return Row(rows[0].names, tuple(map(choice, zip(*fields, strict=True))), True, node.offset, presence)


def rows_alike(nodes: Sequence[SyntaxNode], frame: Frame) -> list[Row] | None:
    """Return rows of as many fields; None if an expression is no row, or there is none.

    Raises:
        SqlError: the rows have different numbers of fields (0A000).
    """
    rows: list[Row] = []
    for node in nodes:
        row = row_of(node, frame)
        if row is None:
            return None
        rows.append(row)
        if len(row.items) != len(rows[0].items):
            message = "rows with different numbers of columns in one place are not supported"
            raise SqlError("0A000", message, offset=row.offset, hint="Add NULL::type for missing fields.")
    return rows or None


def _of_call(node: FunctionCall, frame: Frame) -> Row | None:
    """Return the row that `coalesce` chooses, or a window function returns; None for another call."""
    name = node.name.name
    if name == "coalesce" and node.is_special:
        arguments = [argument for argument in node.arguments if not isinstance(argument, NullLiteral)]
        rows = rows_alike(arguments, frame) or ()
        branches = tuple((row.is_present, argument) for row, argument in zip(rows, arguments, strict=False))
        return _chosen(CaseExpression(None, branches, None, node.offset), frame) if branches else None
    if node.over is None or name not in _MOVING or not 0 < len(node.arguments) <= 2:
        return None
    row = row_of(node.arguments[0], frame)
    if row is None:
        return None

    def moved(part: SyntaxNode) -> FunctionCall:
        return replace(node, arguments=(part, *node.arguments[1:]))

    return Row(row.names, tuple(map(moved, row.items)), True, node.offset, moved(row.is_present))


def _column_row(node: ColumnReference, frame: Frame) -> Row | None:
    """Return the row that is the value of a column; None if the name means something else."""
    *qualifier, name = node.parts
    for depth, part in frame.frames():
        columns = part.columns_of(tuple(qualifier), node.offset)
        matching = [column for column in columns or () if column.name == name]
        if len(matching) == 1 and matching[0].fields:
            part.references.extend((one.expression, node.offset, name) for one in (matching[0], *matching[0].fields))
            return row_of_column(matching[0].mapped(partial(deepened, by=depth)), node.offset)
        if matching or (qualifier and columns is not None):
            return None
    return None


def row_of_column(column: VisibleColumn, offset: int) -> Row:
    """Return the row that is the value of a column."""
    items = tuple(Resolved(field.expression, offset) for field in column.fields)
    names = tuple(field.name for field in column.fields)
    return Row(names, items, True, offset, Resolved(column.expression, offset))


def _expanded(item: SyntaxNode, frame: Frame) -> tuple[SyntaxNode, ...]:
    row = row_of(item, frame) if isinstance(item, Star) else None
    return (item,) if row is None else row.items


def _whole_row(name: str, frame: Frame, offset: int) -> Row | None:
    if any(column.name == name for _, part in frame.frames() for column in part.source.columns):
        return None
    for _, part in frame.frames():
        table = next((table for table in part.source.tables if table.name == name), None)
        if table is not None and table.is_value:
            return None
        if table is not None:
            names = tuple(column.name for column in table.columns)
            items = tuple(ColumnReference((name, column), offset) for column in names)
            first = table.columns[0].expression if table.columns else None
            index = first.index if isinstance(first, Column) else None
            return Row(names, items, _may_lack(part.source.relation, index), offset)
    return None


def _may_lack(relation: Relation, index: int | None) -> bool:
    """Return whether an outer join may fill the column of a relation with NULL; true if that is not clear."""
    match relation:
        case OuterJoin() if index is not None:
            width = len(relation.left.types)
            is_left = index < width
            filling = {Side.RIGHT, Side.FULL} if is_left else {Side.LEFT, Side.FULL}
            inner, place = (relation.left, index) if is_left else (relation.right, index - width)
            return relation.side in filling or _may_lack(inner, place)
        case OuterJoin():
            return True
        case Join() if index is not None:
            for part in relation.inputs:
                if index < len(part.types):
                    return _may_lack(part, index)
                index -= len(part.types)
        case Filter():
            return _may_lack(relation.input, index)
    return any(_may_lack(part, None) for part in inputs_of(relation))


def without_rows(node: FunctionCall, frame: Frame) -> SyntaxNode:
    """Return a call of a function of JSON, or of `count`, with columns in place of rows; another call unchanged."""
    name = node.name.name
    if name == "count" and len(node.arguments) == 1:
        return _counted(node, frame)
    if name not in _WITH_JSON and name not in _OF_JSON:
        return node
    node = _of_array(node, frame)
    name = node.name.name
    keys = {0} if "object_agg" in name else set(range(0, len(node.arguments), 2)) if "object" in name else set()
    arguments = tuple(one if at in keys else _within_query(one) for at, one in enumerate(node.arguments))
    if arguments != node.arguments:
        return arguments[0] if name in _OF_JSON else replace(node, arguments=arguments)
    rows = [row_of(argument, frame) for argument in node.arguments]
    if name in _OF_JSON and rows[0] is not None:
        return rows[0].as_object()
    if name in _OF_JSON or not any(rows):
        return node
    pairs = zip(node.arguments, rows, strict=True)
    return replace(node, arguments=tuple(argument if row is None else row.as_object() for argument, row in pairs))


def _of_array(node: FunctionCall, frame: Frame) -> FunctionCall:
    """Return `to_jsonb(array_agg(row))` as `jsonb_agg(row)`, which has the same value; another call unchanged."""
    inner = node.arguments[0] if node.arguments and node.name.name in _OF_JSON else None
    if not isinstance(inner, FunctionCall) or inner.name.name != "array_agg" or len(inner.arguments) != 1:
        return node
    is_row = not inner.is_distinct and row_of(inner.arguments[0], frame) is not None
    return replace(inner, name=replace(inner.name, name="jsonb_agg")) if is_row else node


def _counted(node: FunctionCall, frame: Frame) -> FunctionCall:
    """Return `count` of a row as `count` of its text, if equal rows count once, or of a number."""
    row = row_of(node.arguments[0], frame)
    if row is None:
        return node
    if node.is_distinct:
        return replace(node, arguments=(_as_text(node.arguments[0]),))
    return replace(node, arguments=(row.unless_null(NumberLiteral("1", node.offset)),))


def _within_query(node: SyntaxNode) -> SyntaxNode:
    """Return a subquery of one name as a subquery of the name's JSON, because the name may be that of a row."""
    if not isinstance(node, ScalarQuery) or not isinstance(node.query.body, Select) or node.query.order:
        return node
    select = node.query.body
    if len(select.items) != 1 or select.is_distinct or select.distinct_on:
        return node
    item = select.items[0]
    if not isinstance(item.expression, ColumnReference | RowValue):
        return node
    name = QualifiedName(None, "to_jsonb", item.offset)
    as_json = replace(item, expression=FunctionCall(name, (item.expression,), item.offset))
    return replace(node, query=replace(node.query, body=replace(select, items=(as_json,))))


def row_text(row: Row, expressions: Expressions, frame: Frame, function: str = "record_text") -> Expression:
    """Return a row as PostgreSQL shows it: `(1,"a b",)`; the function is `RECORD` for a row of a result."""

    def planned(item: SyntaxNode) -> Expression:
        inner = row_of(item, frame) if isinstance(item, RowValue | ColumnReference) else None
        if inner is not None:
            return row_text(inner, expressions, frame)
        value = expressions.plan(item)
        if value.type is Type.BOOLEAN:
            letters = (Literal("t", Type.TEXT), Literal("f", Type.TEXT), Literal(None, Type.TEXT))
            negated = Call("not", (value,), Type.BOOLEAN)
            return Case(((value, letters[0]), (negated, letters[1])), letters[2], Type.TEXT)
        padded = with_spaces(value, frame)
        return padded if padded is not value else expressions.plan(_as_text(item))

    text: Expression = Call(function, tuple(map(planned, row.items)), Type.TEXT)
    if not row.may_be_null:
        return text
    return Case(((expressions.plan(row.is_null), Literal(None, Type.TEXT)),), text, Type.TEXT)


def with_fields(
    rows: Sequence[Sequence[SyntaxNode]], frame: Frame
) -> tuple[tuple[str, ...], Sequence[Sequence[SyntaxNode]]]:
    """Return the names of the columns of VALUES, and its rows; a column that is a row has columns for its fields.

    Raises:
        SqlError: a column has a row, and another value (42804).
    """
    names: list[str] = []
    columns: list[Sequence[SyntaxNode]] = []
    for number, values in enumerate(zip(*rows, strict=True), start=1):
        names.append(f"column{number}")
        own = [value for value in values if not isinstance(value, NullLiteral)]
        if not any(row_of(value, frame) for value in own):
            columns.append(values)
            continue
        inner = rows_alike(own, frame)
        if inner is None:
            other = next(value for value in own if row_of(value, frame) is None)
            message = "VALUES types record and another type cannot be matched"
            raise SqlError("42804", message, offset=start_of(other))
        names += map(field_name, inner[0].names)
        remaining = iter(inner)
        chosen = [None if isinstance(value, NullLiteral) else next(remaining) for value in values]
        nulls = tuple(NullLiteral(start_of(value)) for value in inner[0].items)
        columns.append([row.is_present if row else BooleanLiteral(False, start_of(values[0])) for row in chosen])
        columns += zip(*(row.items if row else nulls for row in chosen), strict=True)
    return tuple(names), tuple(zip(*columns, strict=True))


def array_text(node: SyntaxNode, expressions: Expressions, frame: Frame) -> Expression | None:
    """Return an array of rows, `ARRAY[row]` or `array_agg(row)`, as PostgreSQL shows it; None for another value."""
    if isinstance(node, ArrayValue):
        rows = rows_alike([item for item in node.items if not isinstance(item, NullLiteral)], frame)
        if rows is None:
            return None
        inner: SyntaxNode = replace(node, items=tuple(map(_as_text, node.items)))
    elif isinstance(node, FunctionCall) and node.name.name == "array_agg" and len(node.arguments) == 1:
        if row_of(node.arguments[0], frame) is None:
            return None
        if node.is_distinct:
            message = "array_agg(DISTINCT …) of rows is not supported"
            raise SqlError("0A000", message, offset=node.offset, hint="Aggregate the rows of SELECT DISTINCT.")
        inner = replace(node, arguments=(_as_text(node.arguments[0]),))
    else:
        return None
    return Call(RECORDS, (expressions.plan(_as_text(inner)),), Type.TEXT)


def is_array_of_rows(value: Expression) -> bool:
    """Return whether a value is the text of an array of rows, which has another order than the array."""
    return isinstance(value, Call) and value.function == RECORDS


def require_one_type(values: Sequence[Expression], nodes: Sequence[SyntaxNode]) -> None:
    """Check that the same field of several rows has one type: a record keeps the types of its own fields.

    Raises:
        SqlError: the types differ (0A000).
    """
    known = [
        (Type.TEXT if value.type is Type.UNKNOWN else value.type, start_of(node))
        for value, node in zip(values, nodes, strict=True)
        if value != Literal(None, Type.UNKNOWN)
    ]
    for kind, offset in known:
        if kind is not known[0][0]:
            message = f"a field of rows cannot be {known[0][0].value} in one row and {kind.value} in another"
            raise SqlError("0A000", message, offset=offset, hint=f"Cast it: x::{known[0][0].value}.")


def require_equal_texts(row: Row, expressions: Expressions) -> None:
    """Check that equal rows have equal texts, and only these.

    Raises:
        SqlError: a column is an interval, of which equal ones have several texts (0A000).
    """
    for item in row.items:
        if not has_equal_data(expressions.plan(item).type):
            hint = "Write the columns one by one."
            raise SqlError("0A000", "DISTINCT of a row with intervals is not supported", offset=row.offset, hint=hint)


def field_of(row: Row, name: str, of: str, offset: int) -> SyntaxNode:
    """Return a field of a row.

    Args:
        row: the row.
        name: name of the field.
        of: name of the type of the row, for messages.
        offset: offset of the name.

    Raises:
        SqlError: the row has no such field (42703).
    """
    if name not in row.names:
        message = f'column "{name}" not found in data type {of}'
        if of == "record":
            message = f'could not identify column "{name}" in record data type'
        raise SqlError("42703", message, offset=offset)
    return row.items[row.names.index(name)]


def _as_text(item: SyntaxNode) -> SyntaxNode:
    offset = start_of(item)
    return TypeCast(item, TypeName("text", (), offset), offset)
