"""Queries are evaluated over what is fetched for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from relations_sample import CUSTOMERS, ORDER_ROWS, ORDERS, aggregate, call, column, contents, number, shown

from derive.algebra.expression import Column, Expression, Literal, OuterColumn, Subquery, SubqueryKind
from derive.algebra.relation import (
    Constant,
    Distinct,
    Filter,
    Finishing,
    Get,
    GlobalId,
    Join,
    Order,
    OuterJoin,
    Project,
    Reduce,
    Relation,
    SetOperation,
    SetOperator,
    Side,
    TopK,
    UnionAll,
    Window,
    WindowFunction,
)
from derive.algebra.types import Datum, Row, Type
from derive.compute.oneshot import evaluate
from derive.errors import SqlError


def rows_of(relation: Relation, finishing: Finishing | None = None) -> list[Row]:
    """What a query gives."""
    batches = evaluate(relation, finishing or shown(relation), contents)
    return [row for batch in batches for row in batch]


def picked(relation: Relation, *indices: int) -> Project:
    """Some columns of a relation."""
    return Project(relation, tuple(column(relation, index) for index in indices))


NUMBERS = picked(ORDERS, 0)
MATCHES = call("=", column(ORDERS, 1), Column(4, Type.TEXT))


@pytest.mark.parametrize(
    ("relation", "expected"),
    [
        (NUMBERS, [(1,), (2,), (3,), (4,), (5,), (5,)]),
        (Filter(NUMBERS, call(">", Column(0, Type.BIGINT), number(3))), [(4,), (5,), (5,)]),
        (picked(Join((ORDERS, CUSTOMERS), (MATCHES,)), 0, 5), [(1, "Rome"), (2, "Oslo"), (3, "Rome")]),
        (
            picked(OuterJoin(Side.LEFT, ORDERS, CUSTOMERS, MATCHES), 0, 5),
            [(1, "Rome"), (2, "Oslo"), (3, "Rome"), (4, None), (5, None), (5, None)],
        ),
        (
            picked(OuterJoin(Side.RIGHT, ORDERS, CUSTOMERS, MATCHES), 0, 4),
            [(1, "ann"), (2, "ben"), (3, "ann"), (None, "dan"), (None, None)],
        ),
        (
            picked(OuterJoin(Side.FULL, ORDERS, CUSTOMERS, MATCHES), 0, 5),
            [(1, "Rome"), (2, "Oslo"), (3, "Rome"), (4, None), (5, None), (5, None), (None, "Rome"), (None, "Bern")],
        ),
        (
            UnionAll((picked(ORDERS, 1), picked(CUSTOMERS, 0))),
            [("ann",), ("ben",), ("ann",), (None,), ("cid",), ("cid",), ("ann",), ("ben",), ("dan",), (None,)],
        ),
        (Distinct(picked(ORDERS, 1)), [("ann",), ("ben",), (None,), ("cid",)]),
        (SetOperation(SetOperator.EXCEPT, False, picked(ORDERS, 1), picked(CUSTOMERS, 0)), [("cid",)]),
        (
            SetOperation(SetOperator.EXCEPT, True, picked(ORDERS, 1), picked(CUSTOMERS, 0)),
            [("ann",), ("cid",), ("cid",)],
        ),
        (
            SetOperation(SetOperator.INTERSECT, True, picked(ORDERS, 1), UnionAll((picked(ORDERS, 1),) * 2)),
            [("ann",), ("ann",), ("ben",), (None,), ("cid",), ("cid",)],
        ),
        (
            Reduce(ORDERS, (column(ORDERS, 1),), (aggregate("count"), aggregate("max", column(ORDERS, 2)))),
            [("ann", 2, 30), ("ben", 1, 20), (None, 1, 40), ("cid", 2, 50)],
        ),
        (Reduce(Filter(ORDERS, Literal(0, Type.BOOLEAN)), (), (aggregate("count"),)), [(0,)]),
        (Reduce(ORDERS, (), (aggregate("count", column(ORDERS, 1), is_distinct=True),)), [(3,)]),
        (Constant(((1, "x"), (2, None)), (Type.BIGINT, Type.TEXT)), [(1, "x"), (2, None)]),
        (Constant((), (Type.BIGINT,)), []),
        (Project(Constant(((),), ()), (number(7),)), [(7,)]),
        (TopK(NUMBERS, (), (Order(Column(0, Type.BIGINT), is_descending=True),), 2, 1), [(5,), (4,)]),
        (
            picked(TopK(ORDERS, (column(ORDERS, 1),), (Order(column(ORDERS, 0), is_descending=True),), 1), 0),
            [(3,), (2,), (4,), (5,)],
        ),
        (
            picked(
                Window(
                    ORDERS,
                    (WindowFunction("row_number", (), Type.BIGINT, (column(ORDERS, 1),), (Order(column(ORDERS, 2)),)),),
                ),
                0,
                4,
            ),
            [(1, 1), (2, 1), (3, 2), (4, 1), (5, 1), (5, 2)],
        ),
    ],
)
def test_relations_are_evaluated(relation: Relation, expected: list[Row]) -> None:
    """Every kind of relation has the rows that SQL says."""
    assert Counter(rows_of(relation)) == Counter(expected)


def subquery(kind: SubqueryKind, relation: Relation, *operands: Expression) -> Subquery:
    """A subquery that gives a boolean, or a bigint."""
    return Subquery(kind, relation, operands, Type.BIGINT if kind is SubqueryKind.SCALAR else Type.BOOLEAN)


def test_subqueries_are_evaluated() -> None:
    """Subqueries see the row around them, and have the logic of three values."""
    of_customer = Filter(ORDERS, call("=", column(ORDERS, 1), OuterColumn(1, 0, Type.TEXT)))
    exists = Filter(CUSTOMERS, subquery(SubqueryKind.EXISTS, of_customer))
    assert rows_of(exists) == [("ann", "Rome"), ("ben", "Oslo")]
    total = subquery(SubqueryKind.SCALAR, Reduce(of_customer, (), (aggregate("max", column(ORDERS, 2)),)))
    assert rows_of(Project(CUSTOMERS, (column(CUSTOMERS, 0), total))) == [
        ("ann", 30),
        ("ben", 20),
        ("dan", None),
        (None, None),
    ]
    member = subquery(SubqueryKind.IN, picked(ORDERS, 1), column(CUSTOMERS, 0))
    assert rows_of(Filter(CUSTOMERS, member)) == [("ann", "Rome"), ("ben", "Oslo")]
    assert rows_of(Filter(CUSTOMERS, call("not", member))) == []


def test_scalar_subquery_of_several_rows_fails() -> None:
    """A subquery that is to have one value does not choose among several."""
    one_of_many = Project(CUSTOMERS, (subquery(SubqueryKind.SCALAR, NUMBERS),))
    with pytest.raises(SqlError) as caught:
        rows_of(one_of_many)
    assert caught.value.sqlstate == "21000"


def test_finishing_orders_and_limits_rows() -> None:
    """Rows are ordered before columns are chosen, and ties fall in the order of all columns."""
    order = (Order(column(ORDERS, 1), is_descending=True, nulls_first=True),)
    assert rows_of(ORDERS, Finishing(order, 3, 1, (0,))) == [(5,), (5,), (2,)]
    assert rows_of(ORDERS, Finishing((), 2, 3, (0,))) == [(4,), (5,)]
    assert rows_of(ORDERS, Finishing((), 0, 0, (0,))) == []


def test_fallible_predicates_are_evaluated_last() -> None:
    """A predicate that can fail is not asked of rows that others reject, wherever those stand."""
    amounts = picked(ORDERS, 2)
    amount = Column(0, Type.BIGINT)
    large = call(">", call("/", number(100), call("-", amount, number(20))), number(4))
    apart = call("<>", amount, number(20))
    for relation in (Filter(amounts, apart), Distinct(Filter(amounts, apart))):
        assert sorted(rows_of(Filter(relation, large))) == [(30,), (40,)]
    assert sorted(rows_of(Filter(amounts, call("and", large, apart)))) == [(30,), (40,)]
    with pytest.raises(SqlError) as caught:
        rows_of(Filter(amounts, large))
    assert caught.value.sqlstate == "22012"


def test_evaluation_fetches_only_rows_that_it_reads() -> None:
    """A query of one collection ends as soon as it has its rows."""
    fetched = []

    def batches(_: GlobalId, required: Collection[int]) -> Iterator[list[Row]]:
        assert list(required) == [0]
        for row in ORDER_ROWS:
            fetched.append(row)
            yield [row]

    assert list(evaluate(ORDERS, Finishing((), 2, 0, (0,)), batches)) == [[(1,)], [(2,)]]
    assert len(fetched) == 2


def test_result_size_is_limited() -> None:
    """A result that is too large, and a statement that is cancelled, end with an error of their own."""
    with pytest.raises(SqlError) as caught:
        list(evaluate(ORDERS, shown(ORDERS), contents, most_bytes=100))
    assert caught.value.sqlstate == "54000"
    many = Join((ORDERS,) * 9)
    for relation in (many, ORDERS):
        with pytest.raises(SqlError) as caught:
            list(evaluate(relation, Finishing((), None, 0, (0,)), contents, cancelled=lambda: True))
        assert caught.value.sqlstate == "57014"


def test_wide_unions_are_evaluated() -> None:
    """More relations are united than SQLite unites at once, and joined."""
    one = Constant(((1,),), (Type.BIGINT,))
    assert len(rows_of(UnionAll((one,) * 1000))) == 1000
    assert rows_of(picked(Join((one,) * 120), 119)) == [(1,)]


def test_collection_of_which_no_column_is_read_has_its_number_of_rows() -> None:
    """A collection without columns that are read has its number of rows."""
    assert rows_of(Reduce(Get(1, ORDERS.types), (), (aggregate("count"),))) == [(6,)]


def test_reused_connections_have_no_effect_on_later_queries() -> None:
    """Connections are used again: after queries that read, that fail, that end early, and by several threads."""
    numbers = Filter(NUMBERS, call(">", Column(0, Type.BIGINT), number(3)))
    fails = Project(NUMBERS, (call("/", number(1), call("-", Column(0, Type.BIGINT), number(5))),))

    def ask(_: int) -> list[Row]:
        with pytest.raises(SqlError, match="division by zero"):
            rows_of(Distinct(fails))
        early = evaluate(Distinct(NUMBERS), shown(NUMBERS), contents)
        next(early)
        early.close()  # type: ignore[attr-defined]
        return sorted(rows_of(Distinct(numbers)))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ask, range(40))) == [[(4,), (5,)]] * 40


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Type.BIGINT, (0, -(2**63), 2**63 - 1, None)),
        (Type.DOUBLE, (0.0, 5.0, 1e300, float("inf"), None)),
        (Type.TEXT, ("", "it's", "a\0b", "\U0001f600", None)),
        (Type.BOOLEAN, (1, 0, None)),
    ],
)
def test_literal_rows_equal_evaluated_rows(kind: Type, values: tuple[Datum, ...]) -> None:
    """They are not evaluated at all, in the form in which SQLite would give them."""
    types = (kind,) * len(values)
    constant = Constant((values, values), types)
    projected = Project(Constant(((),), ()), tuple(Literal(value, kind) for value in values))
    for relation in (constant, projected):
        evaluated = [(row[1], row[0]) for row in rows_of(TopK(relation, (), (), None, 0))]
        assert repr(rows_of(relation, Finishing((), None, 0, (1, 0)))) == repr(evaluated)
    assert rows_of(constant) == [values, values]
    assert rows_of(constant, Finishing((), 1, 0, (0,))) == [values[:1]]
