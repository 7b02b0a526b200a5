"""Planner of SELECT, with GROUP BY: translates the clauses to relations, in the order of evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from derive.algebra.expression import Call, Case, Column, Expression, Literal, OuterColumn, Subquery, SubqueryKind
from derive.algebra.modifier_inference import RECORD
from derive.algebra.relation import Aggregate, Filter, Order, Project, Relation, TopK, UnionAll
from derive.algebra.rewrite import deepened, rewritten, rewritten_window, with_columns
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.aggregates.aggregate_functions import ORDERED_SETS
from derive.functions.aggregates.library import AGGREGATES as AGGREGATE_FUNCTIONS
from derive.functions.registry import resolve_operator
from derive.sql.parser.ast import (
    ColumnReference,
    Groups,
    NumberLiteral,
    ScalarQuery,
    Select,
    SelectItem,
    SortItem,
    Star,
    SyntaxNode,
)
from derive.sql.planner.building import filtered, projected
from derive.sql.planner.equal_values import compared, distinct_rows, grouped
from derive.sql.planner.from_clause import TablePlanner
from derive.sql.planner.interfaces import Body, Queries, RowsAs
from derive.sql.planner.output import name_of, ordinal_of, output_named, start_of
from derive.sql.planner.row_columns import field_name, is_field
from derive.sql.planner.rows import (
    Row,
    array_text,
    is_array_of_rows,
    require_equal_texts,
    row_of,
    row_of_column,
    row_text,
)
from derive.sql.planner.scope import AGGREGATES, GROUPINGS, ROWS, SELECT, WHERE, WINDOWS, Clause, Frame
from derive.sql.planner.set_returning import replaced_rows, rows_within, with_rows
from derive.sql.planner.windows import windowed


class Grouping:
    """Rewriter of expressions over the rows of a query to expressions over its groups."""

    def __init__(self, frame: Frame, keys: Sequence[Expression], *, has_sets: bool = False) -> None:
        self._frame = frame
        self._keys = tuple(keys)
        self._has_sets = has_sets

    def over_groups(self, expression: Expression, references: Sequence[tuple[Expression, int, str]]) -> Expression:
        """Return an expression over the columns of a `Reduce`, which are its keys and then its aggregates.

        Args:
            expression: an expression over rows, aggregates and window functions.
            references: columns of the expression with offsets, for errors.

        Raises:
            SqlError: a column is neither a key nor in an aggregate (42803).
        """

        def replacement(part: Expression, depth: int) -> Expression | None:
            if depth == 0:
                for index, key in enumerate(self._keys):
                    if _same(part, key):
                        return Column(index, part.type)
            if isinstance(part, Column) and depth == 0:
                return self._column(part, references)
            if isinstance(part, OuterColumn) and part.depth == depth:
                return deepened(self._outer(part, references), depth)
            return None

        return rewritten(expression, replacement)

    def check_direct_arguments(self, references: Sequence[tuple[Expression, int, str]]) -> None:
        """Check that the direct arguments of ordered-set aggregates are the same for all rows of a group.

        Raises:
            SqlError: an argument has a column that is not grouped (42803).
        """
        for aggregate in self._frame.aggregates:
            for argument in direct_arguments(aggregate):
                self.over_groups(argument, references)

    def _column(self, column: Column, references: Sequence[tuple[Expression, int, str]]) -> Expression:
        if column.index >= ROWS:
            return column
        if column.index >= GROUPINGS:
            return self._grouping(column)
        if column.index >= WINDOWS:
            return column
        if column.index >= AGGREGATES:
            return Column(len(self._keys) + column.index - AGGREGATES, column.type)
        offset, name = self._shown(column, references)
        message = f'column "{name}" must appear in the GROUP BY clause or be used in an aggregate function'
        raise SqlError("42803", message, offset=offset)

    def _grouping(self, column: Column) -> Expression:
        """Return a call of GROUPING over the bit columns after the aggregates; the last argument is the lowest bit."""
        bits: Expression = Literal(0, Type.INTEGER)
        first = len(self._keys) + len(self._frame.aggregates)
        for argument, offset in self._frame.groupings[column.index - GROUPINGS]:
            indexes = [index for index, key in enumerate(self._keys) if _same(argument, key)]
            if not indexes:
                message = "arguments to GROUPING must be grouping expressions of the associated query level"
                raise SqlError("42803", message, offset=offset)
            if self._has_sets:
                bit = Column(first + indexes[0], Type.INTEGER)
                bits = _integer("+", _integer("*", bits, Literal(2, Type.INTEGER)), bit)
        return bits

    def _outer(self, outer: OuterColumn, references: Sequence[tuple[Expression, int, str]]) -> Expression:
        """Return the column of the groups for a column to which a subquery refers."""
        column = Column(outer.index, outer.type)
        for index, key in enumerate(self._keys):
            if _same(column, key):
                return Column(index, outer.type)
        if column.index >= AGGREGATES:
            return self._column(column, references)
        offset, name = self._shown(column, references)
        message = f'subquery uses ungrouped column "{name}" from outer query'
        raise SqlError("42803", message, offset=offset)

    def _shown(self, column: Column, references: Sequence[tuple[Expression, int, str]]) -> tuple[int | None, str]:
        """Return the offset and the qualified name of a column reference, for errors."""
        offset = next((offset for known, offset, _ in references if _same(known, column)), None)
        for table in self._frame.source.tables:
            for visible in table.columns:
                if _same(visible.expression, column):
                    return offset, f"{table.name}.{visible.name}" if table.name else visible.name
        return offset, next((text for known, _, text in references if _same(known, column)), "?column?")


def grouped_by_sets(
    relation: Relation, frame: Frame, keys: Sequence[Expression], sets: Sequence[Sequence[int]]
) -> Relation:
    """Return the union of groupings by several sets of keys.

    Args:
        relation: the rows.
        frame: the query with the aggregates.
        keys: keys of all sets.
        sets: indexes of the keys in each set.

    Returns:
        Keys (NULL if the set lacks a key); aggregates; and for each key, 1 if the set lacks the key, else 0.
    """
    united = []
    for indexes in sets:
        missing = [key for index, key in enumerate(keys) if index not in indexes]
        aggregates = [_without_keys(aggregate, missing) for aggregate in frame.aggregates]
        reduced = grouped(relation, [keys[index] for index in indexes], aggregates)
        places = {index: Column(place, keys[index].type) for place, index in enumerate(indexes)}
        shown: list[Expression] = [places.get(index) or Literal(None, key.type) for index, key in enumerate(keys)]
        for place, aggregate in enumerate(frame.aggregates, start=len(indexes)):
            shown.append(Column(place, aggregate.type))
        shown += [Literal(int(index not in places), Type.INTEGER) for index in range(len(keys))]
        united.append(Project(reduced, tuple(shown)))
    return united[0] if len(united) == 1 else UnionAll(tuple(united))


def direct_arguments(aggregate: Aggregate) -> tuple[Expression, ...]:
    """Return the direct arguments of an ordered-set aggregate, which stand before WITHIN GROUP."""
    return aggregate.arguments[1:] if AGGREGATE_FUNCTIONS[aggregate.function].signature.symbol in ORDERED_SETS else ()


def _without_keys(aggregate: Aggregate, missing: Sequence[Expression]) -> Aggregate:
    """Return an aggregate of a grouping set, in whose direct arguments the keys of other sets are NULL."""
    direct = direct_arguments(aggregate)
    if not direct or not missing:
        return aggregate

    def replacement(part: Expression, depth: int) -> Expression | None:
        is_missing = depth == 0 and any(_same(part, key) for key in missing)
        return Literal(None, part.type) if is_missing else None

    others = (rewritten(argument, replacement) for argument in direct)
    return replace(aggregate, arguments=(aggregate.arguments[0], *others))


def _integer(symbol: str, left: Expression, right: Expression) -> Expression:
    return Call(resolve_operator(symbol, (Type.INTEGER, Type.INTEGER)).function, (left, right), Type.INTEGER)


def _same(expression: Expression, key: Expression) -> bool:
    """Return whether an expression equals a key, apart from casts without effect."""
    if type(expression) is not type(key):
        return False
    if isinstance(expression, Column) and isinstance(key, Column):
        return expression.index == key.index
    return expression == key or (expression.type is not key.type and replace(expression, type=key.type) == key)


GROUP_BY = Clause("GROUP BY", has_rows=True)
HAVING = Clause("HAVING", has_aggregates=True)
ORDER_BY = Clause("ORDER BY", has_aggregates=True, has_windows=True, has_rows=True)
DISTINCT_ON = Clause("DISTINCT ON", has_aggregates=True, has_windows=True, has_rows=True)


@dataclass(slots=True)
class Target:
    """A column of a projection: its name, expression, references in the expression, offset, and the row that it is."""

    name: str
    expression: Expression
    references: list[tuple[Expression, int, str]]
    offset: int
    row: Row | None = None


class SelectPlanner:
    """Planner of one SELECT.

    Args:
        queries: planner of queries.
        select: the SELECT.
        parent: the outer query; None for none.
        rows: the treatment of columns that are rows.
    """

    def __init__(
        self, queries: Queries, select: Select, parent: Frame | None, *, rows: RowsAs = RowsAs.REFUSED
    ) -> None:
        self._queries = queries
        self._select = select
        self._rows = rows
        source = TablePlanner(queries).source(select.tables, parent)
        self._frame = Frame(source, parent)
        self._expressions = queries.expressions(self._frame)
        self._name_windows()
        self._targets: list[Target] = []

    def _name_windows(self) -> None:
        for name, definition in self._select.windows:
            if name in self._frame.named_windows:
                raise SqlError("42P20", f'window "{name}" is already defined', offset=definition.offset)
            self._frame.named_windows[name] = definition

    def plan(self, order: Sequence[SortItem], *, keeps_unknown: bool = False) -> Body:
        """Plan the rows, in an order."""
        select, frame = self._select, self._frame
        relation = frame.source.relation
        if select.condition is not None:
            frame.clause = WHERE
            relation = filtered(relation, self._expressions.boolean(select.condition, "WHERE"))
        frame.clause = SELECT
        is_plain = not select.is_distinct and not select.distinct_on
        for item in select.items:
            self._add_target(item, keeps_unknown=keeps_unknown and is_plain)
        names = tuple(target.name for target in self._targets)
        offsets = tuple(target.offset for target in self._targets)
        order = [field for item in order for field in self._fields_of_sort(item)]
        sorts = self._sorts(order)
        keys, sets = self._keys()
        having = self._having()
        distinct = self._distinct_on(sorts)
        relation = self._with_rows(relation, keys)
        relation = self._grouped(relation, keys, sets, having)
        relation = self._windowed(relation)
        relation = self._with_rows(relation, [target.expression for target in self._targets])
        relation = projected(relation, [target.expression for target in self._targets])
        order_of_rows = tuple(
            Order(Column(index, self._targets[index].expression.type), item.is_descending, _nulls_first(item))
            for index, item in zip(sorts, order, strict=True)
        )
        return replace(self._distinct(relation, names, order_of_rows, distinct), offsets=offsets)

    def _add_target(self, item: SelectItem, *, keeps_unknown: bool) -> None:
        if isinstance(item.expression, Star):
            self._add_star(item.expression)
            return
        begin = len(self._frame.references)
        name = item.name or name_of(item.expression)
        row = row_of(item.expression, self._frame) if self._rows is not RowsAs.REFUSED else None
        if row is not None:
            self._add_row(name, row, begin)
            return
        expression = self._for_client(item.expression) or self._expressions.plan(item.expression)
        if not keeps_unknown:
            expression = self._queries.coercion.known(expression, start_of(item.expression))
        references = self._frame.references[begin:]
        self._targets.append(Target(name, expression, references, item.offset))

    def _for_client(self, node: SyntaxNode) -> Expression | None:
        """Return the value of a scalar subquery, whose column may be a row, or an array of rows; None for another."""
        if self._rows is not RowsAs.TEXTS:
            return None
        if not isinstance(node, ScalarQuery) or node.width > 1:
            return None if self._select.is_distinct else array_text(node, self._expressions, self._frame)
        body = self._queries.plan(node.query, self._frame, rows=RowsAs.TEXTS)
        if len(body.names) != 1:
            raise SqlError("42601", "subquery must return only one column", offset=node.offset)
        relation = body.settled()
        return Subquery(SubqueryKind.SCALAR, relation, (), relation.types[0])

    def _add_row(self, name: str, row: Row, begin: int) -> None:
        """Add a column that is a row: its text, or whether it is there with its fields.

        Args:
            name: name of the column.
            row: the row.
            begin: number of the first reference to a column in the row.
        """
        if self._rows is RowsAs.TEXTS:
            if self._select.is_distinct:
                require_equal_texts(row, self._expressions)
            text = row_text(row, self._expressions, self._frame, RECORD)
            self._targets.append(Target(name, text, self._frame.references[begin:], row.offset, row))
            return
        if not row.items:
            hint = "Give the row a field."
            raise SqlError("0A000", "rows without columns are not supported here", offset=row.offset, hint=hint)
        fields = [self._expressions.known(item) for item in row.items]
        presence: Expression = Literal(1, Type.BOOLEAN)
        if row.may_be_null:
            missing = self._expressions.boolean(row.is_null, "WHEN")
            presence = Case(((missing, Literal(0, Type.BOOLEAN)),), presence, Type.BOOLEAN)
        references = self._frame.references[begin:]
        self._targets.append(Target(name, presence, references, row.offset, row))
        for own, value in zip(row.names, fields, strict=True):
            self._targets.append(Target(field_name(own), value, references, row.offset))

    def _add_star(self, star: Star) -> None:
        if not star.qualifier and not self._select.tables:
            raise SqlError("42601", "SELECT * with no tables specified is not valid", offset=star.offset)
        begin = len(self._frame.references)
        row = row_of(ColumnReference(star.qualifier, star.offset), self._frame) if len(star.qualifier) == 1 else None
        if row is not None and row.presence is not None:  # `(r).*` of a column that is a row
            for name, item in zip(row.names, row.items, strict=True):
                value = self._expressions.plan(item)
                self._targets.append(Target(name, value, self._frame.references[begin:], star.offset))
            return
        for column in self._frame.star(star.qualifier, star.offset):
            if column.fields and self._rows is RowsAs.REFUSED:
                self._expressions.plan(ColumnReference((column.name,), star.offset))
            if column.fields:
                self._add_row(column.name, row_of_column(column, star.offset), begin)
            else:
                references = self._frame.references[begin:]
                self._targets.append(Target(column.name, column.expression, references, star.offset))

    def _planned(self, node: SyntaxNode, clause: Clause) -> Target:
        """Return a target for an expression that is not a result column."""
        self._frame.clause = clause
        begin = len(self._frame.references)
        expression = self._expressions.known(node)
        return Target("", expression, self._frame.references[begin:], start_of(node))

    def _index_of(self, node: SyntaxNode, clause: Clause, *, prefers_input: bool = False) -> int | Target:
        """Return the index of the result column with a name or number; add a target if there is none."""
        places = [at for at, target in enumerate(self._targets) if target.name and not is_field(target.name)]
        shown = [self._targets[at] for at in places]
        index = ordinal_of(node, len(shown), clause.name)
        if index is None and isinstance(node, ColumnReference) and len(node.parts) == 1:
            is_input = any(column.name == node.parts[0] for column in self._frame.source.columns)
            if not (prefers_input and is_input):
                index = output_named(node, [(target.name, target.expression) for target in shown], clause.name)
        if index is not None and (shown[index].row is not None or is_array_of_rows(shown[index].expression)):
            hint = "Write its columns one by one."
            raise SqlError("0A000", f"{clause.name} of a row is not supported", offset=start_of(node), hint=hint)
        return self._planned(node, clause) if index is None else places[index]

    def _row_meant(self, node: SyntaxNode, *, prefers_input: bool = False) -> Row | None:
        """Return the row that an item of ORDER BY or GROUP BY means by its name or number; None for another item."""
        if isinstance(node, ColumnReference) and len(node.parts) == 2:
            return row_of(node, self._frame)
        if isinstance(node, ColumnReference) and len(node.parts) == 1:
            is_input = any(column.name == node.parts[0] for column in self._frame.source.columns)
            if prefers_input and is_input:
                return row_of(node, self._frame)
            named = [target for target in self._targets if target.name == node.parts[0]]
            return named[0].row if named else row_of(node, self._frame)
        shown = [target for target in self._targets if not is_field(target.name)]
        if isinstance(node, NumberLiteral) and node.text.isdigit() and 1 <= int(node.text) <= len(shown):
            return shown[int(node.text) - 1].row
        return None

    def _fields_of_sort(self, item: SortItem) -> list[SortItem]:
        """Return an item of ORDER BY; the fields of a row in its place."""
        row = None if item.is_field else self._row_meant(item.expression)
        if row is None or self._select.is_distinct:
            return [item]
        missing = [SortItem(row.is_null, _nulls_first(item), None, item.offset, is_field=True)]
        fields = [SortItem(field, item.is_descending, None, item.offset, is_field=True) for field in row.items]
        return (missing if row.may_be_null else []) + fields

    def _fields_of_group(self, node: SyntaxNode) -> tuple[SyntaxNode, ...]:
        """Return a node of GROUP BY; the fields of a row in its place."""
        row = self._row_meant(node, prefers_input=True)
        if row is not None and self._select.groups is not None and self._select.groups.sets:
            hint = "Write its columns one by one."
            raise SqlError("0A000", "a row in grouping sets is not supported", offset=start_of(node), hint=hint)
        if row is None:
            return (node,)
        return row.items if row.presence is None else (row.presence, *row.items)

    def _sorts(self, order: Sequence[SortItem]) -> list[int]:
        """Return the index of a target for each ORDER BY item; hidden targets are added for new expressions."""
        indexes = []
        for item in order:
            if item.is_field:
                indexes.append(self._hidden(self._planned(item.expression, ORDER_BY), "ORDER BY"))
                continue
            index = self._index_of(item.expression, ORDER_BY)
            indexes.append(index if isinstance(index, int) else self._hidden(index, "ORDER BY"))
        return indexes

    def _hidden(self, desired: Target, clause: str) -> int:
        for index, target in enumerate(self._targets):
            if target.expression == desired.expression:
                return index
        if self._select.is_distinct:
            message = f"for SELECT DISTINCT, {clause} expressions must appear in select list"
            raise SqlError("42P10", message, offset=desired.offset)
        self._targets.append(desired)
        return len(self._targets) - 1

    def _keys(self) -> tuple[list[Expression], list[tuple[int, ...]]]:
        """Return the grouping keys, and the grouping sets as indexes of keys."""
        keys: list[Expression] = []
        groups = self._select.groups or Groups(())
        fields = {node: self._fields_of_group(node) for node in groups.nodes}
        indexes: dict[SyntaxNode, int] = {}
        for node in chain.from_iterable(fields.values()):
            index = self._index_of(node, GROUP_BY, prefers_input=True)
            target = self._targets[index] if isinstance(index, int) else index
            self._check_key(target, node)
            if target.expression not in keys:
                keys.append(target.expression)
            indexes[node] = keys.index(target.expression)
        sets = [
            tuple(dict.fromkeys(indexes[field] for node in nodes for field in fields[node])) for nodes in groups.sets
        ]
        if groups.is_distinct:
            sets = [*{frozenset(chosen): chosen for chosen in reversed(sets)}.values()]
        return keys, sets

    def _check_key(self, target: Target, node: SyntaxNode) -> None:
        def check(part: Expression, _: int) -> Expression | None:
            if isinstance(part, Column) and part.index >= ROWS:
                return None
            if isinstance(part, Column) and part.index >= GROUPINGS:
                raise SqlError("42803", "grouping operations are not allowed in GROUP BY", offset=start_of(node))
            if isinstance(part, Column) and part.index >= WINDOWS:
                raise SqlError("42P20", "window functions are not allowed in GROUP BY", offset=start_of(node))
            if isinstance(part, Column) and part.index >= AGGREGATES:
                raise SqlError("42803", "aggregate functions are not allowed in GROUP BY", offset=start_of(node))
            return None

        rewritten(target.expression, check)
        for index in rows_within([target.expression]):
            rewritten(self._frame.rows[index].array, check)

    def _having(self) -> Target | None:
        if self._select.having is None:
            return None
        self._frame.clause = HAVING
        begin = len(self._frame.references)
        expression = self._expressions.boolean(self._select.having, "HAVING")
        return Target("", expression, self._frame.references[begin:], self._select.having.offset)

    def _distinct_on(self, sorts: Sequence[int]) -> list[int]:
        indexes: list[int] = []
        for node in self._select.distinct_on:
            index = self._index_of(node, DISTINCT_ON)
            if not isinstance(index, int):
                index = self._hidden(index, "DISTINCT ON")
            indexes.append(index)
        desired = set(indexes)
        for index in sorts:
            if not desired:
                break
            if index not in indexes:
                message = "SELECT DISTINCT ON expressions must match initial ORDER BY expressions"
                raise SqlError("42P10", message, offset=self._select.distinct_on[0].offset)
            desired.discard(index)
        return indexes

    def _grouped(
        self, relation: Relation, keys: list[Expression], sets: list[tuple[int, ...]], having: Target | None
    ) -> Relation:
        frame = self._frame
        if not (keys or frame.aggregates or frame.groupings or having or self._select.groups is not None):
            return relation
        if not sets:
            keys = [*keys, *self._dependent(keys, having)]
        Grouping(frame, keys, has_sets=bool(sets)).check_direct_arguments(frame.references)
        relation = grouped_by_sets(relation, frame, keys, sets) if sets else grouped(relation, keys, frame.aggregates)
        grouping = Grouping(frame, keys, has_sets=bool(sets))
        for target in self._targets:
            target.expression = grouping.over_groups(target.expression, target.references)
        references = frame.references

        def over_groups(part: Expression, depth: int) -> Expression | None:
            return grouping.over_groups(part, references) if depth == 0 else None

        frame.windows[:] = [rewritten_window(function, over_groups) for function in frame.windows]
        left = set(rows_within([target.expression for target in self._targets]))
        frame.rows[:] = [
            replace(one, array=grouping.over_groups(one.array, references)) if index in left else one
            for index, one in enumerate(frame.rows)
        ]
        if having is None:
            return relation
        return Filter(relation, grouping.over_groups(having.expression, having.references))

    def _dependent(self, keys: Sequence[Expression], having: Target | None) -> list[Expression]:
        """Return the columns of the result that grouping keys determine, because they contain a primary key."""
        mentioned: dict[int, Expression] = {}

        def collect(part: Expression, depth: int) -> None:
            if isinstance(part, Column) and depth == 0:
                mentioned[part.index] = part
            if isinstance(part, OuterColumn) and part.depth == depth:
                mentioned[part.index] = Column(part.index, part.type)

        frame = self._frame
        tables = [table for table in frame.source.tables if table.key]
        tables = [table for table in tables if all(table.columns[at].expression in keys for at in table.key)]
        if not tables:
            return []
        expressions = [*(target.expression for target in self._targets), *(one.array for one in frame.rows)]
        for expression in (*expressions, *([having.expression] if having else [])):
            rewritten(expression, collect)
        for function in frame.windows:
            rewritten_window(function, collect)
        known = [column.expression for table in tables for column in table.columns]
        return [column for column in mentioned.values() if column in known and column not in keys]

    def _with_rows(self, relation: Relation, expressions: list[Expression]) -> Relation:
        """Return the rows, repeated for each row of the set-returning functions; the values of these become columns."""
        indexes = rows_within(expressions)
        if not indexes:
            return relation
        relation, values = with_rows(relation, self._frame, indexes)
        expressions[:] = [replaced_rows(expression, values) for expression in expressions]
        for target in self._targets:
            target.expression = replaced_rows(target.expression, values)
        return relation

    def _windowed(self, relation: Relation) -> Relation:
        if not self._frame.windows:
            return relation
        width = len(relation.types)

        def column(part: Column) -> Expression:
            return replace(part, index=width + part.index - WINDOWS) if WINDOWS <= part.index < ROWS else part

        for target in self._targets:
            target.expression = with_columns(target.expression, column)
        rows = self._frame.rows
        rows[:] = [replace(one, array=with_columns(one.array, column)) for one in rows]
        return windowed(relation, self._frame.windows)

    def _distinct(self, relation: Relation, names: tuple[str, ...], order: tuple[Order, ...], keys: list[int]) -> Body:
        if self._select.is_distinct:
            return Body(distinct_rows(relation), names, order)
        if keys:
            columns = tuple(compared(Column(index, relation.types[index])) for index in keys)
            return Body(TopK(relation, columns, order, 1), names, order)
        return Body(relation, names, order)


def _nulls_first(item: SortItem) -> bool:
    return item.is_descending if item.nulls_first is None else item.nulls_first
