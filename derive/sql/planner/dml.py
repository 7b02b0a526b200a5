"""Planner of INSERT, UPDATE and DELETE, and of column defaults, which are evaluated for each new row."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import cycle

from derive.algebra.expression import Column, Expression, Literal
from derive.algebra.modifier_inference import RECORD, modifiers_of
from derive.algebra.relation import Finishing, Get, Project, Relation, TopK, Window, WindowFunction
from derive.algebra.rewrite import mentions, rewritten, shifted
from derive.algebra.types import Type, TypeModifier
from derive.errors import SqlError
from derive.functions.scalar.text import quoted_literal
from derive.sql.parser.ast import Alias, DefaultMarker, QualifiedName, SelectItem, Star, SyntaxNode, Values
from derive.sql.parser.parse import parse_expression
from derive.sql.parser.sequences import Identity
from derive.sql.parser.statement import Assignment, ConstraintKind, Delete, Insert, OnConflict, Update
from derive.sql.parser.tokens import TokenKind, tokens_of
from derive.sql.planner.building import columns_of, filtered, has_subquery, joined, projected
from derive.sql.planner.coercion import ParameterTypes
from derive.sql.planner.constraints import plan_checks, plan_generated
from derive.sql.planner.dependencies import ids_of, needs_context, volatile_function
from derive.sql.planner.expressions import ExpressionPlanner
from derive.sql.planner.from_clause import TablePlanner, beside, check_names
from derive.sql.planner.index_keys import inferred_keys
from derive.sql.planner.interfaces import (
    STAGED,
    Constraint,
    NamedColumn,
    NamedRelation,
    Names,
    RelationKind,
)
from derive.sql.planner.output import name_of, start_of
from derive.sql.planner.planned import (
    PlannedColumn,
    PlannedConflict,
    PlannedQuery,
    PlannedWrite,
    WriteKind,
    is_of_session,
)
from derive.sql.planner.queries import QueryPlanner, rows_of
from derive.sql.planner.row_expressions import column_named
from derive.sql.planner.rows import row_of, row_text
from derive.sql.planner.scope import NO_SOURCE, VALUES, WHERE, Clause, Frame, Source, VisibleColumn, VisibleTable

_DEFAULT = Clause("DEFAULT expressions", has_own_functions=False)


def plan_default(
    node: SyntaxNode, column: NamedColumn, names: Names, times: dict[int, str] | None = None
) -> Expression:
    """Plan a DEFAULT expression.

    Args:
        node: the expression.
        column: the column.
        names: names of relations; a default may not refer to a relation.
        times: receives the texts of constant times, in this session's zone, by their offsets.

    Raises:
        SqlError: 42804, the type does not fit; 0A000, the expression refers to columns or relations; and others.
    """
    parameters = ParameterTypes()
    queries = QueryPlanner(names, parameters)
    queries.coercion.times = times
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


def default_text(node: SyntaxNode, text: str, column: NamedColumn, names: Names) -> str:
    """Check a DEFAULT expression, and return the text that defines it in each session.

    Constant times are read in the time zone of this session, so their texts get the offset from UTC.

    Args:
        node: the expression.
        text: its text.
        column: the column.
        names: names of relations.

    Raises:
        SqlError: as for `plan_default`.
    """
    plan_default(node, column, names)
    times: dict[int, str] = {}
    plan_default(parse_expression(text), column, names, times)
    literals = [token for token in tokens_of(text) if token.kind is TokenKind.STRING]
    for offset in sorted(times, reverse=True):
        # The place of `timestamptz '…'` is that of the type.
        token = next(token for token in literals if token.offset >= offset)
        text = text[: token.offset] + quoted_literal(times[offset]) + text[token.end :]
    return text


def default_of(column: NamedColumn, names: Names) -> Expression:
    """Return the default expression of a column; NULL without a default."""
    if column.default is None:
        return Literal(None, column.type)
    return plan_default(parse_expression(column.default), column, names)


RETURNING = Clause("RETURNING")
SET = Clause("UPDATE")
_TRUE, _FALSE = Literal(1, Type.BOOLEAN), Literal(0, Type.BOOLEAN)


class Writer:
    """The parts that the planners of all statements share.

    Args:
        queries: planner of queries.
        parameters: types of parameters.
        table: the table to be written.
        name: name of the table in the statement.
    """

    def __init__(self, queries: QueryPlanner, parameters: ParameterTypes, table: NamedRelation, name: str) -> None:
        self.queries, self._parameters, self.table, self._name = queries, parameters, table, name
        self.width = len(table.columns)
        self._identities = [index for index, column in enumerate(table.columns) if column.identity is not None]
        self._generated = plan_generated(table, queries.names)

    def default(self, index: int) -> Expression:
        """Return the default of a column; NULL for a column with numbers or a generated column."""
        return default_of(self.table.columns[index], self.queries.names)

    def visible(self, relation: Relation, alias: Alias | None) -> Source:
        """Return a source whose first columns are the columns of the table, under its name or an alias."""
        return self.source(relation, alias, columns_of(relation)[: self.width])

    def source(self, relation: Relation, alias: Alias | None, own: Sequence[Expression]) -> Source:
        """Return a source of the table's columns, with an expression for each column."""
        pairs = zip(self.table.columns, own, strict=True)
        columns = tuple(VisibleColumn(column.name, expression) for column, expression in pairs)
        name = alias.name if alias else self._name
        return Source(relation, (VisibleTable(name, None, columns),), columns)

    def assigned(self, expressions: ExpressionPlanner, node: SyntaxNode, index: int) -> Expression:
        """Plan the value that a statement assigns to a column."""
        if isinstance(node, DefaultMarker):
            return self.default(index)
        return self.assignable(expressions.plan(node), index, start_of(node))

    def assignable(self, value: Expression, index: int, offset: int | None) -> Expression:
        """Cast a value to the type of its column."""
        column = self.table.columns[index]
        cast = self.queries.coercion.cast(value, column.type, offset or 0, "assignment")
        if cast is None:
            message = f'column "{column.name}" is of type {column.type.value}'
            message += f" but expression is of type {value.type.value}"
            hint = "You will need to rewrite or cast the expression."
            raise SqlError("42804", message, offset=offset, hint=hint)
        return replace(self.queries.coercion.fitted(cast, column.modifier))  # apart from the column that it may be

    def set_columns(
        self, frame: Frame, assignments: Sequence[Assignment], old: Sequence[Expression]
    ) -> tuple[list[Expression], set[int]]:
        """Return the values of a row after SET, and the indexes of columns that get a number."""
        frame.clause = SET
        expressions = ExpressionPlanner(self.queries, frame)
        new, assigned, numbered = list(old), set[int](), set[int]()
        for assignment in assignments:
            index = column_named(self.table, assignment.column, assignment.offset)
            column, is_default = self.table.columns[index], isinstance(assignment.value, DefaultMarker)
            if index in assigned:
                message = f'multiple assignments to same column "{assignment.column}"'
                raise SqlError("42601", message, offset=assignment.offset)
            if not is_default and (column.generated is not None or column.identity is Identity.ALWAYS):
                detail = f'Column "{column.name}" is {_kind_of(column)}.'
                message = f'column "{column.name}" can only be updated to DEFAULT'
                raise SqlError("428C9", message, offset=assignment.offset, detail=detail)
            assigned.add(index)
            if is_default and column.identity is not None:
                numbered.add(index)
            new[index] = self.assigned(expressions, assignment.value, index)
        return new, numbered

    def completed(self, values: Sequence[Expression]) -> list[Expression]:
        """Return a row with the values of its generated columns."""

        def replacement(part: Expression, _: int) -> Expression | None:
            # A column that is only relabeled, as from smallint to integer, has the type of the label.
            return replace(values[part.index], type=part.type) if isinstance(part, Column) else None

        return [
            rewritten(self._generated[index], replacement) if index in self._generated else value
            for index, value in enumerate(values)
        ]

    def with_checks(self, relation: Relation, new: int) -> Relation:
        """Return a relation with a boolean behind its columns for each check of its new rows, which begin at `new`."""
        checks = plan_checks(self.table, self.queries.names)
        if not checks:
            return relation
        return projected(relation, (*columns_of(relation), *(shifted(check, new) for check in checks)))

    def needs_stage(self, relation: Relation, *, has_returning: bool, is_numbered: bool) -> bool:
        """Return whether rows are computed in two steps, because a value is needed twice or comes from a counter."""
        if is_numbered or self._generated:
            return True
        return (has_returning or bool(self.table.checks)) and volatile_function(relation) is not None

    def with_returning(
        self,
        source: Source,
        columns: Sequence[Expression],
        items: tuple[SelectItem, ...],
        action: Expression | None = None,
    ) -> tuple[Relation, tuple[PlannedColumn, ...] | None]:
        """Return a projection to some expressions followed by the RETURNING columns; `action` is `merge_action()`."""
        if not items:
            return projected(source.relation, columns), None
        frame = Frame(source, None, RETURNING, merge_action=action)
        expressions = ExpressionPlanner(self.queries, frame)
        named: list[tuple[str, Expression]] = []
        for item in items:
            if isinstance(item.expression, Star):
                star = frame.star(item.expression.qualifier, item.expression.offset)
                named += [(column.name, column.expression) for column in star]
                continue
            row = row_of(item.expression, frame)
            value = expressions.known(item.expression) if row is None else row_text(row, expressions, frame, RECORD)
            named.append((item.name or name_of(item.expression), value))
        relation = projected(source.relation, (*columns, *(value for _, value in named)))
        declared = {id(value): column for value, column in zip(columns, cycle(self.table.columns), strict=False)}
        modifiers = modifiers_of(relation)[len(columns) :]
        return relation, tuple(
            PlannedColumn(name, value.type, _modifier(declared.get(id(value)), modifier))
            for (name, value), modifier in zip(named, modifiers, strict=True)
        )

    def query(self, relation: Relation) -> PlannedQuery:
        """Return a query of all rows of a relation; the types of all parameters are known."""
        finishing = Finishing((), None, 0, tuple(range(len(relation.types))))
        columns = tuple(PlannedColumn("", kind) for kind in relation.types)
        of_session, context = mentions(relation, is_of_session), needs_context(relation)
        parameters = self._parameters.finish()
        return PlannedQuery(relation, finishing, columns, parameters, is_of_session=of_session, needs_context=context)

    def staged(self, relation: Relation) -> Relation:
        """Return a relation that reads the staged rows of another one."""
        return Get(STAGED, relation.types, tuple(modifiers_of(relation)))

    def flags(self, numbered: Collection[int]) -> list[Expression]:
        """Return, for each column that may get a number, whether it gets one."""
        return [_TRUE if index in numbered else _FALSE for index in self._identities]

    def places(self, new: int) -> tuple[tuple[int, int, int], ...]:
        """Return `PlannedWrite.numbered` for rows whose new rows begin at `new`, followed by the flags."""
        return tuple((index, new + index, new + self.width + place) for place, index in enumerate(self._identities))


