"""Planner of queries: WITH, recursive or not, set operations, VALUES, ORDER BY and LIMIT around SELECT."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import count
from typing import Any

from derive.algebra.expression import Column, Expression, Literal, OuterColumn
from derive.algebra.modifier_inference import RECORD, constant_modifiers, is_null_column, modifiers_of
from derive.algebra.relation import (
    Constant,
    GlobalId,
    Project,
    Recurring,
    Recursion,
    Reduce,
    Relation,
    SetOperator,
    UnionAll,
)
from derive.algebra.rewrite import inputs_of, rewritten_relation, with_columns
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.scalar.logic import has_equal_data
from derive.sql.parser.ast import (
    ColumnReference,
    CommonTable,
    DerivedTable,
    FunctionTable,
    JoinedTable,
    JoinKind,
    Query,
    QueryBody,
    RelationReference,
    Select,
    SetQuery,
    SyntaxNode,
    Values,
    With,
)
from derive.sql.planner.building import columns_of, has_subquery, projected
from derive.sql.planner.coercion import Coercion, ParameterTypes
from derive.sql.planner.equal_values import distinct_rows, is_padded, of_any_length, of_one_type, set_operation
from derive.sql.planner.expressions import ExpressionPlanner
from derive.sql.planner.from_clause import with_outer_rows
from derive.sql.planner.interfaces import Body, CommonRelation, Names, Queries, RowsAs, first_with_ties
from derive.sql.planner.output import ordinal_of, output_named, sorted_by, sorted_column, start_of
from derive.sql.planner.row_columns import (
    groups_of,
    has_rows,
    is_field,
    require_same_rows,
    shown_names,
    visible_columns,
    with_names,
)
from derive.sql.planner.rows import require_one_type, row_of_column, row_text, with_fields
from derive.sql.planner.scope import NO_SOURCE, Clause, Frame, Source
from derive.sql.planner.scope import VALUES as VALUES_CLAUSE
from derive.sql.planner.select import SelectPlanner


def combined(coercion: Coercion, node: SetQuery, left: Body, right: Body) -> Body:
    """Plan a set operation of two queries."""
    if len(shown_names(left.names)) != len(shown_names(right.names)):
        message = f"each {node.operator} query must have the same number of columns"
        raise SqlError("42601", message, offset=right.offsets[0] if right.offsets else node.right.offset)
    at = right.offsets[0] if right.offsets else node.right.offset
    require_same_rows(node.operator, left.names, right.names, at)
    pairs = zip(left.relation.types, right.relation.types, strict=True)
    types = [
        coercion.common(pair, [right_offset] * 2, node.operator)
        for pair, right_offset in zip(pairs, right.offsets, strict=True)
    ]
    inputs = [retyped(coercion, body.relation, types, body.offsets) for body in (left, right)]
    texts = _texts_of_any_length(left.relation, right.relation, types)
    if texts:
        inputs = [
            projected(one, [of_any_length(column) if column.index in texts else column for column in columns_of(one)])
            for one in inputs
        ]
    if node.operator != "UNION":
        operator = SetOperator(node.operator.lower())
        relation = set_operation(operator, inputs[0], inputs[1], is_all=node.is_all)
        return Body(relation, left.names, offsets=left.offsets)
    if isinstance(inputs[0], UnionAll):
        inputs[:1] = inputs[0].inputs
    union = UnionAll(tuple(inputs))
    return Body(union if node.is_all else distinct_rows(union), left.names, offsets=left.offsets)


def _texts_of_any_length(left: Relation, right: Relation, types: Sequence[Type]) -> set[int]:
    """Return the columns that become `character` of any length: the first side has `character(n)`, the other a text."""
    modifiers = zip(modifiers_of(left), modifiers_of(right), types, strict=False)
    columns = set()
    for index, (own, other, kind) in enumerate(modifiers):
        first = other if left.types[index] is Type.UNKNOWN else own
        is_alone = any(is_null_column(side, index) for side in (left, right))
        if kind is Type.TEXT and is_padded(first) and own != other and not is_alone:
            columns.add(index)
    return columns


def retyped(coercion: Coercion, relation: Relation, types: Sequence[Type], offsets: Sequence[int]) -> Relation:
    """Cast the columns of a relation, in its outermost projection if there is one.

    Raises:
        SqlError: a column cannot be cast (42846).
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
    """Plan `VALUES`: one constant relation if all values are literals, else a union of rows."""
    expressions = queries.expressions(Frame(NO_SOURCE, parent, VALUES_CLAUSE))
    width = len(node.rows[0])
    for row in node.rows:
        if len(row) != width:
            raise SqlError("42601", "VALUES lists must all be the same length", offset=row[0].offset)
    names, rows = with_fields(node.rows, expressions.frame)
    planned = [[expressions.plan(value) for value in row] for row in rows]
    for index, name in enumerate(names):
        column = [row[index] for row in planned]
        offsets = [start_of(row[index]) for row in rows]
        if is_field(name):
            require_one_type(column, [row[index] for row in rows])
        elif keeps_unknown and all(value.type is Type.UNKNOWN for value in column):
            continue
        alike = queries.coercion.alike(of_one_type(column, expressions), offsets, "VALUES")
        for expressions_of_row, value in zip(planned, alike, strict=True):
            expressions_of_row[index] = value
    return Body(rows_of(planned), names, offsets=tuple(map(start_of, rows[0])))


