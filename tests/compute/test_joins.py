"""Joins of many relations: the order follows counts, and no cross product comes before a connected leaf."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import apsw
import pytest
from changing import Changing
from relations_sample import aggregate, call, column, number, shown

from derive.algebra.expression import Column, Expression
from derive.algebra.relation import Filter, Get, Join, Project, Reduce, Relation
from derive.algebra.types import Row, Type
from derive.compute.instance import Instance
from derive.compute.oneshot import evaluate
from derive.compute.operators.joins import Equation, JoinGraph, Statistics, sampled
from derive.compute.plans import planning
from derive.compute.plans.plan import Linear, Plan, inputs_of
from derive.compute.plans.planning import plan_of

_TYPES = (Type.BIGINT, Type.BIGINT, Type.BIGINT)


@dataclass(frozen=True)
class RandomJoin:
    """A join of some of three relations, of which each occurs several times.

    Attributes:
        relation: the join, or groups of its rows.
    """

    relation: Relation

    @staticmethod
    def of(random: Random) -> RandomJoin:
        """Return a join whose leaves are connected, but for one in ten."""
        leaves = [Get(random.randrange(1, 4), _TYPES) for _ in range(random.randrange(3, 13))]
        predicates: list[Expression] = []
        for leaf in range(1, len(leaves)):
            if random.random() < 0.9:
                predicates.append(_equation(random, leaf, random.randrange(leaf)))
        for _ in range(random.randrange(3)):
            predicates.append(_equation(random, *random.sample(range(len(leaves)), 2)))
        for leaf in range(len(leaves)):
            if random.random() < 0.4:
                predicates.append(call("<", _column(random, leaf), number(random.randrange(2, 9))))
        random.shuffle(predicates)
        joined: Relation = Join(tuple(leaves), tuple(predicates))
        if random.random() < 0.3:
            joined = Filter(joined, call("<", _column(random, 0), _column(random, len(leaves) - 1)))
        if random.random() < 0.5:
            return RandomJoin(Reduce(joined, (column(joined, 0),), (aggregate("count"),)))
        return RandomJoin(Project(joined, tuple(column(joined, random.randrange(len(joined.types))) for _ in range(3))))


def _column(random: Random, leaf: int) -> Column:
    return Column(3 * leaf + random.randrange(3), Type.BIGINT)


def _equation(random: Random, left: int, right: int) -> Expression:
    return call("=", _column(random, left), _column(random, right))


def _rows_at(
    collections: Mapping[int, Changing], time: int, identifier: int, _: Collection[int]
) -> Iterator[list[Row]]:
    return collections[identifier].at(time)


def check(seed: int, folder: Path) -> None:
    """Compare a random join with its evaluation, at each time of a random history."""
    random = Random(seed)
    collections = {identifier: Changing(_TYPES) for identifier in (1, 2, 3)}
    live: dict[int, list[Row]] = {identifier: [] for identifier in collections}
    relation = RandomJoin.of(random).relation
    instance = Instance(folder)
    began = random.randrange(1, 3)
    for time in range(1, 6):
        for identifier, collection in collections.items():
            changes: list[tuple[Row, int]] = []
            while live[identifier] and random.random() < 0.3:
                changes.append((live[identifier].pop(random.randrange(len(live[identifier]))), -1))
            for _ in range(random.randrange(3) if random.random() < 0.7 else 0):
                row = tuple(random.randrange(8) for _ in _TYPES)
                live[identifier].append(row)
                changes.append((row, 1))
            collection.change(time, changes)
            collection.seal(time + 1)
        if time == began:
            inputs = {one: collection.since(time) for one, collection in collections.items()}
            instance.maintain(9, relation, time, inputs)
        while instance.step():
            pass
    for time in range(began, 6):
        maintained = Counter(row for batch in instance.peek(Get(9, relation.types), as_of=time) for row in batch)
        evaluated = evaluate(relation, shown(relation), partial(_rows_at, collections, time))
        assert maintained == Counter(row for batch in evaluated for row in batch), seed
    instance.close()


@pytest.mark.parametrize("seed", range(12))
def test_joins_of_many_leaves_equal_evaluation(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if most of the leaves are in bundles."""
    if seed % 2:
        monkeypatch.setattr(planning, "MOST_LEAVES", 3)
    check(seed, tmp_path)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(100, 400))