def _modifier(column: NamedColumn | None, inferred: TypeModifier | None) -> TypeModifier | None:
    """Return the modifier of a RETURNING column, which may be a column of the table.

    A constant that was fitted to its column has lost the modifier of the column; a text of `char(n)` has another one
    than its column.
    """
    if column is None:
        return inferred
    return column.modifier if column.type is Type.TEXT else column.modifier or inferred


def _kind_of(column: NamedColumn) -> str:
    if column.generated is not None:
        return "a generated column"
    return "an identity column defined as GENERATED ALWAYS"


class InsertPlanner:
    """Planner of INSERT."""

    def __init__(self, writer: Writer, statement: Insert) -> None:
        self._writer, self._table, self._queries = writer, writer.table, writer.queries
        self._statement = statement

    def plan(self) -> PlannedWrite:
        """Return the planned statement."""
        statement, writer = self._statement, self._writer
        targets = self._targets()
        if statement.query is None:
            rows = rows_of([self._row({}, ())])
        elif isinstance(statement.query.body, Values) and _is_plain(statement):
            rows = rows_of(self._values(statement.query.body, targets, Frame(NO_SOURCE, None, VALUES)))
        else:
            rows = self._selected(targets)
        is_numbered = any(column.identity is not None for column in self._table.columns)
        is_staged = writer.needs_stage(rows, has_returning=bool(statement.returning), is_numbered=is_numbered)
        base = writer.staged(rows) if is_staged else rows
        new = writer.completed(columns_of(base)[: writer.width])
        source = writer.source(base, statement.alias, new)
        relation, returning = writer.with_returning(source, new, statement.returning)
        relation = writer.with_checks(relation, 0)
        conflict, reads = None, ids_of(relation) | ids_of(rows)
        if statement.conflict is not None:
            update = self._conflict_update(statement.conflict)
            arbiters = arbiters_of(self._table, statement.conflict)
            conflict = PlannedConflict(arbiters, writer.query(update) if update is not None else None)
            reads |= {self._table.id} | (ids_of(update) if update is not None else frozenset())
        return PlannedWrite(
            WriteKind.INSERT,
            self._table,
            writer.query(rows if is_staged else relation),
            returning,
            reads,
            writer.query(relation) if is_staged else None,
            writer.places(0) if is_staged else (),
            conflict,
        )

    def _row(self, values: Mapping[int, Expression], numbered: Collection[int] | None) -> list[Expression]:
        """Return a complete row; `numbered` has the assigned columns that get a number all the same."""
        columns = range(self._writer.width)
        row = [values[index] if index in values else self._writer.default(index) for index in columns]
        return [*row, *self._writer.flags({*(set(columns) - values.keys()), *(numbered or ())})]

    def _targets(self) -> list[int]:
        """Return the indexes of the columns that the statement assigns."""
        columns = self._statement.columns
        indexes = [column_named(self._table, name, offset) for name, offset in columns]
        for position, (name, offset) in enumerate(columns):
            if indexes[position] in indexes[:position]:
                raise SqlError("42701", f'column "{name}" specified more than once', offset=offset)
        return indexes or list(range(self._writer.width))

    def _require_assignable(self, index: int, offset: int | None) -> None:
        """Check that a column may have a value other than its default."""
        column = self._table.columns[index]
        is_always = column.identity is Identity.ALWAYS and self._statement.overriding is None
        if column.generated is None and not is_always:
            return
        hint = "Use OVERRIDING SYSTEM VALUE to override." if column.generated is None else None
        message = f'cannot insert a non-DEFAULT value into column "{column.name}"'
        detail = f'Column "{column.name}" is {_kind_of(column)}.'
        raise SqlError("428C9", message, offset=offset, detail=detail, hint=hint)

    def _is_overridden(self, index: int) -> bool:
        """Return whether OVERRIDING USER VALUE replaces the values of a column by numbers."""
        return self._statement.overriding == "user" and self._table.columns[index].identity in {
            Identity.ALWAYS,
            Identity.BY_DEFAULT,
        }

    def row(self, frame: Frame) -> list[Expression]:
        """Return the one row of VALUES or DEFAULT VALUES over the columns of a frame, followed by its flags."""
        targets, query = self._targets(), self._statement.query
        if query is None:
            return self._row({}, ())
        assert isinstance(query.body, Values)
        frame.clause = VALUES
        return self._values(query.body, targets, frame)[0]

    def _values(self, values: Values, targets: list[int], frame: Frame) -> list[list[Expression]]:
        expressions = ExpressionPlanner(self._queries, frame)
        rows = []
        for row in values.rows:
            if len(row) != len(values.rows[0]):
                raise SqlError("42601", "VALUES lists must all be the same length", offset=row[0].offset)
            self._check_count([start_of(value) for value in row], targets)
            complete, numbered = {}, set()
            for index, node in zip(targets, row, strict=False):
                if isinstance(node, DefaultMarker) or self._is_overridden(index):
                    numbered.add(index)
                else:
                    self._require_assignable(index, start_of(node))
                complete[index] = self._writer.assigned(expressions, node, index)
            rows.append(self._row(complete, numbered))
        return rows

    def _check_count(self, offsets: Sequence[int], targets: list[int]) -> None:
        columns = self._statement.columns
        if len(offsets) > len(targets):
            message = "INSERT has more expressions than target columns"
            raise SqlError("42601", message, offset=offsets[len(targets)])
        if columns and len(offsets) < len(targets):
            message = "INSERT has more target columns than expressions"
            raise SqlError("42601", message, offset=columns[len(offsets)][1])

    def _selected(self, targets: list[int]) -> Relation:
        assert self._statement.query is not None
        body = self._queries.plan(self._statement.query, None, keeps_unknown=True)
        self._check_count(body.offsets[: len(body.names)], targets)
        relation = body.settled()
        values: Sequence[Expression] = columns_of(relation)
        if isinstance(relation, Project):
            values = relation.expressions
            relation = relation.input
        complete = {}
        for index, value, offset in zip(targets, values, body.offsets, strict=False):
            if not self._is_overridden(index):
                self._require_assignable(index, offset)
            complete[index] = self._writer.assignable(value, index, offset)
        return projected(relation, self._row(complete, list(filter(self._is_overridden, complete))))

    def _conflict_update(self, conflict: OnConflict) -> Relation | None:
        """Return the updated rows of ON CONFLICT DO UPDATE, over the existing and the proposed rows."""
        if not conflict.assignments:
            return None
        writer, width = self._writer, self._writer.width
        types = tuple(column.type for column in self._table.columns)
        modifiers = tuple(column.modifier for column in self._table.columns)
        relation: Relation = Get(STAGED, types * 2, modifiers * 2)
        own = writer.visible(relation, self._statement.alias)
        proposed = tuple(
            VisibleColumn(column.name, Column(width + index, column.type))
            for index, column in enumerate(self._table.columns)
        )
        excluded = VisibleTable("excluded", None, proposed)
        source = Source(relation, (*own.tables, excluded), own.columns)
        frame = Frame(source, None, WHERE)
        if conflict.condition is not None:
            relation = filtered(relation, ExpressionPlanner(self._queries, frame).boolean(conflict.condition, "WHERE"))
        old = columns_of(relation)[:width]
        new, numbered = writer.set_columns(frame, conflict.assignments, old)
        if numbered:
            offset = conflict.assignments[0].offset
            raise SqlError(
                "0A000",
                "DEFAULT of an identity column in ON CONFLICT is not supported",
                offset=offset,
                hint="Omit the column from DO UPDATE SET: the row keeps its number.",
            )
        new = writer.completed(new)
        after = writer.source(relation, self._statement.alias, new)
        updated, _ = writer.with_returning(after, (*old, *new), self._statement.returning)
        return writer.with_checks(updated, width)


