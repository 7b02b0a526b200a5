"""Dataflows that fail on a full disk resume once there is room."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from changing import Changing
from relations_sample import CUSTOMERS, ORDERS, aggregate, column
from test_instance import rows_of, settled

from derive.algebra.relation import Get, Reduce
from derive.algebra.types import Row
from derive.compute.instance import Instance
from derive.errors import SqlError

BY_NAME = Reduce(ORDERS, (column(ORDERS, 1),), (aggregate("count"),))
ROOM = 1_000_000


def names(begin: int, count: int) -> list[tuple[Row, int]]:
    """Orders of as many people, whose names are long."""
    return [((number, f"{number} " + "x" * 1_000, number, 0.5), 1) for number in range(begin, begin + count)]


@pytest.fixture
def orders() -> Changing:
    orders = Changing(ORDERS.types)
    orders.change(1, names(0, 3))
    orders.seal(2)
    return orders


@pytest.fixture
def customers() -> Changing:
    customers = Changing(CUSTOMERS.types)
    customers.change(1, [(("ann", "Rome"), 1)])
    customers.seal(2)
    return customers


def fill(instance: Instance) -> None:
    """The disk has no more room than what is there takes."""
    connection = instance._connection
    connection.pragma("max_page_count", connection.pragma("page_count"))


def test_input_updates_survive_a_failure(orders: Changing, customers: Changing, tmp_path: Path) -> None:
    with closing(Instance(tmp_path)) as instance:
        instance.maintain(9, BY_NAME, 1, {1: orders.since(1)})
        instance.maintain(10, CUSTOMERS, 1, {2: customers.since(1)})
        settled(instance)
        fill(instance)
        orders.change(2, [((0, "0 " + "x" * 1_000, 0, 0.5), -1)])
        orders.change(3, names(10, 200))
        orders.seal(5)
        settled(instance)
        with pytest.raises(SqlError) as caught:
            instance.frontiers(9)
        assert caught.value.sqlstate == "53100"
        assert instance.can_resume(9)
        assert not instance.can_resume(10)
        customers.seal(3)
        settled(instance)
        assert instance.frontiers(10) == (1, 3)  # which is of other sources

        instance.resume(9)
        settled(instance)
        assert instance.can_resume(9)  # for another time, as there is no room yet
        instance._connection.pragma("max_page_count", ROOM)
        orders.change(5, names(10, 1))
        orders.seal(6)
        instance.resume(9)
        settled(instance)
        assert instance.frontiers(9) == (1, 6)
        assert not instance.can_resume(9)
        view = Get(9, BY_NAME.types)
        counts = {row[1]: 1 for row, _ in (*names(1, 2), *names(10, 200))}
        assert rows_of(instance, view, 2) == {(row[1], 1): 1 for row, _ in names(1, 2)}
        assert rows_of(instance, view, 4) == {(name, 1): 1 for name in counts}
        assert rows_of(instance, view, 5)[names(10, 1)[0][0][1], 2] == 1


def test_dependents_and_recreated_views_resume_after_a_failure(orders: Changing, tmp_path: Path) -> None:
    with closing(Instance(tmp_path)) as instance:
        above = Get(9, BY_NAME.types)
        instance.maintain(9, BY_NAME, 1, {1: orders.since(1)})
        instance.maintain(10, above, 1, {})
        settled(instance)
        fill(instance)
        orders.change(2, names(10, 200))
        orders.seal(3)
        settled(instance)
        assert instance.is_known_from(9, 1)
        instance._connection.pragma("max_page_count", ROOM)
        # As a controller does that has lost the connection: nothing is made anew.
        for identifier, relation, inputs in ((9, BY_NAME, {1: orders.since(1)}), (10, above, {})):
            instance.maintain(identifier, relation, 1, inputs)
        settled(instance)
        assert (instance.frontiers(9), instance.frontiers(10)) == ((1, 3), (1, 3))
        assert sum(rows_of(instance, Get(10, BY_NAME.types)).values()) == 203
        assert sum(rows_of(instance, Get(10, BY_NAME.types), 1).values()) == 3


def test_dependents_with_a_later_as_of_wait_for_a_failed_view(orders: Changing, tmp_path: Path) -> None:
    """The first rows of the dependent include the updates between both times."""
    with closing(Instance(tmp_path)) as instance:
        instance.maintain(9, BY_NAME, 1, {1: orders.since(1)})
        settled(instance)
        fill(instance)
        orders.change(2, names(10, 200))
        orders.seal(4)
        settled(instance)
        assert instance.can_resume(9)
        instance._connection.pragma("max_page_count", ROOM)
        instance.maintain(10, ORDERS, 3, {1: orders.since(3)})
        settled(instance)
        assert not instance.has_begun(10)

        instance.resume(9)
        settled(instance)
        assert instance.has_begun(10)
        assert rows_of(instance, Get(10, ORDERS.types), 3) == dict([*names(0, 3), *names(10, 200)])
