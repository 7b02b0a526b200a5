"""What is answered at once is what holds at its time, whatever is committed meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import apsw
from changing import Changing
from patience import PATIENCE_SECONDS
from relations_sample import ORDERS, aggregate, call, column, number

from derive.algebra.expression import Parameter
from derive.algebra.relation import Filter, Finishing, Get, Project, Reduce, Relation
from derive.algebra.types import Datum, Type
from derive.compute.dataflow.peek import PreparedPeek
from derive.compute.instance import Instance

VIEW = Get(9, ORDERS.types)
BY_ID = Filter(VIEW, call("=", column(ORDERS, 0), Parameter(0, Type.BIGINT)))
COUNT = Reduce(VIEW, (), (aggregate("count"),))


def orders_of(count: int) -> Changing:
    orders = Changing(ORDERS.types)
    orders.change(1, [((index, "ann", 10 * index, 0.5), 1) for index in range(1, count + 1)])
    orders.seal(3)
    return orders


def maintaining(orders: Changing) -> Instance:
    instance = Instance()
    instance.maintain(9, ORDERS, 1, {1: orders.since(1)})
    settle(instance)
    return instance


def settle(instance: Instance) -> None:
    while instance.step():
        pass


def prepared(relation: Relation) -> PreparedPeek:
    return PreparedPeek(relation, Finishing((), None, 0, tuple(range(len(relation.types)))))


def peeked(instance: Instance, query: PreparedPeek, as_of: int, arguments: Sequence[Datum]) -> list[tuple[Datum, ...]]:
    return [row for batch in instance.peek(query, as_of=as_of, arguments=arguments) for row in batch]


def test_fast_path_returns_the_rows_of_a_peek() -> None:
    orders = orders_of(5)
    instance = maintaining(orders)
    query = prepared(BY_ID)
    for identifier in (2, 5, 6):
        assert instance.look_up(query, 2, (identifier,)) == peeked(instance, query, 2, (identifier,))
    assert instance.look_up(query, 2, (2,)) == [(2, "ann", 20, 0.5)]
    orders.change(3, [((2, "ann", 20, 0.5), -1), ((6, "ben", 1, 0.1), 1)])
    orders.seal(8)
    settle(instance)
    assert instance.look_up(query, 7, (2,)) == []
    assert instance.look_up(query, 3, (6,)) == [(6, "ben", 1, 0.1)]
    assert instance.look_up(query, 7, (6,), most_bytes=1000) == [(6, "ben", 1, 0.1)]
    instance.close()


def test_fast_path_declines_queries_of_several_selects() -> None:
    orders = orders_of(8000)
    instance = maintaining(orders)
    query = prepared(BY_ID)
    assert instance.look_up(query, 2, (1,)) == [(1, "ann", 10, 0.5)]
    assert instance.look_up(query, 3, (1,)) is None  # not known yet
    assert instance.look_up(query, 0, (1,)) is None  # not known any more
    assert instance.look_up(query, 2, (1,), most_bytes=10) is None
    assert instance.look_up(prepared(VIEW), 2) is None  # too many rows
    product = Filter(VIEW, call("=", call("%", column(ORDERS, 0), number(7)), Parameter(0, Type.BIGINT)))
    every = prepared(Reduce(product, (), (aggregate("count"),)))
    assert instance.look_up(every, 2, (1,)) is None  # too many steps
    assert peeked(instance, every, 2, (1,)) == [(1143,)]
    orders.change(4, [((1, "ann", 10, 0.5), -1)])
    orders.seal(6)
    settle(instance)
    assert instance.look_up(query, 5, (1,)) == []
    assert instance.look_up(query, 2, (1,)) is None  # it has changed since
    assert peeked(instance, query, 2, (1,)) == [(1, "ann", 10, 0.5)]
    broken = prepared(Project(BY_ID, (call("/", number(1), call("-", column(ORDERS, 0), number(2))),)))
    assert instance.look_up(broken, 5, (3,)) == [(1,)]
    assert instance.look_up(broken, 5, (2,)) is None  # an error
    instance.drop(9)
    settle(instance)
    assert instance.look_up(query, 5, (1,)) is None
    instance.close()


def test_reads_let_the_write_ahead_log_restart(tmp_path: Path) -> None:
    """Queries leave a transaction of SQLite open, but not for longer than up to the next step: the log begins anew."""
    orders = orders_of(5)
    instance = Instance(tmp_path)
    instance.maintain(9, ORDERS, 1, {1: orders.since(1)})
    settle(instance)
    query = prepared(COUNT)
    assert instance.look_up(query, 2) == [(5,)]
    orders.change(3, [((1, "ann", 10, 0.5), -1)])
    orders.seal(5)
    settle(instance)
    with closing(apsw.Connection(str(tmp_path / "compute.db"))) as other:
        in_log, in_database = other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    assert in_log == in_database
    assert instance.look_up(query, 4) == [(4,)]
    instance.close()


def test_step_limit_counts_each_statement_separately() -> None:
    """SQLite counts the steps of a statement from when it was first carried out."""
    instance = maintaining(orders_of(50))
    query = prepared(Filter(VIEW, call("=", column(ORDERS, 2), Parameter(0, Type.BIGINT))))
    assert all(instance.look_up(query, 2, (20,)) == [(2, "ann", 20, 0.5)] for _ in range(2000))
    instance.close()


def test_fast_path_returns_no_row_of_a_later_commit() -> None:
    """While another thread commits, one row at each time: as many rows are there as times have passed."""
    orders = orders_of(1)
    instance = maintaining(orders)
    query = prepared(COUNT)
    is_over = threading.Event()

    def change() -> None:
        for time in range(3, 100_000):
            if is_over.is_set():
                return
            orders.change(time, [((time, "ann", 1, 0.1), 1)])
            orders.seal(time + 1)
            settle(instance)

    writer = threading.Thread(target=change)
    writer.start()
    counts: set[int] = set()
    try:
        while len(counts) < 200:
            assert writer.is_alive()
            time = instance.frontiers(9)[1] - 1
            rows = instance.look_up(query, time)
            if rows is not None:
                assert rows == [(max(1, time - 1),)]
                counts.add(time)
    finally:
        is_over.set()
        writer.join(PATIENCE_SECONDS)
    instance.close()
