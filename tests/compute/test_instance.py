"""Views are kept up to date with collections."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from changing import Changing
from relations_sample import CUSTOMERS, ORDERS, aggregate, call, column, number, shown

from derive.algebra.expression import Column, Parameter
from derive.algebra.relation import Filter, Finishing, Get, Join, Project, Reduce, Relation
from derive.algebra.types import Row, Type
from derive.compute.dataflow.database import NAME
from derive.compute.dataflow.peek import PreparedPeek
from derive.compute.instance import Instance
from derive.errors import FlowError, FrontierError, SqlError

JOINED = Join((ORDERS, CUSTOMERS), (call("=", column(ORDERS, 1), Column(4, Type.TEXT)),))
TOTALS = Reduce(JOINED, (Column(5, Type.TEXT),), (aggregate("count"), aggregate("max", Column(2, Type.BIGINT))))


@pytest.fixture
def orders() -> Changing:
    """Orders that come and go."""
    orders = Changing(ORDERS.types)
    orders.change(1, [((1, "ann", 10, 0.1), 1), ((2, "ben", 20, 0.2), 1)])
    orders.change(3, [((3, "ann", 30, 0.3), 1), ((1, "ann", 10, 0.1), -1)])
    orders.seal(5)
    return orders


@pytest.fixture
def customers() -> Changing:
    """Customers that come and go."""
    customers = Changing(CUSTOMERS.types)
    customers.change(1, [(("ann", "Rome"), 1)])
    customers.change(4, [(("ben", "Oslo"), 1), (("ben", "Oslo"), 1)])
    customers.seal(6)
    return customers


def settled(instance: Instance) -> None:
    """Work until there is none."""
    while instance.step():
        pass


def rows_of(instance: Instance, relation: Relation, as_of: int | None = None) -> Counter[Row]:
    """What a query gives."""
    return Counter(row for batch in instance.peek(relation, as_of=as_of) for row in batch)


def test_view_equals_its_query_at_each_time(orders: Changing, customers: Changing) -> None:
    """A view has the rows of each time, and tells what changed."""
    instance = Instance()
    instance.maintain(9, TOTALS, 2, {1: orders.since(2), 2: customers.since(2)})
    settled(instance)
    view = Get(9, TOTALS.types)
    assert instance.frontiers(9) == (2, 5)
    assert rows_of(instance, view, 2) == {("Rome", 1, 10): 1}
    assert rows_of(instance, view, 3) == {("Rome", 1, 30): 1}
    assert rows_of(instance, view) == {("Rome", 1, 30): 1, ("Oslo", 2, 20): 1}
    assert instance.updates(9, 3, 5).rows == [
        (3, ("Rome", 1, 10), -1),
        (3, ("Rome", 1, 30), 1),
        (4, ("Oslo", 2, 20), 1),
    ]
    with pytest.raises(FrontierError):
        rows_of(instance, view, 5)
    orders.seal(9)
    customers.change(7, [(("ann", "Rome"), -1)])
    customers.seal(10)
    settled(instance)
    assert instance.frontiers(9) == (2, 9)
    assert rows_of(instance, view) == {("Oslo", 2, 20): 1}
    instance.allow_compaction(9, 4)
    settled(instance)
    with pytest.raises(FrontierError):
        rows_of(instance, view, 3)
    assert rows_of(instance, view, 4) == {("Rome", 1, 30): 1, ("Oslo", 2, 20): 1}
    instance.close()


def test_views_over_views_follow_updates(orders: Changing, customers: Changing) -> None:
    """A view may be over another, of the same sources or of fewer."""
    instance = Instance()
    amounts = Reduce(ORDERS, (column(ORDERS, 1),), (aggregate("count"),))
    instance.maintain(9, amounts, 2, {1: orders.since(2)})
    large = Filter(Get(9, amounts.types), call(">=", Column(1, Type.BIGINT), number(1)))
    instance.maintain(10, large, 2, {})
    cities = Join((Get(9, amounts.types), CUSTOMERS), (call("=", Column(0, Type.TEXT), Column(2, Type.TEXT)),))
    instance.maintain(11, cities, 2, {2: customers.since(2)})
    settled(instance)
    assert rows_of(instance, Get(10, large.types)) == {("ann", 1): 1, ("ben", 1): 1}
    assert instance.frontiers(11) == (2, 5)
    assert rows_of(instance, Get(11, cities.types)) == {("ann", 1, "ann", "Rome"): 1, ("ben", 1, "ben", "Oslo"): 2}
    orders.change(8, [((3, "ann", 30, 0.3), -1)])
    orders.seal(9)
    settled(instance)
    assert instance.frontiers(9) == (2, 9)
    assert instance.frontiers(11) == (2, 6)
    assert rows_of(instance, Get(9, amounts.types)) == {("ben", 1): 1}
    customers.seal(20)
    settled(instance)
    assert rows_of(instance, Get(11, cities.types)) == {("ben", 1, "ben", "Oslo"): 2}
    instance.drop(9)
    settled(instance)
    with pytest.raises(FrontierError):
        instance.frontiers(9)
    orders.seal(30)
    customers.seal(30)
    settled(instance)
    assert instance.frontiers(10) == (2, 30)
    assert instance.frontiers(11) == (2, 9)
    instance.close()


def test_row_errors_appear_and_disappear(orders: Changing) -> None:
    """A view fails while a row has no value, and only then."""
    instance = Instance()
    shares = Project(ORDERS, (call("/", number(100), call("-", column(ORDERS, 2), number(20))),))
    instance.maintain(9, shares, 2, {1: orders.since(2)})
    view = Get(9, shares.types)
    settled(instance)
    with pytest.raises(SqlError) as caught:
        rows_of(instance, view)
    assert caught.value.sqlstate == "22012"
    orders.change(6, [((2, "ben", 20, 0.2), -1)])
    orders.seal(8)
    settled(instance)
    assert rows_of(instance, view) == {(10,): 1}
    with pytest.raises(SqlError):
        rows_of(instance, view, 4)
    division = ("22012", "division by zero")
    assert instance.updates(9, 3, 5).errors == [(3, *division, 1)]
    assert instance.updates(9, 5, 6).errors == [(5, *division, 1)]  # what is there at the first time comes then
    updates = instance.updates(9, 3, 8)
    assert updates.rows == [(3, (-10,), -1), (3, (10,), 1)]
    assert updates.errors == [(3, *division, 1), (6, *division, -1)]
    instance.close()


def test_instance_resumes_after_a_restart(tmp_path: Path, orders: Changing, customers: Changing) -> None:
    """An instance goes on where it was, unless what it is asked for is another relation."""
    instance = Instance(tmp_path)
    instance.maintain(9, TOTALS, 2, {1: orders.since(2), 2: customers.since(2)})
    instance.index(9, [Column(0, Type.BIGINT)])
    settled(instance)
    instance.close()
    orders.change(7, [((4, "ann", 70, 0.3), 1)])
    orders.seal(9)
    customers.seal(9)
    instance = Instance(tmp_path)
    assert instance.ids() == (9,)
    assert instance.frontiers(9) == (2, 5)
    instance.maintain(9, TOTALS, 4, {1: orders.since(4), 2: customers.since(4)})
    settled(instance)
    view = Get(9, TOTALS.types)
    assert rows_of(instance, view, 3) == {("Rome", 1, 30): 1}
    assert rows_of(instance, view) == {("Rome", 2, 70): 1, ("Oslo", 2, 20): 1}
    instance.maintain(9, JOINED, 8, {1: orders.since(8), 2: customers.since(8)})
    settled(instance)
    assert instance.frontiers(9) == (8, 9)
    assert len(rows_of(instance, Get(9, JOINED.types))) == 3
    instance.close()


def test_instance_retries_after_a_full_disk(tmp_path: Path, orders: Changing) -> None:
    """The disk is full for a while."""
    with closing(Instance(tmp_path)) as instance:
        view = Get(7, ORDERS.types)
        pages = instance._connection.execute("PRAGMA page_count").get
        instance._connection.execute(f"PRAGMA max_page_count = {pages}")
        instance.maintain(7, ORDERS, 1, {ORDERS.id: orders.since(1)}, definition=("orders", "x" * 10_000))
        instance.index(7, (Column(0, Type.BIGINT),))
        with pytest.raises(FlowError):
            settled(instance)
        instance._connection.execute("PRAGMA max_page_count = 1000000")
        settled(instance)
        assert instance.frontiers(7) == (1, 5)
        assert sum(rows_of(instance, view).values()) == 2
    with closing(Instance(tmp_path)) as instance:
        assert instance.definitions() == {7: ("orders", "x" * 10_000)}


def test_unstarted_dataflows_leave_nothing(tmp_path: Path) -> None:
    """A view that waits for another one when an instance ends is wanted anew, or not at all."""
    instance = Instance(tmp_path)
    instance.maintain(9, Get(8, ORDERS.types), 2, {}, definition="over a view that is not there yet")
    settled(instance)
    instance.close()
    Instance(tmp_path).close()
    with closing(apsw.Connection(str(tmp_path / NAME))) as database:
        assert database.execute("SELECT id FROM definitions").fetchall() == []


def test_step_returns_whether_more_work_remains(orders: Changing, customers: Changing) -> None:
    """One step handles all complete times, unless a dataflow reads another one that advances after it."""
    instance = Instance()
    instance.maintain(9, ORDERS, 4, {1: orders.since(4)})
    settled(instance)
    orders.change(6, [((4, "ann", 30, 0.3), 1)])
    orders.seal(8)
    assert not instance.step()
    assert instance.frontiers(9) == (4, 8)

    both = Join((Get(9, ORDERS.types), CUSTOMERS))  # of other sources: a group of its own
    instance.maintain(8, both, 5, {2: customers.since(5)})
    settled(instance)
    orders.seal(10)
    customers.seal(10)
    settled(instance)
    assert (instance.frontiers(9)[1], instance.frontiers(8)[1]) == (10, 10)
    instance.close()


def test_prepared_peeks_take_arguments(orders: Changing) -> None:
    """A query is prepared once, and asked with other arguments."""
    instance = Instance()
    instance.maintain(1, ORDERS, 4, {1: orders.since(4)})
    instance.index(1, [Column(0, Type.BIGINT)])
    settled(instance)
    one = Filter(ORDERS, call("=", column(ORDERS, 0), Parameter(0, Type.BIGINT)))
    peek = PreparedPeek(one, shown(one))
    assert list(instance.peek(peek, arguments=(2,))) == [[(2, "ben", 20, 0.2)]]
    assert list(instance.peek(peek, arguments=(3,))) == [[(3, "ann", 30, 0.3)]]
    assert list(instance.peek(peek, arguments=(5,))) == []
    instance.close()


def test_reads_run_beside_steps() -> None:
    """Readers of a changing view see it at one time, and do not wait for the step."""
    accounts = Changing((Type.BIGINT, Type.BIGINT))
    accounts.change(1, [((number_, 10), 1) for number_ in range(20)])
    accounts.seal(2)
    balances = Get(1, accounts.types)
    total = Reduce(balances, (), (aggregate("sum", Column(1, Type.BIGINT)), aggregate("count")))
    instance = Instance()
    instance.maintain(1, balances, 1, {1: accounts.since(1)})
    settled(instance)
    seen: list[Counter[Row]] = []
    failures: list[BaseException] = []
    is_over = threading.Event()

    def read() -> None:
        try:
            while not is_over.is_set():
                seen.append(rows_of(instance, total))
        except BaseException as exc:
            failures.append(exc)

    reader = threading.Thread(target=read)
    reader.start()
    held = [10] * 20
    for time in range(2, 200):
        giver, taker = time % 20, (time * 7 + 3) % 20
        if giver != taker:
            changes = [((giver, held[giver]), -1), ((taker, held[taker]), -1)]
            held[giver] -= 1
            held[taker] += 1
            accounts.change(time, [*changes, ((giver, held[giver]), 1), ((taker, held[taker]), 1)])
        accounts.seal(time + 1)
        settled(instance)
    is_over.set()
    reader.join()
    assert not failures
    assert seen
    assert all(rows == rows_of(instance, total) for rows in seen)
    instance.close()


def test_prepared_peek_sees_later_updates(orders: Changing) -> None:
    """A query that is asked again sees what was committed since, copies and errors as well, and the past as it was."""
    inverse = Project(ORDERS, (call("/", number(60), column(ORDERS, 2)),))
    instance = Instance()
    instance.maintain(9, inverse, 2, {1: orders.since(2)})
    settled(instance)
    prepared = instance.prepare(Get(9, inverse.types), Finishing((), None, 0, (0,)))

    def rows(as_of: int | None = None) -> list[Row]:
        return sorted(row for batch in instance.peek(prepared, as_of=as_of) for row in batch)

    assert rows() == rows(4) == [(2,), (3,)]
    assert rows(2) == [(3,), (6,)]
    orders.change(6, [((4, "ann", 30, 0.3), 1)])
    orders.seal(8)
    settled(instance)
    assert rows() == [(2,), (2,), (3,)]
    assert rows(5) == rows(4) == [(2,), (3,)]
    orders.change(9, [((5, "ann", 0, 0.3), 1)])
    orders.seal(10)
    settled(instance)
    with pytest.raises(SqlError, match="division by zero"):
        rows()
    assert rows(8) == [(2,), (2,), (3,)]
    instance.drop(9)
    settled(instance)
    with pytest.raises(FrontierError):
        rows()
    instance.close()


@pytest.mark.parametrize("arrives", ["with the first rows", "later"])
def test_internal_errors_stop_a_dataflow(orders: Changing, arrives: str) -> None:
    """Its updates were taken already: to go on without them would lose rows, and nobody would be told."""
    instance = Instance()
    odd: Any = object()  # no datum: SQLite does not take it
    if arrives == "with the first rows":
        orders.updates.append((3, (9, odd, 1, 0.5), 1))
    instance.maintain(9, Project(ORDERS, (column(ORDERS, 1),)), 4, {1: orders.since(4)})
    settled(instance)
    if arrives == "later":
        assert instance.frontiers(9)[1] == 5
        orders.change(6, [((9, odd, 1, 0.5), 1)])
        orders.seal(8)
        settled(instance)
        orders.change(9, [((10, "bob", 1, 0.5), 1)])
        orders.seal(12)
        settled(instance)
    failure = instance.failure(9)
    assert isinstance(failure, SqlError)
    assert failure.sqlstate == "XX000"
    instance.close()
