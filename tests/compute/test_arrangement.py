"""Tables of rows: which indexes they have, and in what order the first rows are in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from changing import Changing
from relations_sample import CUSTOMERS, ORDERS, aggregate, call, column

from derive.algebra.expression import Column
from derive.algebra.relation import Join, Reduce, Relation
from derive.algebra.types import Row, Type
from derive.compute.dataflow.database import NAME
from derive.compute.instance import Instance

JOINED = Join((ORDERS, CUSTOMERS), (call("=", column(ORDERS, 1), Column(4, Type.TEXT)),))


@pytest.fixture
def orders() -> Changing:
    """Orders that are not in the order of their customers; one is there twice."""
    orders = Changing(ORDERS.types)
    orders.change(1, [((1, "cid", 1, 0.1), 1), ((2, "ann", 2, 0.2), 2), ((3, "ben", 3, 0.3), 1)])
    orders.seal(5)
    return orders


@pytest.fixture
def customers() -> Changing:
    """One for each order."""
    customers = Changing(CUSTOMERS.types)
    customers.change(1, [((name, "Rome"), 1) for name in ("cid", "ben", "ann")])
    customers.seal(5)
    return customers


def work(instance: Instance) -> None:
    """Work until there is none."""
    while instance.step():
        pass


def indexes_of(folder: Path, table: str) -> list[str]:
    """SQL of the indexes of a table, without what is there of rows that are there repeatedly."""
    connection = apsw.Connection(str(folder / NAME))
    query = (
        "SELECT sql FROM sqlite_schema WHERE type = 'index' AND tbl_name = ? AND name NOT GLOB '*_copies' ORDER BY 1"
    )
    texts = [str(sql) for (sql,) in connection.execute(query, (table,))]
    connection.close()
    return texts


def stored_rows(folder: Path, table: str) -> list[Row]:
    """The rows of a table, in the order in which they are there."""
    connection = apsw.Connection(str(folder / NAME))
    rows = connection.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()
    connection.close()
    return rows


def test_row_index_begins_with_equated_columns(tmp_path: Path, orders: Changing, customers: Changing) -> None:
    """No other index is needed, and first rows are in its order; each is there once, with how often it is."""
    instance = Instance(tmp_path)
    instance.maintain(9, JOINED, 1, {1: orders.since(1), 2: customers.since(1)})
    work(instance)
    instance.close()
    assert indexes_of(tmp_path, "a1") == ["CREATE INDEX a1_row ON a1(c1, c0, c2, c3)"]
    assert indexes_of(tmp_path, "a2") == ["CREATE INDEX a2_row ON a2(c0, c1)"]
    assert stored_rows(tmp_path, "a1") == [(2, "ann", 2, 0.2, 2), (3, "ben", 3, 0.3, 1), (1, "cid", 1, 0.1, 1)]
    assert stored_rows(tmp_path, "a3") == [
        (1, "cid", 1, 0.1, "cid", "Rome", 1),
        (2, "ann", 2, 0.2, "ann", "Rome", 2),
        (3, "ben", 3, 0.3, "ben", "Rome", 1),
    ]


@pytest.mark.parametrize(
    ("row", "index"),
    [
        (lambda number: (number, f"{number % 9}", 0, 0.5), "a1(c1, c0, c2)"),
        (lambda number: (number // 600, "ann", number % 600, 0.5), "a1(c1, c0, c2, c3)"),
        (lambda number: (0, "ann", 0, float(number)), "a1(c1, c0, c2, c3)"),
        (lambda number: (number, f"customer {number}", 0, 0.5), "a1(c1, c0)"),
    ],
)
def test_row_index_of_many_rows_has_one_column_more_than_it_needs(
    tmp_path: Path, customers: Changing, row: Callable[[int], Row], index: str
) -> None:
    many = Changing(ORDERS.types)
    many.change(1, [(row(number), 1) for number in range(1_200)])
    many.seal(5)
    instance = Instance(tmp_path)
    instance.maintain(9, JOINED, 1, {1: many.since(1), 2: customers.since(1)})
    work(instance)
    many.change(6, [(row(7), -1), ((2_000, "ann", 1, 0.5), 1)])
    for collection in (many, customers):
        collection.seal(8)
    work(instance)
    instance.close()
    assert indexes_of(tmp_path, "a1") == [f"CREATE INDEX a1_row ON {index}"]
    assert sorted(stored_rows(tmp_path, "a1")) == sorted(
        (*one, 1) for one in [*(row(number) for number in range(1_200) if number != 7), (2_000, "ann", 1, 0.5)]
    )


@pytest.mark.parametrize(
    ("relation", "columns", "indexes"),
    [
        (JOINED, [2], ["a3(c2, c0, c1, c3, c4, c5)"]),
        (JOINED, [2, 1], ["a3(c2, c1, c0, c3, c4, c5)"]),
        (Reduce(ORDERS, (column(ORDERS, 1),), (aggregate("count"),)), [1], ["a3(c1, c0)"]),
        (Reduce(ORDERS, (column(ORDERS, 1),), (aggregate("count"),)), [0], ["a3(c0)"]),
    ],
)
def test_index_requested_at_the_start_begins_the_arrangement(
    tmp_path: Path, orders: Changing, customers: Changing, relation: Relation, columns: list[int], indexes: list[str]
) -> None:
    instance = Instance(tmp_path)
    inputs = {1: orders.since(1), 2: customers.since(1)}
    instance.maintain(9, relation, 1, inputs if relation is JOINED else {1: inputs[1]})
    instance.index(9, [Column(index, relation.types[index]) for index in columns])
    work(instance)
    instance.close()
    table = indexes[0].partition("(")[0]
    assert indexes_of(tmp_path, table) == [f"CREATE INDEX {table}_row ON {text}" for text in indexes]


def test_index_requested_later_is_separate(tmp_path: Path, orders: Changing) -> None:
    """In an instance that is opened anew as well, which finds out what there is."""
    groups = Reduce(ORDERS, (column(ORDERS, 1),), (aggregate("count"),))
    instance = Instance(tmp_path)
    instance.maintain(9, groups, 1, {1: orders.since(1)})
    work(instance)
    instance.close()
    instance = Instance(tmp_path)
    for columns in ([0], [1], [1], [1, 0]):
        instance.index(9, [Column(index, groups.types[index]) for index in columns])
    work(instance)
    instance.close()
    assert indexes_of(tmp_path, "a3") == [
        "CREATE INDEX a3_1 ON a3(c1)",
        "CREATE INDEX a3_1_0 ON a3(c1, c0)",
        "CREATE INDEX a3_row ON a3(c0)",
    ]
