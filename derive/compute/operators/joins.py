"""The first operator tier: sums of joins; the result of a join is not stored."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate, compress, product

import apsw

from derive.algebra.expression import Column, Expression, OuterColumn
from derive.algebra.expression_parts import columns_read
from derive.algebra.types import Row
from derive.compute.operators.operator import Operator, Tick, weighted
from derive.compute.plans.plan import Linear, Plan, Term, equated, inputs_of, shifted
from derive.compute.sqlite import guarded
from derive.errors import SqlError
from derive.functions.registry import can_fail, sql_of


class TermSql:
    """The SQL of one term."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._starts = [0, *accumulate(len(leaf.types) for leaf in term.leaves)]
        self._safe = [self._lowered(part) for part in term.predicates if not can_fail(part)]
        self._fallible = [self._lowered(part) for part in term.predicates if can_fail(part)]

    def lookups(self) -> Iterator[tuple[int, tuple[Expression, ...]]]:
        """Yield each leaf with the expressions by which its rows are looked up after a change of another leaf."""
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
            first: the leaf with the rows from which the rows of the other leaves are looked up.
        """
        outputs = [f"{self._lowered(output)} AS c{index}" for index, output in enumerate(self._term.outputs)]
        sign = "-" if self._term.is_negative else ""
        predicates = guarded(self._safe, self._fallible)
        return self._over(tables, first, outputs or ["NULL AS c0"], f"{sign}{self._weight()} AS w", predicates)

    def candidates(self, tables: Sequence[str], first: int) -> str:
        """Return SQL of `w` and the columns of all leaves, side by side, for which infallible predicates are true."""
        columns = [self._column(index) for index in range(self._starts[-1])]
        return self._over(tables, first, columns or ["NULL"], f"{self._weight()} AS w", self._safe)

    def of_candidate(self) -> str:
        """Return SQL of the row of the term for one row of `candidates`, whose columns are bound."""
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
        """Return all leaves, beginning with a given leaf.

        Next is always the leaf with most equations to earlier leaves.
        """
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


MOST_UNITED = 100
"""Maximum number of SELECTs in one UNION; SQLite's limit is 500, and lower for subqueries."""


class LinearOperator(Operator):
    """Computes changes of a sum of joins: joins the changes of each set of inputs with rows of the other inputs."""

    plan: Linear

    def __init__(self, connection: apsw.Connection, number: int, plan: Linear, inputs: Sequence[Operator]) -> None:
        super().__init__(connection, number, plan, inputs)
        by_plan: dict[Plan, Operator] = dict(zip(inputs_of(plan), inputs, strict=True))
        self._leaves = [[by_plan[leaf] for leaf in term.leaves] for term in plan.terms]
        self._terms = [TermSql(term) for term in plan.terms]
        self._statements: dict[tuple[bool, ...], list[str]] = {}

    def arranged_inputs(self) -> Sequence[Operator]:
        """Return all joined inputs."""
        return [leaf for leaves in self._leaves if len(leaves) > 1 for leaf in leaves]

    def lookups(self) -> Iterator[tuple[Operator, Sequence[Expression]]]:
        """Return the inputs with their equated expressions."""
        for leaves, term in zip(self._leaves, self._terms, strict=True):
            for leaf, key in term.lookups():
                yield leaves[leaf], key

    def update(self, tick: Tick) -> None:
        """Compute changes; after an error in an expression, row by row."""
        try:
            statements = self._statements_now()
            if len(statements) == 1:
                self.settle(statements[0])
            else:
                self._settle_parts(statements)
        except SqlError:
            self._settle_singly(tick)

    def _statements_now(self) -> list[str]:
        """Return the SELECTs of all changes."""
        if self.is_new:
            return self._united()
        dirty = tuple(source.is_dirty for source in self.inputs)
        statements = self._statements.get(dirty)
        if statements is None:
            statements = self._statements[dirty] = self._united()
        return statements

    def _united(self) -> list[str]:
        selects = [term.select(tables, first) for term, tables, first in self._parts()]
        return [
            " UNION ALL ".join(selects[begin : begin + MOST_UNITED]) for begin in range(0, len(selects), MOST_UNITED)
        ]

    def _settle_parts(self, statements: Sequence[str]) -> None:
        """Compute changes of more SELECTs than SQLite unites."""
        execute = self.connection.execute
        execute(f"DELETE FROM {self.changes}")
        for statement in statements:
            execute(f"INSERT INTO {self.changes} {statement}")
        rows = execute(f"SELECT {self.columns}, sum(w) FROM {self.changes} GROUP BY {self.columns}").fetchall()
        self.take(dict(weighted(rows)))

    def _parts(self) -> Iterator[tuple[TermSql, list[str], int]]:
        """Yield the joins: a term, tables of its leaves, and the first changed leaf."""
        for leaves, term in zip(self._leaves, self._terms, strict=True):
            if self.is_new:
                yield term, [self.changed(leaf) for leaf in leaves], 0
                continue
            choices = product(*((True, False) if leaf.is_dirty else (False,) for leaf in leaves))
            for choice in choices:
                if any(choice):
                    yield (
                        term,
                        [_table(leaf, chosen) for leaf, chosen in zip(leaves, choice, strict=True)],
                        next(compress(range(len(leaves)), choice)),
                    )

    def _settle_singly(self, tick: Tick) -> None:
        """Compute changes of the rows that have a value, and errors of the other rows."""
        counts: dict[Row, int] = {}
        for (term, tables, first), sign in zip(self._parts(), self._signs(), strict=True):
            evaluation = term.of_candidate()
            for candidate, weight in weighted(self.connection.execute(term.candidates(tables, first)).fetchall()):
                try:
                    for row in self.connection.execute(evaluation, candidate):
                        counts[row] = counts.get(row, 0) + weight * sign
                except SqlError as exc:
                    tick.fail(self.number, exc, weight)
        self.take(counts)

    def _signs(self) -> Iterator[int]:
        """Yield, for each join, the sign of its rows."""
        for index, leaves in enumerate(self._leaves):
            sign = -1 if self.plan.terms[index].is_negative else 1
            dirty = sum(leaf.is_dirty for leaf in leaves)
            for _ in range(1 if self.is_new else 2**dirty - 1):
                yield sign


def _table(leaf: Operator, is_changed: bool) -> str:
    if is_changed:
        return leaf.changes
    assert leaf.arrangement is not None
    return leaf.arrangement.table