def arbiters_of(table: NamedRelation, conflict: OnConflict) -> tuple[Constraint, ...]:
    """Return the keys of an ON CONFLICT clause; none for all keys.

    Raises:
        SqlError: 42P10, the table has no such key; 42704, it has no constraint of the name; 42809, the constraint is no
            key; 42703, a column does not exist.
    """
    if conflict.constraint is not None:
        name, offset = conflict.constraint
        named = [
            constraint
            for constraint in table.constraints
            if constraint.name == name and constraint.kind is not ConstraintKind.UNIQUE_INDEX
        ]
        if not named:
            raise SqlError("42704", f'constraint "{name}" for table "{table.name}" does not exist', offset=offset)
        if not named[0].is_key:
            message = "constraint in ON CONFLICT clause has no associated index"
            raise SqlError("42809", message, offset=offset)
        return tuple(named)
    if not conflict.parts:
        return ()
    arbiters = inferred_keys(table, conflict.parts, conflict.where)
    if not arbiters:
        message = "there is no unique or exclusion constraint matching the ON CONFLICT specification"
        raise SqlError("42P10", message, offset=conflict.offset)
    return arbiters


class _AffectedRows:
    """Planner of the rows of a table for which a condition is true, joined with rows of other tables."""

    def __init__(self, writer: Writer, statement: Update | Delete) -> None:
        queries, tables, condition = writer.queries, statement.tables, statement.condition
        relation: Relation = writer.table.relation
        if tables:
            # Equal rows are numbered, so that each row is written once, even if several rows are joined to it.
            own = columns_of(relation)
            relation = Window(relation, (WindowFunction("row_number", (), Type.BIGINT, own),))
        source = writer.visible(relation, statement.alias)
        if tables:
            others = TablePlanner(queries).source(tables, None)
            check_names(source, others, tables[0].offset)
            source = beside(joined(source.relation, others.relation), source, others)
        frame = Frame(source, None, WHERE)
        relation = source.relation
        if condition is not None:
            relation = filtered(relation, ExpressionPlanner(queries, frame).boolean(condition, "WHERE"))
        if tables:
            keys = columns_of(relation)[: writer.width + 1]  # the columns of the table, and the number
            relation = TopK(relation, keys, (), 1)
        self.source = Source(relation, source.tables, source.columns)
        frame.source = self.source
        self.frame = frame


