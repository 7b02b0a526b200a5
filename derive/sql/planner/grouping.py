"""Planner of GROUP BY: from expressions over rows to expressions over groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from derive.algebra.expression import Call, Column, Expression, Literal, OuterColumn
from derive.algebra.relation import Project, Reduce, Relation, UnionAll
from derive.algebra.rewrite import deepened, rewritten
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.registry import resolve_operator
from derive.sql.planner.scope import AGGREGATES, GROUPINGS, ROWS, WINDOWS, Frame


class Grouping:
    """Rewriter of a query's expressions: from expressions over rows to expressions over groups."""

    def __init__(self, frame: Frame, keys: Sequence[Expression], *, has_sets: bool = False) -> None:
        self._frame = frame
        self._keys = tuple(keys)
        self._has_sets = has_sets

    def over_groups(self, expression: Expression, references: Sequence[tuple[Expression, int, str]]) -> Expression:
        """Return an expression over the columns of a `Reduce`: its keys, then its aggregates.

        Args:
            expression: an expression over rows, aggregates and window functions.
            references: columns of the expression with offsets, for errors.

        Raises:
            SqlError: 42803, a column is neither a key nor in an aggregate.
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
        """Return a column that a subquery refers to, as a column of the groups."""
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
        """Return the offset of a reference to a column, and the qualified name."""
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
        Keys, NULL if the set lacks them; aggregates; and for each key, 1 if the set lacks it, else 0.
    """
    united = []
    for indexes in sets:
        reduced = Reduce(relation, tuple(keys[index] for index in indexes), tuple(frame.aggregates))
        places = {index: Column(place, keys[index].type) for place, index in enumerate(indexes)}
        shown: list[Expression] = [places.get(index) or Literal(None, key.type) for index, key in enumerate(keys)]
        for place, aggregate in enumerate(frame.aggregates, start=len(indexes)):
            shown.append(Column(place, aggregate.type))
        shown += [Literal(int(index not in places), Type.INTEGER) for index in range(len(keys))]
        united.append(Project(reduced, tuple(shown)))
    return united[0] if len(united) == 1 else UnionAll(tuple(united))


def _integer(symbol: str, left: Expression, right: Expression) -> Expression:
    return Call(resolve_operator(symbol, (Type.INTEGER, Type.INTEGER)).function, (left, right), Type.INTEGER)


def _same(expression: Expression, key: Expression) -> bool:
    """Return whether an expression equals a key, up to a cast without effect."""
    if type(expression) is not type(key):
        return False
    if isinstance(expression, Column) and isinstance(key, Column):
        return expression.index == key.index
    return expression == key or (expression.type is not key.type and replace(expression, type=key.type) == key)
