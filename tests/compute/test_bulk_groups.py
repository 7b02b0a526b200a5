"""Contributions to groups by columns equal those of SQL."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from random import Random

import pytest
from changing import Changing
from relations_sample import shown

from derive.algebra.expression import Call, Column, Expression, Literal
from derive.algebra.relation import Aggregate, Get, Join, Project, Reduce, Relation, UnionAll
from derive.algebra.types import Datum, Row, Type
from derive.compute.instance import Instance
from derive.compute.oneshot import evaluate
from derive.compute.operators import bulk_groups, groups
from derive.errors import SqlError
from derive.functions.registry import resolve_aggregate
from derive.functions.types.numbers import numeric_of

TYPES = (Type.INTEGER, Type.TEXT, Type.NUMERIC, Type.DOUBLE, Type.BIGINT, Type.BOOLEAN)
ITEMS = Get(1, TYPES)


def aggregate(symbol: str, *arguments: Expression, condition: Expression | None = None) -> Aggregate:
    resolution = resolve_aggregate(symbol, [argument.type for argument in arguments])
    return Aggregate(resolution.function, arguments, resolution.result_type, condition=condition)


def aggregates(condition: Expression | None) -> tuple[Aggregate, ...]:
    """Return all aggregates whose states are numbers, and some others."""
    columns = [Column(index, TYPES[index]) for index in (2, 3, 4)]
    numbers = [aggregate(name, column, condition=condition) for name in ("sum", "avg", "count") for column in columns]
    others = aggregate("count", condition=condition), aggregate("max", columns[0], condition=condition)
    return (*numbers, *others)


def arithmetic(name: str, *arguments: Expression) -> Call:
    return Call(f"{name}_numeric", arguments, Type.NUMERIC)


def products() -> tuple[Aggregate, ...]:
    """Return sums of arithmetic over the columns of two rows."""
    amount, other, count = Column(2, Type.NUMERIC), Column(8, Type.NUMERIC), Column(4, Type.BIGINT)
    net = arithmetic("multiply", amount, arithmetic("subtract", Literal(numeric_of(Decimal(1)), Type.NUMERIC), other))
    total = arithmetic("add", arithmetic("negate", net), Call("bigint_to_numeric", (count,), Type.NUMERIC))
    return (aggregate("sum", net), aggregate("avg", total), aggregate("sum", amount), aggregate("sum", count))


def views() -> dict[int, Relation]:
    """Return views with groups by two columns, without keys, with conditions, and over sums and joins."""
    first, second, chosen = Column(0, Type.INTEGER), Column(1, Type.TEXT), Column(5, Type.BOOLEAN)
    columns = tuple(Column(index, kind) for index, kind in enumerate(TYPES))
    doubled = UnionAll((ITEMS, Project(ITEMS, (Literal(None, Type.INTEGER), *columns[1:]))))
    joined = Join((ITEMS, ITEMS), (Call("equal_text", (second, Column(7, Type.TEXT)), Type.BOOLEAN),))
    return {
        10: Reduce(ITEMS, (first, second), aggregates(None)),
        11: Reduce(ITEMS, (), aggregates(chosen)),
        12: Reduce(doubled, (Call("add_integer", (first, first), Type.INTEGER),), aggregates(None)),
        13: Reduce(joined, (second,), products()),
        14: Reduce(joined, (), products()[:2]),
    }


def row_of(random: Random, most: int) -> Row:
    """Return a row; values are often NULL, and sometimes no finite number if `most` is 6."""
    numbers: list[Datum] = [numeric_of(Decimal(text)) for text in ("0.1", "-7", "1E+60", "3E-20", "NaN", "-Infinity")]
    doubles: list[Datum] = [0.1, -1e300, 1e300, 5e-324, "NaN", float("inf")]
    return (
        random.choice([1, 2, None]),
        random.choice(["a", "", None]),
        random.choice([*numbers[:most], None]),
        random.choice([*doubles[:most], None]),
        random.choice([-(1 << 63), (1 << 63) - 1, 5, None]),
        random.choice([0, 1, None]),
    )


@pytest.mark.parametrize(("most_groups", "most"), [(bulk_groups.MOST_GROUPS, 4), (bulk_groups.MOST_GROUPS, 6), (2, 4)])
def test_groups_by_columns_equal_recomputation(monkeypatch: pytest.MonkeyPatch, most_groups: int, most: int) -> None:
    """At first, and under insertions and deletions of repeated rows; with too many groups, SQL computes them."""
    monkeypatch.setattr(groups, "_MANY", 1)
    monkeypatch.setattr(bulk_groups, "_BATCH", 7)
    monkeypatch.setattr(bulk_groups, "LEAST_ROWS", 0)
    monkeypatch.setattr(bulk_groups, "MOST_GROUPS", most_groups)
    random, items, live = Random(3), Changing(TYPES), Counter[Row]()
    instance = Instance()
    for time in range(1, 8):
        changes = Counter(row_of(random, most) for _ in range(random.choice([5, 40])))
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


def test_groups_over_a_join_record_errors_of_its_rows() -> None:
    """A row that has no value is an error until it is deleted; before and after, its group has rows."""
    items, instance = Changing(TYPES), Instance()
    zero, one = ((0, "a", numeric_of(Decimal(number)), 0.5, number, 1) for number in (0, 1))
    items.change(1, [(zero, 1), (one, 2)])
    items.seal(2)
    quotient = Call("divide_numeric", (Column(2, Type.NUMERIC), Column(2, Type.NUMERIC)), Type.NUMERIC)
    relation = Reduce(ITEMS, (Column(1, Type.TEXT),), (aggregate("sum", arithmetic("add", quotient, quotient)),))
    instance.maintain(10, relation, 1, {1: items.since(1)})
    while instance.step():
        pass
    with pytest.raises(SqlError, match="division by zero"):
        list(instance.peek(Get(10, relation.types)))
    items.change(2, [(zero, -1)])
    items.seal(3)
    while instance.step():
        pass
    assert list(instance.peek(Get(10, relation.types))) == [[("a", numeric_of(Decimal(4)))]]
    instance.close()