def rows_of(rows: Sequence[Sequence[Expression]]) -> Relation:
    """Return a relation whose rows are given as expressions."""
    if all(isinstance(value, Literal) for row in rows for value in row):
        data = tuple(tuple(value.value for value in row if isinstance(value, Literal)) for row in rows)
        return Constant(data, tuple(value.type for value in rows[0]), constant_modifiers(rows))
    projects = tuple(Project(NO_SOURCE.relation, tuple(row)) for row in rows)
    return projects[0] if len(projects) == 1 else UnionAll(projects)


_OUTER = {JoinKind.LEFT: (False, True), JoinKind.RIGHT: (True, False), JoinKind.FULL: (True, True)}
"""For each kind of join, whether the left and the right side may be padded with NULLs."""


def renamed(names: tuple[str, ...], others: tuple[str, ...], what: str, offset: int) -> tuple[str, ...]:
    """Return names of columns after the first names are replaced."""
    shown = shown_names(names)
    if len(others) > len(shown):
        message = f"{what} has {len(shown)} columns available but {len(others)} columns specified"
        raise SqlError("42P10", message, offset=offset)
    return with_names(names, (*others, *shown[len(others) :]))


def refers_to(node: object, name: str) -> bool:
    """Return whether a query or a statement refers to a common table expression."""
    return any(True for _ in _references(node, name, None))


