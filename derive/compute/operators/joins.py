"""Operators for sums of joins, and the order in which a join reads its leaves; the result of a join is not stored.

An order is chosen from counts of rows and of distinct values, which are estimated from a sample of each leaf's rows. An
order begins with a given leaf, whose changes are few, or with the leaf that gives the fewest intermediate rows. Next is
always the leaf that gives the fewest rows among the leaves with an equation to earlier leaves. A leaf without such an
equation follows only if no other leaf is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, compress, product

import apsw

from derive.algebra.expression import Column, Expression, OuterColumn
from derive.algebra.rewrite import columns_read
from derive.algebra.types import Row
from derive.compute.operators.operator import Operator, Tick, weighted
from derive.compute.plans.plan import Fixed, Linear, Plan, Term, equated, inputs_of, shifted
from derive.compute.sqlite import guarded
from derive.errors import SqlError
from derive.functions.registry import can_fail, sql_of

SAMPLE = 500
"""Maximum number of rows in a sample."""
_FEW = 4.0
"""Expected rows of a lookup at which its key needs no more parts."""


@dataclass(frozen=True, slots=True)
class Equation:
    """An equation of a join, seen from one leaf.

    Attributes:
        predicate: index of the predicate.
        leaf: the leaf.
        own: SQL of the side that reads this leaf only, over its columns `c0`, `c1`, ….
        others: leaves of the other side.
    """

    predicate: int
    leaf: int
    own: str
    others: frozenset[int]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Estimates of a leaf.

    Attributes:
        rows: number of its rows.
        kept: share of the rows for which the predicates over this leaf alone are true.
        distinct: for SQL of each equated side, its number of distinct values.
    """

    rows: float
    kept: float = 1.0
    distinct: Mapping[str, float] = field(default_factory=dict)


