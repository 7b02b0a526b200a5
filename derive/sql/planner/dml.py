"""Planner of INSERT, UPDATE and DELETE, and of column defaults, which are evaluated for each new row."""

from __future__ import annotations

from collections.abc import Sequence

from derive.algebra.expression import Expression, Literal
from derive.algebra.modifier_inference import modifiers_of
from derive.algebra.relation import Finishing, Project, Relation, TopK, Window, WindowFunction
from derive.algebra.rewrite import mentions
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.sql.parser.ast import Alias, DefaultMarker, FromItem, QualifiedName, SelectItem, Star, SyntaxNode, Values
from derive.sql.parser.parse import parse_expression, too_complex
from derive.sql.parser.statement import Delete, Insert, Update
from derive.sql.planner.building import columns_of, filtered, has_subquery, joined, projected
from derive.sql.planner.coercion import ParameterTypes
from derive.sql.planner.dependencies import ids_of, needs_context
from derive.sql.planner.expressions import ExpressionPlanner
from derive.sql.planner.from_clause import TablePlanner, beside, check_names
from derive.sql.planner.interfaces import NamedColumn, NamedRelation, Names, RelationKind
from derive.sql.planner.output import name_of, start_of
from derive.sql.planner.planned import PlannedColumn, PlannedQuery, PlannedWrite, WriteKind, is_of_session
from derive.sql.planner.queries import QueryPlanner, rows_of
from derive.sql.planner.scope import NO_SOURCE, VALUES, WHERE, Clause, Frame, Source, VisibleColumn, VisibleTable
from derive.suggest import suggest

_DEFAULT = Clause("DEFAULT expressions")


def plan_default(node: SyntaxNode, column: NamedColumn, names: Names) -> Expression:
    """Plan a DEFAULT expression.

    Args:
        node: the expression.
        column: the column.
        names: names of relations; a default may not refer to a relation.

    Raises:
        SqlError: 42804, the type does not fit; 0A000, the expression refers to columns or relations; and others.
    """
    parameters = ParameterTypes()
    queries = QueryPlanner(names, parameters)
    expressions = ExpressionPlanner(queries, Frame(NO_SOURCE, None, _DEFAULT))
    try:
        value = expressions.plan(node)
    except SqlError as error:
        if error.sqlstate != "42703":
            raise
        message = "cannot use column reference in DEFAULT expression"
        raise SqlError(
            "0A000", message, offset=error.offset, hint="Write texts in single quotes, as in 'text'."
        ) from error
    if has_subquery(value):
        raise SqlError("0A000", "cannot use subquery in DEFAULT expression", offset=start_of(node))
    cast = queries.coercion.cast(value, column.type, start_of(node), "assignment")
    if parameters.finish():
        raise SqlError("42P02", "cannot use parameters in DEFAULT expression", offset=start_of(node))
    if cast is None:
        message = f'column "{column.name}" is of type {column.type.value}'
        message += f" but default expression is of type {value.type.value}"
        hint = "You will need to rewrite or cast the expression."
        raise SqlError("42804", message, offset=start_of(node), hint=hint)
    return queries.coercion.fitted(cast, column.modifier)


def default_of(column: NamedColumn, names: Names) -> Expression:
    """Return the default expression of a column; NULL without a default."""
    if column.default is None:
        return Literal(None, column.type)
    return plan_default(parse_expression(column.default), column, names)


RETURNING = Clause("RETURNING")
SET = Clause("UPDATE")


def plan_write(statement: Insert | Update | Delete, names: Names, types: Sequence[Type | None] = ()) -> PlannedWrite:
    """Plan a statement that writes a table.

    Args:
        statement: the statement.
        names: names of relations.
        types: types of its parameters, as far as known.

    Raises:
        SqlError: the statement is invalid; the offset shows the cause.
    """
    planner = _WritePlanner(names, ParameterTypes(types), statement)
    try:
        return planner.plan()
    except RecursionError:
        raise too_complex() from None


