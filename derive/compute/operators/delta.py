"""A term of a sum of joins as SQL: over changes of some of its leaves and the rows of the others.

Tables have columns `c0`, `c1`, …, and `w`: the count of a row, or the change of its count, which is negative for
deleted rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate

from derive.algebra.expression import Column, Expression, OuterColumn
from derive.algebra.expression_parts import columns_read
from derive.compute.plans.plan import Term
from derive.compute.plans.terms import equated, shifted
from derive.compute.sqlite.block import guarded
from derive.functions.registry import can_fail, sql_of


class TermSql:
    """The SQL of one term."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._starts = [0, *accumulate(len(leaf.types) for leaf in term.leaves)]
        self._safe = [self._lowered(part) for part in term.predicates if not can_fail(part)]
        self._fallible = [self._lowered(part) for part in term.predicates if can_fail(part)]
        self.can_fail = bool(self._fallible) or any(map(can_fail, term.outputs))

    def lookups(self) -> Iterator[tuple[int, tuple[Expression, ...]]]:
        """Yield leaves with the expressions over their rows by which they are looked up, for any changed leaf."""
        for first in range(len(self._term.leaves)):
            bound = {first}
            for leaf in self._order(first)[1:]:
                key = self._key(leaf, bound)
                if key:
                    yield leaf, key
                bound.add(leaf)

    def select(self, tables: Sequence[str], first: int) -> str:
        """Return SQL of the rows of the term.

        Args:
            tables: one table for each leaf.
            first: the leaf from whose rows the others are looked up.
        """
        outputs = [f"{self._lowered(output)} AS c{index}" for index, output in enumerate(self._term.outputs)]
        sign = "-" if self._term.is_negative else ""
        predicates = guarded(self._safe, self._fallible)
        return self._over(tables, first, outputs or ["NULL AS c0"], f"{sign}{self._weight()} AS w", predicates)

    def candidates(self, tables: Sequence[str], first: int) -> str:
        """Return SQL of the columns of all leaves side by side, for which infallible predicates are true, and `w`."""
        columns = [self._column(index) for index in range(self._starts[-1])]
        return self._over(tables, first, columns or ["NULL"], f"{self._weight()} AS w", self._safe)

    def of_candidate(self) -> str:
        """Return SQL of the term's row for one row of `candidates`, whose columns are bound."""
        outputs = [sql_of(output, _plain_name) for output in self._term.outputs]
        predicates = [sql_of(part, _plain_name) for part in self._term.predicates if can_fail(part)]
        where = f" WHERE {' AND '.join(f'({part})' for part in predicates)}" if predicates else ""
        bound = ", ".join(f"?{index + 1} AS c{index}" for index in range(self._starts[-1])) or "?1 AS c0"
        return f"SELECT {', '.join(outputs) or 'NULL'} FROM (SELECT {bound}){where}"

    def _over(
        self, tables: Sequence[str], first: int, columns: Sequence[str], weight: str, predicates: Sequence[str]
    ) -> str:
        # SQLite keeps the order of a CROSS JOIN: the changed leaf is small, and comes first.
        source = " CROSS JOIN ".join(f"{tables[leaf]} AS x{leaf}" for leaf in self._order(first))
        where = f" WHERE {' AND '.join(f'({part})' for part in predicates)}" if predicates else ""
        return f"SELECT {', '.join(columns)}, {weight}{f' FROM {source}' if source else ''}{where}"

    def _weight(self) -> str:
        return " * ".join(f"x{leaf}.w" for leaf in range(len(self._term.leaves))) or "1"

    def _lowered(self, expression: Expression) -> str:
        return sql_of(expression, lambda column: self._column(column.index))

    def _column(self, index: int) -> str:
        leaf = self._leaf(index)
        return f"x{leaf}.c{index - self._starts[leaf]}"

    def _leaf(self, index: int) -> int:
        return next(leaf for leaf, start in enumerate(self._starts[1:]) if index < start)

    def _order(self, first: int) -> list[int]:
        """Return all leaves, beginning with one; the next is always the leaf with most equations to earlier ones."""
        if not self._term.leaves:
            return []
        order = [first]
        rest = [leaf for leaf in range(len(self._term.leaves)) if leaf != first]
        while rest:
            bound = set(order)
            chosen = max(rest, key=lambda leaf: (len(self._key(leaf, bound)), -leaf))
            order.append(chosen)
            rest.remove(chosen)
        return order

    def _key(self, leaf: int, bound: Collection[int]) -> tuple[Expression, ...]:
        """Return expressions over the rows of a leaf that equal known values of other leaves."""
        key = []
        for predicate in self._term.predicates:
            pair = None if can_fail(predicate) else equated(predicate)
            for own, other in (pair, pair[::-1]) if pair else ():
                owners = {self._leaf(index) for index in columns_read(own)}
                others = {self._leaf(index) for index in columns_read(other)}
                if owners == {leaf} and others <= set(bound):
                    key.append(shifted(own, -self._starts[leaf]))
                    break
        return tuple(dict.fromkeys(key))


def _plain_name(column: Column | OuterColumn) -> str:
    return f"c{column.index}"
