"""Planner of SELECT: from its clauses to relations, in the order of SQL's evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from derive.algebra.expression import Column, Expression
from derive.algebra.relation import Distinct, Filter, Order, Reduce, Relation, TopK, Window
from derive.algebra.rewrite import rewritten, rewritten_window, with_columns
from derive.errors import SqlError
from derive.sql.parser.ast import ColumnReference, Groups, Select, SelectItem, SortItem, Star, SyntaxNode
from derive.sql.planner.body import Body
from derive.sql.planner.building import filtered, projected
from derive.sql.planner.extent import name_of, start_of
from derive.sql.planner.from_clause import TablePlanner
from derive.sql.planner.grouping import Grouping, grouped_by_sets
from derive.sql.planner.interfaces import Queries
from derive.sql.planner.output import ordinal_of, output_named
from derive.sql.planner.scope import AGGREGATES, GROUPINGS, ROWS, SELECT, WHERE, WINDOWS, Clause, Frame
from derive.sql.planner.set_returning import replaced_rows, rows_within, with_rows

GROUP_BY = Clause("GROUP BY", has_rows=True)
HAVING = Clause("HAVING", has_aggregates=True)
ORDER_BY = Clause("ORDER BY", has_aggregates=True, has_windows=True, has_rows=True)
DISTINCT_ON = Clause("DISTINCT ON", has_aggregates=True, has_windows=True, has_rows=True)


@dataclass(slots=True)
class Target:
    """A column of a projection: name, expression, references with offsets, and its own offset."""

    name: str
    expression: Expression
    references: list[tuple[Expression, int, str]]
    offset: int


class SelectPlanner:
    """Planner of one SELECT."""

    def __init__(self, queries: Queries, select: Select, parent: Frame | None) -> None:
        self._queries = queries
        self._select = select
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
        expression = self._expressions.plan(item.expression)
        if not keeps_unknown:
            expression = self._queries.coercion.known(expression, start_of(item.expression))
        name = item.name or name_of(item.expression)
        self._targets.append(Target(name, expression, self._frame.references[begin:], item.offset))

    def _add_star(self, star: Star) -> None:
        if not star.qualifier and not self._select.tables:
            raise SqlError("42601", "SELECT * with no tables specified is not valid", offset=star.offset)
        begin = len(self._frame.references)
        columns = self._frame.star(star.qualifier, star.offset)
        references = self._frame.references[begin:]
        self._targets += [Target(column.name, column.expression, references, star.offset) for column in columns]

    def _planned(self, node: SyntaxNode, clause: Clause) -> Target:
        """Return a target for an expression outside the result."""
        self._frame.clause = clause
        begin = len(self._frame.references)
        expression = self._expressions.known(node)
        return Target("", expression, self._frame.references[begin:], start_of(node))

    def _index_of(self, node: SyntaxNode, clause: Clause, *, prefers_input: bool = False) -> int | Target:
        """Return the index of the result column with a name or number, or else a new target."""
        shown = [target for target in self._targets if target.name]
        index = ordinal_of(node, len(shown), clause.name)
        if index is None and isinstance(node, ColumnReference) and len(node.parts) == 1:
            is_input = any(column.name == node.parts[0] for column in self._frame.source.columns)
            if not (prefers_input and is_input):
                index = output_named(node, [(target.name, target.expression) for target in shown], clause.name)
        return self._planned(node, clause) if index is None else index

    def _sorts(self, order: Sequence[SortItem]) -> list[int]:
        """Return the target's index of each ORDER BY item; hidden targets are added."""
        indexes = []
        for item in order:
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
        indexes: dict[SyntaxNode, int] = {}
        for node in groups.nodes:
            index = self._index_of(node, GROUP_BY, prefers_input=True)
            target = self._targets[index] if isinstance(index, int) else index
            self._check_key(target, node)
            if target.expression not in keys:
                keys.append(target.expression)
            indexes[node] = keys.index(target.expression)
        sets = [tuple(dict.fromkeys(indexes[node] for node in nodes)) for nodes in groups.sets]
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
        if sets:
            relation = grouped_by_sets(relation, frame, keys, sets)
        else:
            relation = Reduce(relation, tuple(keys), tuple(frame.aggregates))
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

    def _with_rows(self, relation: Relation, expressions: list[Expression]) -> Relation:
        """Return rows repeated for each row of set-returning functions, which become columns in all targets."""
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
        return Window(relation, tuple(self._frame.windows))

    def _distinct(self, relation: Relation, names: tuple[str, ...], order: tuple[Order, ...], keys: list[int]) -> Body:
        if self._select.is_distinct:
            return Body(Distinct(relation), names, order)
        if keys:
            columns = tuple(Column(index, relation.types[index]) for index in keys)
            return Body(TopK(relation, columns, order, 1), names, order)
        return Body(relation, names, order)


def _nulls_first(item: SortItem) -> bool:
    return item.is_descending if item.nulls_first is None else item.nulls_first
