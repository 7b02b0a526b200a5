"""The first tier: sums of joins, whose result is not stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress, product

import apsw

from derive.algebra.expression import Expression
from derive.algebra.types import Row
from derive.compute.operators.delta import TermSql
from derive.compute.operators.operator import Operator, Tick, weighted
from derive.compute.plans.plan import Linear, Plan, inputs_of
from derive.errors import SqlError

MOST_UNITED = 100
"""Maximum number of SELECTs in one UNION; SQLite's limit is 500, and lower for subqueries."""


class LinearOperator(Operator):
    """Changes of a sum of joins: for each set of changed inputs, their changes joined with rows of the other inputs."""

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
        """Compute changes; if an expression fails, row by row."""
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
        """Compute changes of the rows that have a value, and errors of the others."""
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
