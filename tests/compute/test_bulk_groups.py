"""Contributions to groups by columns equal those of SQL."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from random import Random

import pytest
from changing import Changing
from relations_sample import shown

from derive.algebra.expression import Call, Column, Expression, Literal
from derive.algebra.relation import Aggregate, Get, Project, Reduce, Relation, UnionAll
from derive.algebra.types import Datum, Row, Type
from derive.compute.instance import Instance
from derive.compute.oneshot import evaluate
from derive.compute.operators import bulk_groups, groups
from derive.functions.registry import resolve_aggregate
from derive.functions.types.numbers import numeric_of

TYPES = (Type.INTEGER, Type.TEXT, Type.NUMERIC, Type.DOUBLE, Type.BIGINT, Type.BOOLEAN)
ITEMS = Get(1, TYPES)


def aggregates(condition: Expression | None) -> tuple[Aggregate, ...]:
    """Return all aggregates whose states are numbers, and some others."""
    made = []
    for symbol, places in (
        *((symbol, (index,)) for symbol in ("sum", "avg", "count") for index in (2, 3, 4)),
        ("count", ()),
        ("max", (2,)),
    ):
        arguments = tuple(Column(index, TYPES[index]) for index in places)
        resolution = resolve_aggregate(symbol, [argument.type for argument in arguments])
        made.append(Aggregate(resolution.function, arguments, resolution.result_type, condition=condition))
    return tuple(made)


def views() -> dict[int, Relation]:
    """Return views with groups by two columns, without keys, with conditions, and over deleted rows."""
    first, second, chosen = Column(0, Type.INTEGER), Column(1, Type.TEXT), Column(5, Type.BOOLEAN)
    columns = tuple(Column(index, kind) for index, kind in enumerate(TYPES))
    doubled = UnionAll((ITEMS, Project(ITEMS, (Literal(None, Type.INTEGER), *columns[1:]))))
    return {
        10: Reduce(ITEMS, (first, second), aggregates(None)),
        11: Reduce(ITEMS, (), aggregates(chosen)),
        12: Reduce(doubled, (Call("add_integer", (first, first), Type.INTEGER),), aggregates(None)),
    }


def row_of(random: Random) -> Row:
    """Return a row; values are often NULL, and sometimes have no finite number."""
    numbers: list[Datum] = [numeric_of(Decimal(text)) for text in ("0.1", "-7", "1E+60", "3E-20", "NaN", "-Infinity")]
    doubles: list[Datum] = [0.1, -1e300, 1e300, 5e-324, "NaN", float("inf")]
    return (
        random.choice([1, 2, None]),
        random.choice(["a", "", None]),
        random.choice([*numbers[: random.choice([4, 6])], None]),
        random.choice([*doubles[: random.choice([4, 6])], None]),
        random.choice([-(1 << 63), (1 << 63) - 1, 5, None]),
        random.choice([0, 1, None]),
    )


@pytest.mark.parametrize("most_groups", [bulk_groups.MOST_GROUPS, 2])
def test_groups_by_columns_equal_recomputation(monkeypatch: pytest.MonkeyPatch, most_groups: int) -> None:
    """At first, and under insertions and deletions of repeated rows; with too many groups, SQL computes them."""
    monkeypatch.setattr(groups, "_MANY", 1)
    monkeypatch.setattr(bulk_groups, "_BATCH", 7)
    monkeypatch.setattr(bulk_groups, "MOST_GROUPS", most_groups)
    random, items, live = Random(3), Changing(TYPES), Counter[Row]()
    instance = Instance()
    for time in range(1, 8):
        changes = Counter(row_of(random) for _ in range(random.choice([5, 40])))
        changes.subtract({row: random.randrange(1, count + 1) for row, count in live.items() if random.random() < 0.3})
        items.change(time, list(changes.items()))
        items.seal(time + 1)
        live += changes
        if time == 1:
            for identifier, relation in views().items():
                instance.maintain(identifier, relation, 1, {1: items.since(1)})
        while instance.step():
            pass
        for identifier, relation in views().items():
            maintained = Counter(row for batch in instance.peek(Get(identifier, relation.types)) for row in batch)
            whole = evaluate(relation, shown(relation), lambda *_, now=time: items.at(now))
            assert maintained == Counter(row for batch in whole for row in batch)
    instance.close()
