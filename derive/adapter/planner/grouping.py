"""GROUP BY: expressions about rows, as expressions about groups of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from derive.adapter.planner.frame import AGGREGATES, WINDOWS, Frame
from derive.adapter.planner.rewriting import deepened, rewritten
from derive.compute.algebra.expression import Column, Expression, OuterColumn
from derive.errors import SqlError


class Grouping:
    """Turns expressions about a query's rows, once their aggregates are known, into some about its groups."""

    def __init__(self, frame: Frame, keys: Sequence[Expression]) -> None:
        self._frame = frame
        self._keys = tuple(keys)

    def over_groups(self, expression: Expression, references: Sequence[tuple[Expression, int, str]]) -> Expression:
        """An expression about the columns of a `Reduce`: its keys, then its aggregates.

        Args:
            expression: about rows, aggregates and window functions.
            references: columns that it may refer to, for the offset of an error.

        Raises:
            SqlError: 42803, it refers to a column that is neither a key nor in an aggregate.
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
        if column.index >= WINDOWS:
            return column
        if column.index >= AGGREGATES:
            return Column(len(self._keys) + column.index - AGGREGATES, column.type)
        offset, name = self._shown(column, references)
        message = f'column "{name}" must appear in the GROUP BY clause or be used in an aggregate function'
        raise SqlError("42803", message, offset=offset)

    def _outer(self, outer: OuterColumn, references: Sequence[tuple[Expression, int, str]]) -> Expression:
        """A column that a subquery refers to."""
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
        """Where a column is referred to, and its name with that of its relation."""
        offset = next((offset for known, offset, _ in references if _same(known, column)), None)
        for table in self._frame.source.tables:
            for visible in table.columns:
                if _same(visible.expression, column):
                    return offset, f"{table.name}.{visible.name}" if table.name else visible.name
        return offset, next((text for known, _, text in references if _same(known, column)), "?column?")


def _same(expression: Expression, key: Expression) -> bool:
    """Whether an expression is a key; a cast that changes nothing may have changed its type."""
    if type(expression) is not type(key):
        return False
    if isinstance(expression, Column) and isinstance(key, Column):
        return expression.index == key.index
    return expression == key or (expression.type is not key.type and replace(expression, type=key.type) == key)