class UpdatePlanner:
    """Planner of UPDATE."""

    def __init__(self, writer: Writer, statement: Update) -> None:
        self._writer, self._table, self._statement = writer, writer.table, statement

    def plan(self) -> PlannedWrite:
        """Return the planned statement."""
        writer, statement = self._writer, self._statement
        affected = _AffectedRows(writer, statement)
        source, width = affected.source, writer.width
        old: Sequence[Expression] = columns_of(source.relation)[:width]
        new, numbered = writer.set_columns(affected.frame, statement.assignments, old)
        all_columns = columns_of(source.relation)
        changed = projected(source.relation, (*all_columns, *new, *writer.flags(numbered)))
        is_staged = writer.needs_stage(changed, has_returning=bool(statement.returning), is_numbered=bool(numbered))
        if is_staged:
            base = writer.staged(changed)
            new = writer.completed(columns_of(base)[len(all_columns) : len(all_columns) + width])
            old = columns_of(base)[:width]
            source = Source(base, source.tables, source.columns)
        own = source.tables[0]
        own_columns = tuple(VisibleColumn(column.name, new[index]) for index, column in enumerate(own.columns))
        columns = (*own_columns, *source.columns[width:])
        table = VisibleTable(own.name, own.schema, own_columns)
        after = Source(source.relation, (table, *source.tables[1:]), columns)
        relation, returning = writer.with_returning(after, (*old, *new), statement.returning)
        relation = writer.with_checks(relation, width)
        return PlannedWrite(
            WriteKind.UPDATE,
            self._table,
            writer.query(changed if is_staged else relation),
            returning,
            ids_of(relation) | ids_of(changed),
            writer.query(relation) if is_staged else None,
            writer.places(len(all_columns)) if is_staged else (),
        )