def sampled(
    connection: apsw.Connection, table: str, rows: int, sides: Sequence[str], predicates: Sequence[str]
) -> Statistics:
    """Estimate statistics from rows that lie evenly in a table.

    Args:
        connection: connection to the database.
        table: the table.
        rows: its number of rows.
        sides: SQL of equated sides, over its columns.
        predicates: SQL of predicates over its columns.
    """
    # An odd distance meets alternating rows alike.
    last = connection.execute(f"SELECT ifnull(max(rowid), 0) FROM {table}").get
    chosen = ", ".join(str(number) for number in range(1, last + 1, last // SAMPLE | 1))
    tested = " AND ".join(f"ifnull({predicate}, 0)" for predicate in predicates) or "1"
    probes = connection.execute(
        f"SELECT {', '.join([tested, *sides])} FROM {table} WHERE rowid IN ({chosen})"
    ).fetchall()
    if not probes:
        return Statistics(float(rows))
    kept = max(0.5, sum(1 for row in probes if row[0])) / len(probes)
    distinct = {side: _distinct([row[index] for row in probes], rows) for index, side in enumerate(sides, start=1)}
    return Statistics(float(rows), kept, distinct)


def _distinct(values: Sequence[object], rows: int) -> float:
    """Estimate the number of distinct values in a table from a sample: values seen once suggest unseen values."""
    counts = Counter(values)
    once = sum(1 for count in counts.values() if count == 1)
    size = len(values)
    return max(1.0, size * len(counts) / (size - once + once * size / max(rows, size)))


@dataclass(frozen=True, slots=True)
class JoinOrder:
    """An order of the leaves.

    Attributes:
        leaves: the leaves.
        keys: for each leaf but the first, the equations by which its rows are looked up; none for a cross product.
    """

    leaves: tuple[int, ...]
    keys: tuple[tuple[Equation, ...], ...]

    @property
    def looked_up(self) -> frozenset[int]:
        """Return the indexes of the predicates that are lookups."""
        return frozenset(equation.predicate for key in self.keys for equation in key)


class JoinGraph:
    """The leaves of a join, and the equations between them.

    Args:
        leaves: number of leaves.
        equations: the equations, seen from each side that reads one leaf.
    """

    def __init__(self, leaves: int, equations: Sequence[Equation]) -> None:
        self._leaves = range(leaves)
        self._equations = equations

    def sides(self, leaf: int) -> list[str]:
        """Return SQL of the equated sides of a leaf."""
        return list(dict.fromkeys(equation.own for equation in self._equations if equation.leaf == leaf))

    def plain_order(self, first: int) -> JoinOrder:
        """Return an order without counts: next is the leaf with most equations to earlier leaves."""
        order = [first]
        keys: list[tuple[Equation, ...]] = [()]
        while len(order) < len(self._leaves):
            rest = [leaf for leaf in self._leaves if leaf not in order]
            chosen = max(rest, key=lambda leaf: (len(self._key(leaf, order)), -leaf))
            keys.append(self._key(chosen, order))
            order.append(chosen)
        return JoinOrder(tuple(order), tuple(keys))

    def order(self, first: int, statistics: Sequence[Statistics]) -> JoinOrder:
        """Return the order that begins with a leaf."""
        return self._greedy(first, statistics)[1]

    def whole_order(self, statistics: Sequence[Statistics]) -> JoinOrder:
        """Return the order for all rows of all leaves."""
        orders = (self._greedy(first, statistics) for first in self._leaves)
        return min(orders, key=lambda costed: costed[0])[1]

    def _greedy(self, first: int, statistics: Sequence[Statistics]) -> tuple[float, JoinOrder]:
        """Return the expected number of intermediate rows, and the order."""
        order = [first]
        keys: list[tuple[Equation, ...]] = [()]
        size = statistics[first].rows * statistics[first].kept
        cost = statistics[first].rows + size
        while len(order) < len(self._leaves):
            rest = [leaf for leaf in self._leaves if leaf not in order]
            near = [leaf for leaf in rest if statistics[leaf].rows <= 1 or self._key(leaf, order)] or rest
            chosen = min(near, key=lambda leaf: (self._growth(leaf, order, statistics[leaf]), leaf))
            key = self._selective(self._key(chosen, order), statistics[chosen])
            cost += size * _looked_up(key, statistics[chosen])
            size *= self._growth(chosen, order, statistics[chosen])
            keys.append(key)
            order.append(chosen)
        return cost, JoinOrder(tuple(order), tuple(keys))

    def _growth(self, leaf: int, bound: Collection[int], statistics: Statistics) -> float:
        """Return the expected number of rows of a leaf for each row of the leaves before it."""
        return statistics.kept * _looked_up(self._key(leaf, bound), statistics)

    def _selective(self, key: tuple[Equation, ...], statistics: Statistics) -> tuple[Equation, ...]:
        """Return the most selective part of a key that finds few rows, so that few indexes are needed."""
        if len(self._leaves) <= 2:
            return key
        ordered = sorted(key, key=lambda equation: (-statistics.distinct.get(equation.own, 1.0), equation.own))
        for count in range(1, len(ordered)):
            if _looked_up(ordered[:count], statistics) <= _FEW:
                return tuple(ordered[:count])
        return key

    def _key(self, leaf: int, bound: Collection[int]) -> tuple[Equation, ...]:
        """Return the equations of a leaf with known values of other leaves, one for each side."""
        known = frozenset(bound)
        by_side = {
            equation.own: equation
            for equation in reversed(self._equations)
            if equation.leaf == leaf and equation.others <= known
        }
        return tuple(reversed(by_side.values()))


def _looked_up(key: Sequence[Equation], statistics: Statistics) -> float:
    """Return the expected number of rows that a lookup finds."""
    rows = statistics.rows
    for equation in key:
        rows /= statistics.distinct.get(equation.own, 1.0)
    return max(rows, min(1.0, statistics.rows) * 1e-3)


class TermSql:
    """The SQL of one term."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._starts = [0, *accumulate(len(leaf.types) for leaf in term.leaves)]
        self._safe = [index for index, part in enumerate(term.predicates) if not can_fail(part)]
        self._lowered_predicates = [self._lowered(part) for part in term.predicates]
        self._fallible = [
            self._lowered_predicates[index] for index in range(len(term.predicates)) if index not in self._safe
        ]
        self._sides: dict[str, Expression] = {}
        self.graph = JoinGraph(len(term.leaves), list(self._equations()))

    def _equations(self) -> Iterator[Equation]:
        for number in self._safe:
            pair = equated(self._term.predicates[number])
            for own, other in (pair, pair[::-1]) if pair else ():
                owners = {self._leaf(index) for index in columns_read(own)}
                others = frozenset(self._leaf(index) for index in columns_read(other))
                if len(owners) == 1 and not owners & others:
                    (leaf,) = owners
                    side = shifted(own, -self._starts[leaf])
                    text = sql_of(side, _plain_name)
                    self._sides[text] = side
                    yield Equation(number, leaf, text, others)

    def lookups(self) -> Iterator[tuple[int, tuple[Expression, ...]]]:
        """Yield each leaf with the expressions by which its rows are looked up after a change of another leaf."""
        leaves = range(len(self._term.leaves))
        if len(leaves) > 2:
            yield from ((leaf, (self._sides[side],)) for leaf in leaves for side in self.graph.sides(leaf)[:1])
            return
        for first in leaves:
            yield from self.lookups_of(self.graph.plain_order(first))

    def lookups_of(self, order: JoinOrder) -> Iterator[tuple[int, tuple[Expression, ...]]]:
        """Yield each leaf with the expressions by which an order looks up its rows."""
        for leaf, key in zip(order.leaves, order.keys, strict=True):
            if key:
                yield leaf, tuple(self._sides[equation.own] for equation in key)

    def statistics(self, connection: apsw.Connection, leaf: int, table: str, rows: int) -> Statistics:
        """Estimate statistics of a leaf.

        Args:
            connection: connection to the database.
            leaf: the leaf.
            table: table of its rows.
            rows: number of its rows.
        """
        local = [
            sql_of(shifted(part, -self._starts[leaf]), _plain_name)
            for part in (self._term.predicates[index] for index in self._safe)
            if {self._leaf(index) for index in columns_read(part)} == {leaf}
        ]
        return sampled(connection, table, rows, self.graph.sides(leaf), local)

    def select(self, tables: Sequence[str], order: JoinOrder) -> str:
        """Return SQL of the rows of the term.

        Args:
            tables: one table for each leaf.
            order: order of the leaves.
        """
        return self.select_of(tables, order, self._term.outputs)

    def select_of(self, tables: Sequence[str], order: JoinOrder, values: Sequence[Expression]) -> str:
        """Return SQL of the values of expressions over the rows of the term, and of their counts."""
        outputs = [f"{self._lowered(value)} AS c{index}" for index, value in enumerate(values)]
        sign = "-" if self._term.is_negative else ""
        predicates = guarded(self._ordered_predicates(order), self._fallible)
        return self._over(tables, order, outputs or ["NULL AS c0"], f"{sign}{self._weight()} AS w", predicates)

    def candidates(self, tables: Sequence[str], order: JoinOrder) -> str:
        """Return SQL of `w` and the columns of all leaves, side by side, for which infallible predicates are true."""
        columns = [self._column(index) for index in range(self._starts[-1])]
        predicates = self._ordered_predicates(order)
        return self._over(tables, order, columns or ["NULL"], f"{self._weight()} AS w", predicates)

    def _ordered_predicates(self, order: JoinOrder) -> list[str]:
        """Return SQL of the infallible predicates; SQLite looks up rows only by the equations of the order."""
        looked_up = order.looked_up
        if len(order.leaves) <= 2:
            return [self._lowered_predicates[index] for index in self._safe]
        return [
            self._lowered_predicates[index] if index in looked_up else f"+({self._lowered_predicates[index]})"
            for index in self._safe
        ]

    def of_candidate(self) -> str:
        """Return SQL of the row of the term for one row of `candidates`, whose columns are bound."""
        outputs = [sql_of(output, _plain_name) for output in self._term.outputs]
        predicates = [sql_of(part, _plain_name) for part in self._term.predicates if can_fail(part)]
        where = f" WHERE {' AND '.join(f'({part})' for part in predicates)}" if predicates else ""
        bound = ", ".join(f"?{index + 1} AS c{index}" for index in range(self._starts[-1])) or "?1 AS c0"
        return f"SELECT {', '.join(outputs) or 'NULL'} FROM (SELECT {bound}){where}"

    def _over(
        self, tables: Sequence[str], order: JoinOrder, columns: Sequence[str], weight: str, predicates: Sequence[str]
    ) -> str:
        # SQLite keeps the order of a CROSS JOIN.
        source = " CROSS JOIN ".join(f"{tables[leaf]} AS x{leaf}" for leaf in order.leaves)
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


def _plain_name(column: Column | OuterColumn) -> str:
    return f"c{column.index}"


@dataclass(frozen=True, slots=True)
class _Orders:
    """The orders of a term.

    Attributes:
        by_first: for each leaf, the order that begins with it.
        best: the leaf with which the order for all rows of all leaves begins.
    """

    by_first: Sequence[JoinOrder]
    best: int


def _is_other_magnitude(before: int, now: int) -> bool:
    """Return whether a count has changed tenfold; small counts do not matter."""
    return max(before, now, _SMALL) >= _MAGNITUDE * max(min(before, now), _SMALL)


_MAGNITUDE, _SMALL = 10, 10

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
        self._orders: list[_Orders] = []
        self._counts: list[int] = []
        self.is_deferred = False
        """Flag of a join whose only reader computes the first rows."""

    def arranged_inputs(self) -> Sequence[Operator]:
        """Return all joined inputs."""
        return [leaf for leaves in self._leaves if len(leaves) > 1 for leaf in leaves]

    def lookups(self) -> Iterator[tuple[Operator, Sequence[Expression]]]:
        """Return the inputs with equated expressions; other lookups get their indexes when the orders are chosen."""
        for leaves, term in zip(self._leaves, self._terms, strict=True):
            for leaf, key in term.lookups():
                yield leaves[leaf], key

    def update(self, tick: Tick) -> None:
        """Compute changes; after an error in an expression, row by row."""
        if self.is_deferred:
            self.count = max(source.count for source in self.inputs)
            return
        try:
            statements = self._statements_now()
            if len(statements) == 1:
                self.settle(statements[0])
            else:
                self._settle_parts(statements)
        except SqlError:
            self._settle_singly(tick)

    @property
    def outputs(self) -> Sequence[Expression] | None:
        """Return the expressions of the columns of an only term; None if there are several terms."""
        return self.plan.terms[0].outputs if len(self.plan.terms) == 1 and self.inputs else None

    def first_values(self, values: Sequence[Expression]) -> str:
        """Return SQL of the values of expressions over the first rows of the only term, and of their counts."""
        self._choose_orders()
        ((term, tables, order),) = self._parts()
        return term.select_of(tables, order, values)

    def store(self, tick: Tick) -> None:
        """Compute the deferred first rows."""
        self.is_deferred = False
        self.update(tick)

    def end_first_rows(self) -> None:
        """Store rows from now on."""
        super().end_first_rows()
        self.is_deferred = False

    def _statements_now(self) -> list[str]:
        """Return the SELECTs of all changes."""
        self._choose_orders()
        if self.is_new:
            return self._united()
        dirty = tuple(source.is_dirty for source in self.inputs)
        statements = self._statements.get(dirty)
        if statements is None:
            statements = self._statements[dirty] = self._united()
        return statements

    def go_back(self) -> None:
        """Choose the orders again, and create their indexes again."""
        self._orders.clear()

    def _choose_orders(self) -> None:
        """Choose the orders of the joins: at first, and after the number of rows of a leaf has changed tenfold."""
        joined = [leaf for leaves in self._leaves if len(leaves) > 1 for leaf in leaves]
        counts = [leaf.arrangement.rows if leaf.arrangement is not None else 0 for leaf in joined]
        if self._orders and not any(map(_is_other_magnitude, self._counts, counts)):
            return
        self._counts = counts
        self._statements.clear()
        self._orders = [self._orders_of(*pair) for pair in zip(self._terms, self._leaves, strict=True)]

    def _orders_of(self, term: TermSql, leaves: Sequence[Operator]) -> _Orders:
        """Return the orders of a term, and create the indexes for their lookups."""
        graph = term.graph
        if len(leaves) <= 1:
            return _Orders([graph.plain_order(first) for first in range(len(leaves))] or [JoinOrder((), ())], 0)
        arranged = [leaf.arrangement for leaf in leaves]
        statistics = [
            term.statistics(self.connection, number, arrangement.table, arrangement.rows)
            for number, arrangement in enumerate(arranged)
            if arrangement is not None
        ]
        orders = [graph.order(first, statistics) for first in range(len(leaves))]
        for order, first in zip(orders, leaves, strict=True):
            for leaf, key in term.lookups_of(order):
                arrangement = arranged[leaf]
                if arrangement is not None and not isinstance(first.plan, Fixed):
                    arrangement.index(key)
        return _Orders(orders, graph.whole_order(statistics).leaves[0])

    def _united(self) -> list[str]:
        selects = [term.select(tables, order) for term, tables, order in self._parts()]
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

    def _parts(self) -> Iterator[tuple[TermSql, list[str], JoinOrder]]:
        """Yield the joins: a term, tables of its leaves, and their order."""
        for leaves, term, orders in zip(self._leaves, self._terms, self._orders, strict=True):
            if self.is_new:
                yield term, [self.changed(leaf) for leaf in leaves], orders.by_first[orders.best]
                continue
            choices = product(*((True, False) if leaf.is_dirty else (False,) for leaf in leaves))
            for choice in choices:
                if any(choice):
                    tables = [_table(leaf, chosen) for leaf, chosen in zip(leaves, choice, strict=True)]
                    yield term, tables, orders.by_first[next(compress(range(len(leaves)), choice))]

    def _settle_singly(self, tick: Tick) -> None:
        """Compute changes of the rows that have a value, and errors of the other rows."""
        counts: dict[Row, int] = {}
        for (term, tables, order), sign in zip(self._parts(), self._signs(), strict=True):
            evaluation = term.of_candidate()
            for candidate, weight in weighted(self.connection.execute(term.candidates(tables, order)).fetchall()):
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