def recursive(queries: Queries, table: CommonTable, parent: Frame | None, level: int) -> CommonRelation:
    """Plan a recursive query.

    Args:
        queries: planner of queries.
        table: the common table expression.
        parent: the outer query.
        level: number of outer queries.

    Raises:
        SqlError: 42P19, a recursive reference is misplaced; 42804, the types differ from the types of the first rows;
            0A000.
    """
    query, name = table.query, table.name
    united = _united(table)
    outside = queries.common
    try:
        queries.define(With(query.common_tables, query.is_recursive), parent)
        base = queries.unordered(united.left, parent, False)
        names = renamed(base.names, table.columns, f'WITH query "{name}"', table.offset)
        recurring = Recurring(next(queries.recursions), base.relation.types)
        queries.common = {**queries.common, name: CommonRelation(recurring, names, level)}
        step = queries.unordered(united.right, parent, True)
    finally:
        queries.common = outside
    both = combined(queries.coercion, replace(united, is_all=True), base, step).relation
    for index, (kind, other) in enumerate(zip(recurring.types, both.types, strict=True)):
        if kind is not other:
            message = f'recursive query "{name}" column {index + 1} has type {kind.value} in non-recursive term'
            hint = "Cast the output of the non-recursive term to the correct type."
            raise SqlError("42804", f"{message} but type {other.value} overall", hint=hint, offset=base.offsets[index])
    assert isinstance(both, UnionAll)
    if not (united.is_all or all(map(has_equal_data, both.types))):
        hint = "Write UNION ALL, or cast the interval to text."
        raise SqlError("0A000", "UNION of intervals in WITH RECURSIVE is not supported", offset=table.offset, hint=hint)
    *first, last = both.inputs
    relation = Recursion(recurring.id, first[0] if len(first) == 1 else UnionAll(tuple(first)), last, not united.is_all)
    offset = next(_references(united.right, name, None))[0].offset
    if parent is None or not _refers_outside(relation) or _refers_outside(parent.source.relation):
        _require_simple(relation, name, offset)
        return CommonRelation(relation, names, level)
    widened, dependent = with_outer_rows(relation, parent.source.relation)
    _require_simple(widened, name, offset)
    return CommonRelation(dependent, names, level)


def _united(table: CommonTable) -> SetQuery:
    """Return the UNION of the first rows and the recursive step, after checks of the recursive references."""
    query, name = table.query, table.name
    body = query.body
    while isinstance(body, Query) and not (body.common_tables or body.order or body.limit or body.limit_offset):
        body = body.body
    if not isinstance(body, SetQuery) or body.operator != "UNION":
        message = f'recursive query "{name}" does not have the form non-recursive-term UNION [ALL] recursive-term'
        raise SqlError("42P19", message, offset=table.offset)
    for reference, _ in _references(body.left, name, None):
        raise _misplaced(name, "must not appear within its non-recursive term", reference)
    references = [*_references(body.right, name, None)]
    for number, (reference, place) in enumerate(references):
        if place is not None:
            raise _misplaced(name, f"must not appear within {place}", reference)
        if number:
            raise _misplaced(name, "must not appear more than once", reference)
    for clause, items in (("ORDER BY", query.order), ("OFFSET", query.limit_offset), ("LIMIT", query.limit)):
        if items:
            offset = items[0].expression.offset if isinstance(items, tuple) else items.offset
            raise SqlError("0A000", f"{clause} in a recursive query is not implemented", offset=offset)
    if not references:
        raise SqlError("0A000", "WITH RECURSIVE that refers to itself in a WITH of its own is not supported")
    return body


def _misplaced(name: str, where: str, reference: RelationReference) -> SqlError:
    return SqlError("42P19", f'recursive reference to query "{name}" {where}', offset=reference.offset)


def _references(node: Any, name: str, place: str | None) -> Iterator[tuple[RelationReference, str | None]]:
    """Yield each reference to a name, with the surrounding construct that forbids recursion, or None."""
    match node:
        case RelationReference(name=reference):
            if reference.schema is None and reference.name == name:
                yield node, place
        case Query() if any(table.name == name for table in node.common_tables):
            return  # another definition hides the name
        case JoinedTable(left=left, right=right, kind=kind):
            for side, is_outer in zip((left, right), _OUTER.get(kind, (False, False)), strict=True):
                yield from _references(side, name, "an outer join" if is_outer else place)
            yield from _references(node.condition, name, "a subquery")
        case SetQuery(left=left, right=right, operator=operator):
            around = f"{operator}" if operator != "UNION" and node.is_all else place
            yield from _references(left, name, around)
            yield from _references(right, name, "EXCEPT" if operator == "EXCEPT" else around)
        case DerivedTable(query=query):
            yield from _references(query, name, place)
        case FunctionTable(call=call):
            yield from _references(call, name, "a subquery")
        case tuple():
            for part in node:
                yield from _references(part, name, place)
        case _ if is_dataclass(node):
            for item in fields(node):
                is_around = isinstance(getattr(node, item.name), Query) and not isinstance(node, Query | CommonTable)
                yield from _references(getattr(node, item.name), name, "a subquery" if is_around else place)