class _WritePlanner:
    def __init__(self, names: Names, parameters: ParameterTypes, statement: Insert | Update | Delete) -> None:
        self._parameters = parameters
        self._queries = QueryPlanner(names, parameters)
        self._statement = statement
        self._table = writable_table(self._queries, statement.relation)
        self._queries.define(statement.common, None)

    def plan(self) -> PlannedWrite:
        match self._statement:
            case Insert():
                relation, returning = self._insert(self._statement)
                kind = WriteKind.INSERT
            case Update():
                relation, returning = self._update(self._statement)
                kind = WriteKind.UPDATE
            case Delete():
                relation, returning = self._delete(self._statement)
                kind = WriteKind.DELETE
        width = len(relation.types)
        finishing = Finishing((), None, 0, tuple(range(width)))
        columns = tuple(PlannedColumn("", kind) for kind in relation.types)
        parameters = self._parameters.finish()
        of_session, context = mentions(relation, is_of_session), needs_context(relation)
        query = PlannedQuery(relation, finishing, columns, parameters, is_of_session=of_session, needs_context=context)
        return PlannedWrite(kind, self._table, query, returning, ids_of(relation))

    def _insert(self, statement: Insert) -> tuple[Relation, tuple[PlannedColumn, ...] | None]:
        targets = self._targets(statement)
        if statement.query is None:
            rows = rows_of([self._defaults()])
        elif isinstance(statement.query.body, Values) and _is_plain(statement):
            rows = rows_of(self._values(statement, statement.query.body, targets))
        else:
            rows = self._selected(statement, targets)
        source = self._visible(rows, statement.alias)
        return self._with_returning(source, columns_of(rows), statement.returning)

    def _defaults(self) -> list[Expression]:
        """Return a row of defaults."""
        return [default_of(column, self._queries.names) for column in self._table.columns]

    def _targets(self, statement: Insert) -> list[int]:
        """Return the indexes of the columns that the statement assigns."""
        indexes = [column_named(self._table, name, offset) for name, offset in statement.columns]
        for position, (name, offset) in enumerate(statement.columns):
            if indexes[position] in indexes[:position]:
                raise SqlError("42701", f'column "{name}" specified more than once', offset=offset)
        return indexes or list(range(len(self._table.columns)))

    def _values(self, statement: Insert, values: Values, targets: list[int]) -> list[list[Expression]]:
        expressions = ExpressionPlanner(self._queries, Frame(NO_SOURCE, None, VALUES))
        rows = []
        for row in values.rows:
            if len(row) != len(values.rows[0]):
                raise SqlError("42601", "VALUES lists must all be the same length", offset=row[0].offset)
            self._check_count(statement, [start_of(value) for value in row], targets)
            complete = self._defaults()
            for index, node in zip(targets, row, strict=False):
                complete[index] = self._assigned(expressions, node, index)
            rows.append(complete)
        return rows

    @staticmethod
    def _check_count(statement: Insert, offsets: Sequence[int], targets: list[int]) -> None:
        if len(offsets) > len(targets):
            message = "INSERT has more expressions than target columns"
            raise SqlError("42601", message, offset=offsets[len(targets)])
        if statement.columns and len(offsets) < len(targets):
            message = "INSERT has more target columns than expressions"
            raise SqlError("42601", message, offset=statement.columns[len(offsets)][1])

    def _assigned(self, expressions: ExpressionPlanner, node: SyntaxNode, index: int) -> Expression:
        if isinstance(node, DefaultMarker):
            return default_of(self._table.columns[index], self._queries.names)
        return self._assignable(expressions.plan(node), index, start_of(node))

    def _assignable(self, value: Expression, index: int, offset: int | None) -> Expression:
        """Cast a value to the type of its column."""
        column = self._table.columns[index]
        cast = self._queries.coercion.cast(value, column.type, offset or 0, "assignment")
        if cast is None:
            message = f'column "{column.name}" is of type {column.type.value}'
            message += f" but expression is of type {value.type.value}"
            hint = "You will need to rewrite or cast the expression."
            raise SqlError("42804", message, offset=offset, hint=hint)
        return self._queries.coercion.fitted(cast, column.modifier)

    def _selected(self, statement: Insert, targets: list[int]) -> Relation:
        assert statement.query is not None
        body = self._queries.plan(statement.query, None, keeps_unknown=True)
        self._check_count(statement, body.offsets[: len(body.names)], targets)
        relation = body.settled()
        values: Sequence[Expression] = columns_of(relation)
        if isinstance(relation, Project):
            values = relation.expressions
            relation = relation.input
        complete = self._defaults()
        for index, value, offset in zip(targets, values, body.offsets, strict=False):
            complete[index] = self._assignable(value, index, offset)
        return projected(relation, complete)

    def _visible(self, relation: Relation, alias: Alias | None) -> Source:
        """Return a source whose first columns are the columns of the table, under its name or an alias."""
        names = tuple(column.name for column in self._table.columns)
        columns = tuple(
            VisibleColumn(name, column) for name, column in zip(names, columns_of(relation)[: len(names)], strict=True)
        )
        name = alias.name if alias else self._statement.relation.name
        return Source(relation, (VisibleTable(name, None, columns),), columns)

    def _update(self, statement: Update) -> tuple[Relation, tuple[PlannedColumn, ...] | None]:
        source, frame = self._affected(statement.alias, statement.tables, statement.condition)
        frame.clause = SET
        expressions = ExpressionPlanner(self._queries, frame)
        width = len(self._table.columns)
        old = columns_of(source.relation)[:width]
        new: list[Expression] = list(old)
        assigned: set[int] = set()
        for assignment in statement.assignments:
            index = column_named(self._table, assignment.column, assignment.offset)
            if index in assigned:
                message = f'multiple assignments to same column "{assignment.column}"'
                raise SqlError("42601", message, offset=assignment.offset)
            assigned.add(index)
            new[index] = self._assigned(expressions, assignment.value, index)
        own = source.tables[0]
        changed = tuple(VisibleColumn(column.name, new[index]) for index, column in enumerate(own.columns))
        columns = (*changed, *source.columns[width:])
        table = VisibleTable(own.name, own.schema, changed)
        after = Source(source.relation, (table, *source.tables[1:]), columns)
        return self._with_returning(after, (*old, *new), statement.returning)

    def _delete(self, statement: Delete) -> tuple[Relation, tuple[PlannedColumn, ...] | None]:
        source, _ = self._affected(statement.alias, statement.tables, statement.condition)
        old = columns_of(source.relation)[: len(self._table.columns)]
        return self._with_returning(source, old, statement.returning)

    def _affected(
        self, alias: Alias | None, tables: tuple[FromItem, ...], condition: SyntaxNode | None
    ) -> tuple[Source, Frame]:
        """Return the rows of the table for which a condition is true, joined with rows of other tables.

        Return the frame of the query, too.
        """
        relation: Relation = self._table.relation
        if tables:
            # Equal rows are numbered, so that each row is written once, even if several rows are joined to it.
            own = columns_of(relation)
            relation = Window(relation, (WindowFunction("row_number", (), Type.BIGINT, own),))
        source = self._visible(relation, alias)
        if tables:
            others = TablePlanner(self._queries).source(tables, None)
            check_names(source, others, tables[0].offset)
            source = beside(joined(source.relation, others.relation), source, others)
        frame = Frame(source, None, WHERE)
        relation = source.relation
        if condition is not None:
            relation = filtered(relation, ExpressionPlanner(self._queries, frame).boolean(condition, "WHERE"))
        if tables:
            keys = columns_of(relation)[: len(self._table.columns) + 1]  # the columns of the table, and the number
            relation = TopK(relation, keys, (), 1)
        source = Source(relation, source.tables, source.columns)
        frame.source = source
        return source, frame

    def _with_returning(
        self, source: Source, columns: Sequence[Expression], items: tuple[SelectItem, ...]
    ) -> tuple[Relation, tuple[PlannedColumn, ...] | None]:
        """Return a projection to some expressions followed by the RETURNING columns."""
        if not items:
            return projected(source.relation, columns), None
        frame = Frame(source, None, RETURNING)
        expressions = ExpressionPlanner(self._queries, frame)
        named: list[tuple[str, Expression]] = []
        for item in items:
            if isinstance(item.expression, Star):
                star = frame.star(item.expression.qualifier, item.expression.offset)
                named += [(column.name, column.expression) for column in star]
            else:
                named.append((item.name or name_of(item.expression), expressions.known(item.expression)))
        relation = projected(source.relation, (*columns, *(value for _, value in named)))
        modifiers = modifiers_of(relation)[len(columns) :]
        return relation, tuple(
            PlannedColumn(name, value.type, modifier) for (name, value), modifier in zip(named, modifiers, strict=True)
        )


def _is_plain(statement: Insert) -> bool:
    query = statement.query
    return query is not None and not (query.common_tables or query.order or query.limit or query.limit_offset)


def writable_table(queries: QueryPlanner, name: QualifiedName) -> NamedRelation:
    """Return the table to be written.

    Raises:
        SqlError: 42P01, the table does not exist; 42809, the relation is not a table.
    """
    named = TablePlanner(queries).named(name)
    if named.kind is not RelationKind.TABLE:
        hint = f'"{named.name}" is a {named.kind.value}, and its rows are computed from other relations.'
        raise SqlError("42809", f'"{named.name}" is not a table', offset=name.offset, hint=hint)
    return named


def column_named(table: NamedRelation, name: str, offset: int) -> int:
    """Return the index of a table's column.

    Raises:
        SqlError: the column does not exist (42703).
    """
    for index, column in enumerate(table.columns):
        if column.name == name:
            return index
    nearest = suggest(name, (column.name for column in table.columns))
    hint = f'Did you mean "{nearest}"?' if nearest else None
    message = f'column "{name}" of relation "{table.name}" does not exist'
    raise SqlError("42703", message, offset=offset, hint=hint)