def test_many_joins_of_many_leaves_equal_evaluation(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MOST_LEAVES", 2 + seed % 7)
    check(seed, tmp_path)


def _linear_parts(plan: Plan) -> list[Linear]:
    below = [one for source in inputs_of(plan) for one in _linear_parts(source)]
    return [plan, *below] if isinstance(plan, Linear) else below


def test_bundles_of_a_large_join_are_connected_and_have_their_equations() -> None:
    """A chain of 20 leaves: each stored part is a join with an equation for each leaf but the first."""
    leaves = tuple(Get(identifier, _TYPES) for identifier in range(1, 21))
    equations = tuple(
        call("=", Column(3 * leaf + 1, Type.BIGINT), Column(3 * leaf + 3, Type.BIGINT)) for leaf in range(19)
    )

    parts = _linear_parts(plan_of(Join(leaves, equations)))

    assert len(parts) > 1
    for part in parts:
        (term,) = part.terms
        assert len(term.leaves) <= planning.MOST_LEAVES
        assert len(term.predicates) >= len(term.leaves) - 1


def _chain(*sizes: float) -> tuple[JoinGraph, list[Statistics]]:
    """Return a chain of leaves whose column c1 is the next leaf's c0, which is unique."""
    equations = [
        one
        for leaf in range(len(sizes) - 1)
        for one in (
            Equation(leaf, leaf, "c1", frozenset({leaf + 1})),
            Equation(leaf, leaf + 1, "c0", frozenset({leaf})),
        )
    ]
    statistics = [
        Statistics(size, 1.0, {"c0": size, "c1": min(size, following)})
        for size, following in zip(sizes, [*sizes[1:], 1.0], strict=True)
    ]
    return JoinGraph(len(sizes), equations), statistics


def test_changes_come_first_and_leaves_follow_their_neighbours() -> None:
    graph, statistics = _chain(60_000, 15_000, 1_500, 25, 5)

    assert graph.order(4, statistics).leaves == (4, 3, 2, 1, 0)
    assert graph.order(2, statistics).leaves == (2, 3, 4, 1, 0)


def test_all_rows_begin_with_the_leaf_that_a_filter_makes_small() -> None:
    graph, statistics = _chain(60_000, 15_000, 1_500)
    filtered = [*statistics[:2], Statistics(1_500, 0.01, statistics[2].distinct)]

    assert graph.whole_order(filtered).leaves == (2, 1, 0)


def test_lookups_use_the_most_selective_equation() -> None:
    """Makers of a country, and the maker of a line: a line's maker is found by its number alone."""
    graph = JoinGraph(
        3,
        [
            Equation(0, 2, "c0", frozenset({0})),
            Equation(1, 2, "c1", frozenset({1})),
            Equation(2, 1, "c0", frozenset({0})),
        ],
    )
    statistics = [
        Statistics(1000.0),
        Statistics(100.0, 1.0, {"c0": 100.0}),
        Statistics(100.0, 1.0, {"c0": 100.0, "c1": 5.0}),
    ]

    order = graph.order(0, statistics)

    assert [[equation.own for equation in key] for key in order.keys] == [[], ["c0"], ["c0"]]


def test_cross_products_come_last_except_for_single_rows() -> None:
    graph = JoinGraph(4, [Equation(0, 1, "c0", frozenset({0})), Equation(0, 0, "c0", frozenset({1}))])
    statistics = [Statistics(10.0), Statistics(1e6, 1.0, {"c0": 2.0}), Statistics(3.0), Statistics(1.0)]

    assert graph.order(0, statistics).leaves == (0, 3, 1, 2)


def test_samples_estimate_filters_and_distinct_values() -> None:
    connection = apsw.Connection("")
    connection.execute("CREATE TABLE t(c0, c1, c2)")
    connection.executemany("INSERT INTO t VALUES (?, ?, ?)", [(row, row % 7, row % 4) for row in range(20_000)])

    found = sampled(connection, "t", 20_000, ["c0", "c1"], ["c2 = 3"])

    assert found.rows == 20_000
    assert 0.2 < found.kept < 0.3
    assert found.distinct["c0"] > 15_000
    assert 6 <= found.distinct["c1"] <= 8


def test_orders_are_chosen_again_after_a_tenfold_growth(tmp_path: Path) -> None:
    """The lookups of the new order have an index."""
    types = (Type.BIGINT, Type.BIGINT, Type.BIGINT)
    collections = {identifier: Changing(types) for identifier in (1, 2, 3)}
    for collection in collections.values():
        collection.change(1, [((row, row, 0), 1) for row in range(3)])
        collection.seal(2)
    leaves = tuple(Get(identifier, types) for identifier in collections)
    relation = Join(
        leaves,
        (
            call("=", Column(2, Type.BIGINT), Column(5, Type.BIGINT)),
            call("=", Column(0, Type.BIGINT), Column(3, Type.BIGINT)),
            call("=", Column(3, Type.BIGINT), Column(6, Type.BIGINT)),
        ),
    )
    instance = Instance(tmp_path)
    instance.maintain(9, relation, 1, {one: collection.since(1) for one, collection in collections.items()})
    while instance.step():
        pass
    collections[2].change(2, [((row, row, 0), 1) for row in range(3, 3000)])
    collections[1].change(3, [((2999, 1, 0), 1)])
    for collection in collections.values():
        collection.seal(4)
    while instance.step():
        pass
    rows = [row for batch in instance.peek(Get(9, relation.types), as_of=3) for row in batch]
    instance.close()

    assert len(rows) == 3
    connection = apsw.Connection(str(tmp_path / "compute.db"), apsw.SQLITE_OPEN_READONLY)
    columns = [
        name
        for (name,) in connection.execute(
            "SELECT ii.name FROM pragma_index_list('a2') il, pragma_index_info(il.name) ii WHERE ii.seqno = 0"
        )
    ]
    connection.close()
    assert "c0" in columns