def _require_simple(recursion: Recursion, name: str, offset: int) -> None:
    if _refers_outside(recursion):
        hint = "Join the relation to the surrounding query, or write the surrounding query without LATERAL."
        message = "WITH RECURSIVE that refers to the query around it is not supported"
        raise SqlError("0A000", message, hint=hint, offset=offset)
    if any(isinstance(part, Recursion) and not _recurring(part) <= {part.id} for part in _parts(recursion.step)):
        message = "WITH RECURSIVE inside of another one that it refers to is not supported"
        raise SqlError("0A000", message, offset=offset)
    for part in _parts(recursion.step):
        if isinstance(part, Reduce) and part.aggregates and recursion.id in _recurring(part):
            message = "aggregate functions are not allowed in a recursive query's recursive term"
            raise SqlError("42P19", message, hint=f'Aggregate the rows of "{name}" behind WITH.', offset=offset)


def _refers_outside(relation: Relation) -> bool:
    has = False

    def note(part: Expression, depth: int) -> Expression | None:
        nonlocal has
        has = has or (isinstance(part, OuterColumn) and part.depth > depth)
        return None

    rewritten_relation(relation, note)
    return has


def _recurring(relation: Relation) -> set[int]:
    return {part.id for part in _parts(relation) if isinstance(part, Recurring)}


def _parts(relation: Relation) -> Iterator[Relation]:
    yield relation
    for part in inputs_of(relation):
        yield from _parts(part)


def _behind(column: Column, by: int) -> Column:
    return replace(column, index=column.index + by)


