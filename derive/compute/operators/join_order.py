"""Orders of the leaves of a join, chosen from counts of rows and of distinct values.

The counts are estimated from a sample of each leaf's rows. An order begins with a given leaf, whose changes are few, or
with the leaf that gives the fewest intermediate rows. Next is always the leaf that gives the fewest rows among the
leaves with an equation to earlier leaves. A leaf without such an equation follows only if no other leaf is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import apsw

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