class DeletePlanner:
    """Planner of DELETE."""

    def __init__(self, writer: Writer, statement: Delete) -> None:
        self._writer, self._table, self._statement = writer, writer.table, statement

    def plan(self) -> PlannedWrite:
        """Return the planned statement."""
        source = _AffectedRows(self._writer, self._statement).source
        old = columns_of(source.relation)[: self._writer.width]
        relation, returning = self._writer.with_returning(source, old, self._statement.returning)
        return PlannedWrite(WriteKind.DELETE, self._table, self._writer.query(relation), returning, ids_of(relation))


def plan_completion(table: NamedRelation, names: Names) -> PlannedWrite:
    """Plan an INSERT of staged rows of a table, in which identity columns and generated columns have no value yet.

    A staged row has, behind the columns of the table, a boolean for each identity column: whether it gets a number.
    """
    parameters = ParameterTypes()
    writer = Writer(QueryPlanner(names, parameters), parameters, table, table.name)
    width = writer.width
    places = writer.places(0)
    modifiers = tuple(column.modifier for column in table.columns)
    types = (*(column.type for column in table.columns), *[Type.BOOLEAN] * len(places))
    base = Get(STAGED, types, (*modifiers, *[None] * len(places)))
    relation = writer.with_checks(projected(base, writer.completed(columns_of(base)[:width])), 0)
    query = writer.query(relation)
    return PlannedWrite(WriteKind.INSERT, table, query, None, frozenset(), query, places)


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
        if named.kind is RelationKind.COLLECTION:
            hint = "Documents of a collection are ingested (flowctl ingest) or derived. CREATE TABLE for rows of SQL."
        raise SqlError("42809", f'"{named.name}" is not a table', offset=name.offset, hint=hint)
    return named