class QueryPlanner:
    """Planner of the queries of one statement."""

    def __init__(self, names: Names, parameters: ParameterTypes) -> None:
        self.names = names
        self.parameters = parameters
        self.coercion = Coercion(parameters, names.zone)
        self.common: Mapping[str, CommonRelation] = {}
        self.recursions: Iterator[int] = count()
        self.arguments: Mapping[str, int] = {}
        self.views: dict[int, tuple[Relation, GlobalId]] = {}

    def expressions(self, frame: Frame) -> ExpressionPlanner:
        """Return the planner of a query's expressions."""
        return ExpressionPlanner(self, frame)

    def subquery(self, query: Query, frame: Frame) -> Relation:
        """Plan a subquery of an expression."""
        return self.plan(query, frame).settled()

    def plan(
        self, query: Query, parent: Frame | None, *, keeps_unknown: bool = False, rows: RowsAs = RowsAs.REFUSED
    ) -> Body:
        """Plan a query.

        Args:
            query: the query.
            parent: the outer query to which expressions may refer; None if missing.
            keeps_unknown: whether untyped literals keep no type, because the caller casts them.
            rows: the treatment of columns that are rows.
        """
        outside = self.common
        try:
            self.define(With(query.common_tables, query.is_recursive), parent)
            return self._ordered(query, parent, keeps_unknown, rows)
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
            body = self.plan(table.query, parent, rows=RowsAs.COLUMNS)
            columns = renamed(body.names, table.columns, f'WITH query "{table.name}"', table.offset)
            self.common = {**self.common, table.name: CommonRelation(body.settled(), columns, level)}

    def _ordered(self, query: Query, parent: Frame | None, keeps_unknown: bool, rows: RowsAs) -> Body:
        keeps_unknown = keeps_unknown and not (query.order or query.limit or query.limit_offset)
        if isinstance(query.body, Select):
            select = SelectPlanner(self, query.body, parent, rows=rows)
            body = select.plan(query.order, keeps_unknown=keeps_unknown)
        else:
            body = self.unordered(query.body, parent, keeps_unknown)
            if query.order:
                body = self._with_order(query, body, parent)
            if has_rows(body.names) and rows is not RowsAs.COLUMNS:
                body = self._without_row_columns(body, rows, query.offset)
        limit = self._count(query.limit, "LIMIT")
        offset = self._count(query.limit_offset, "OFFSET")
        if query.with_ties and limit is not None:
            return replace(body, relation=first_with_ties(body.relation, body.order, limit, offset))
        return replace(body, limit=limit, offset=offset)

    def unordered(self, body: QueryBody, parent: Frame | None, keeps_unknown: bool) -> Body:
        """Plan a query without WITH, ORDER BY and LIMIT."""
        match body:
            case Select():
                return SelectPlanner(self, body, parent, rows=RowsAs.COLUMNS).plan((), keeps_unknown=keeps_unknown)
            case Values():
                return values_of(self, body, parent, keeps_unknown)
            case SetQuery():
                left = self.unordered(body.left, parent, True)
                right = self.unordered(body.right, parent, True)
                return combined(self.coercion, body, left, right)
            case Query():
                inner = self.plan(body, parent, keeps_unknown=keeps_unknown, rows=RowsAs.COLUMNS)
                return Body(inner.settled(), inner.names, offsets=inner.offsets)

    def _with_order(self, query: Query, body: Body, parent: Frame | None) -> Body:
        """Return the rows of a query without SELECT, ordered by names or numbers of its columns."""
        columns = visible_columns(body.names, columns_of(body.relation))
        expressions = ExpressionPlanner(self, Frame(Source(body.relation, (), columns), parent, Clause("ORDER BY")))
        order = []
        for item in query.order:
            index = None if item.is_field else ordinal_of(item.expression, len(columns), "ORDER BY")
            if index is None and isinstance(item.expression, ColumnReference) and not item.is_field:
                index = output_named(item.expression, [(column.name, column.expression) for column in columns])
            if index is not None:
                order += sorted_column(columns[index], item)
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

    def _without_row_columns(self, body: Body, rows: RowsAs, offset: int) -> Body:
        """Return the columns of a query with a text in place of each row; the order may need the columns behind them.

        Raises:
            SqlError: a column is a row, and rows are refused (0A000).
        """
        columns = columns_of(body.relation)
        visible = visible_columns(body.names, columns)
        if rows is RowsAs.REFUSED:
            hint = "Write its columns one by one, or to_jsonb(…)."
            raise SqlError("0A000", "rows as values are not supported here", offset=offset, hint=hint)
        frame = Frame(Source(body.relation, (), visible), None)
        expressions = ExpressionPlanner(self, frame)
        shown = [
            row_text(row_of_column(column, offset), expressions, frame, RECORD) if column.fields else column.expression
            for column in visible
        ]
        relation = projected(body.relation, (*shown, *columns))
        order = tuple(
            replace(item, expression=with_columns(item.expression, lambda column: _behind(column, len(shown))))
            for item in body.order
        )
        offsets = tuple(body.offsets[index] for index, _ in groups_of(body.names)) if body.offsets else ()
        return replace(body, relation=relation, names=shown_names(body.names), order=order, offsets=offsets)

    def _count(self, node: SyntaxNode | None, clause: str) -> Expression | None:
        if node is None:
            return None
        frame = Frame(NO_SOURCE, None, Clause(clause))
        value = ExpressionPlanner(self, frame).plan(node)
        if has_subquery(value):
            raise SqlError(
                "0A000",
                f"subqueries in {clause} are not supported",
                offset=start_of(node),
                hint="Write a constant or a parameter.",
            )
        cast = self.coercion.cast(value, Type.BIGINT, start_of(node), "assignment")
        if cast is None:
            message = f"argument of {clause} must be type bigint, not type {value.type.value}"
            raise SqlError("42804", message, offset=start_of(node))
        return cast
