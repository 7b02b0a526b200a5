"""Rows that cannot matter to a query, as columns of them are not what they must be, change nothing if they are missing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from random_relations import COLLECTIONS, VALUES, RandomRelations, collections, random_changes
from relations_sample import CUSTOMERS, ORDERS, call, column, number, shown, text

from derive.algebra.bounds import Bounds, ColumnBounds, bounds_of
from derive.algebra.expression import Call, Column, Expression, Literal
from derive.algebra.relation import (
    Distinct,
    Filter,
    Get,
    Join,
    OuterJoin,
    Project,
    Relation,
    Side,
    UnionAll,
    Window,
    WindowFunction,
)
from derive.algebra.types import Datum, Row, Type
from derive.compute.oneshot import evaluate

EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "30"))


def equal(*data: Datum) -> ColumnBounds:
    return ColumnBounds(frozenset(data))


def test_bounds_follow_from_conjunctions_lists_and_joins() -> None:
    """Conjunctions, lists, and joins, on whichever side; nothing is told of what is read in two places."""
    both = call("and", call("=", column(ORDERS, 0), number(1)), call("=", text("ann"), column(ORDERS, 1)))
    listed = Call("in", (Column(4, Type.TEXT), text("ann"), Literal(None, Type.TEXT)), Type.BOOLEAN)
    joined = Join((Filter(ORDERS, both), CUSTOMERS), (listed, call("=", Column(2, Type.BIGINT), number(7))))

    assert bounds_of((Project(joined, (number(1),)), shown(joined))) == {
        1: {0: equal(1), 1: equal("ann"), 2: equal(7)},
        2: {0: equal("ann", None)},
    }
    assert bounds_of(UnionAll((Filter(ORDERS, both), ORDERS))) == {}
    either = call("or", call("=", column(ORDERS, 0), number(1)), call("=", column(ORDERS, 0), number(2)))
    assert bounds_of(Filter(ORDERS, either)) == {1: {0: equal(1, 2)}}
    assert bounds_of(Filter(ORDERS, call("or", either, call("=", column(ORDERS, 1), text("x"))))) == {1: {}}
    assert bounds_of(Filter(Distinct(ORDERS), both)) == {1: {}}


def test_bounds_of_columns_follow_from_predicates() -> None:
    """Comparisons with what is written, from both sides, of which the narrowest count; nothing is before NULL."""
    here = column(ORDERS, 0)
    within = call(
        "and", call(">", here, number(1)), call("and", call(">=", number(9), here), call("<", here, number(8)))
    )
    assert bounds_of(Filter(ORDERS, within)) == {1: {0: ColumnBounds(None, 1, 8)}}
    assert bounds_of(Filter(Filter(ORDERS, within), call("=", here, number(5)))) == {
        1: {0: ColumnBounds(frozenset({5}), 1, 8)}
    }
    assert bounds_of(Filter(ORDERS, call("<", here, Literal(None, Type.BIGINT)))) == {1: {0: equal()}}


def test_bounds_pass_windows_only_for_partition_columns() -> None:
    """Rows of other partitions change nothing; of other columns nothing is told."""
    numbered = Window(ORDERS, (WindowFunction("row_number", (), Type.BIGINT, (column(ORDERS, 0),)),))
    both = call("and", call("=", column(ORDERS, 0), number(1)), call("=", text("ann"), column(ORDERS, 1)))
    assert bounds_of(Filter(numbered, both)) == {1: {0: equal(1)}}


def random_predicate(random: Random, types: tuple[Type, ...]) -> Expression:
    """A predicate, with columns that are compared with something in some places of it."""
    index = random.choice([index for index, kind in enumerate(types) if kind in {Type.BIGINT, Type.TEXT}])
    here = Column(index, types[index])
    literals = [Literal(random.choice((*VALUES[here.type], None)), here.type) for _ in range(2)]
    match random.randrange(6):
        case 0:
            return call("=", literals[0], here)
        case 1:
            return Call("in", (here, *literals), Type.BOOLEAN)
        case 2:
            return call("<>", here, literals[0])
        case 3:
            return call(
                random.choice(("<", "<=", ">", ">=")), *random.choice(((here, literals[0]), (literals[0], here)))
            )
        case _:
            return call(
                random.choice(("and", "and", "or")), random_predicate(random, types), random_predicate(random, types)
            )


def random_query(random: Random) -> Relation:
    orders = Get(1, COLLECTIONS[1])
    relation: Relation = Filter(orders, random_predicate(random, orders.types)) if random.random() < 0.5 else orders
    other = RandomRelations(random, False).relation(random.randrange(3))
    if random.random() < 0.7:
        types = relation.types + other.types
        predicates = tuple(random_predicate(random, types) for _ in range(2))
        if random.random() < 0.7:
            relation = Join((relation, other), predicates)
        else:
            relation = OuterJoin(Side.LEFT, relation, other, predicates[0])
    return Filter(relation, random_predicate(random, relation.types)) if random.random() < 0.5 else relation


@settings(max_examples=EXAMPLES * 4, deadline=None)
@given(st.integers(0, 1 << 32))
def test_rows_outside_bounds_do_not_change_results(seed: int) -> None:
    """Evaluation returns the same rows with and without such rows, for any query."""
    random = Random(seed)
    query = random_query(random)
    changing = collections()
    for collection in changing.values():
        collection.change(1, random_changes(random, [], collection.types))
    bounds = bounds_of((query, shown(query)))

    def every(identifier: int, _: Collection[int]) -> Iterator[list[Row]]:
        return changing[identifier].at(1)

    def few(identifier: int, _: Collection[int]) -> Iterator[list[Row]]:
        for rows in every(identifier, _):
            yield [row for row in rows if matters(row, bounds.get(identifier, {}))]

    expected = Counter(row for rows in evaluate(query, shown(query), every) for row in rows)
    assert Counter(row for rows in evaluate(query, shown(query), few) for row in rows) == expected


def matters(row: Row, bounds: Bounds) -> bool:
    return all(bound.holds(row[index]) for index, bound in bounds.items())
