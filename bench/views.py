"""The bench of views: updates per second of a maintained join with groups, and the time of a lookup.

200,000 orders are joined with 20,000 customers; a view has count, sum and maximum for each of 200 cities. Then orders
are replaced, in ticks of one, a hundred and ten thousand. Measured is the processor time of the best round, so that
other load does not count. The exit code is 1 if a limit is missed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from derive.algebra.expression import Call, Column, Parameter
from derive.algebra.relation import Aggregate, Filter, Finishing, Get, Join, Reduce
from derive.algebra.types import Row, Type
from derive.compute.instance import Instance
from derive.functions.registry import resolve_aggregate, resolve_operator

ORDERS, CUSTOMERS, CITIES = 200_000, 20_000, 200
TICKS = ((1, 300), (100, 50), (10_000, 3))
"""Numbers of orders replaced in a tick, and of ticks in a round."""
ROUNDS = 3
LOOKUPS = 5_000

LEAST_UPDATES = 60_000
"""Minimum updates per second in the largest ticks."""
MOST_LOOKUP_SECONDS = 50e-6
"""Maximum median seconds of a lookup of one order by its number."""

_BIGINT = Type.BIGINT
_ORDERS = Get(1, (_BIGINT, _BIGINT, _BIGINT))
"""Number, customer, amount."""
_CUSTOMERS = Get(2, (_BIGINT, Type.TEXT))
"""Number, city."""
_VIEW = 3


@dataclass(slots=True)
class Stream:
    """A collection that the bench changes."""

    types: tuple[Type, ...]
    rows: list[Row]
    since: int = 1
    frontier: int = 2
    has_more: bool = False
    updates: list[tuple[int, Row, int]] = field(default_factory=list)

    def snapshot(self, as_of: int) -> Iterator[list[Row]]:
        """Yield the rows at `since`, the only time that is read."""
        assert as_of == self.since
        yield self.rows

    def poll(self) -> tuple[int, list[tuple[int, Row, int]]]:
        """Return the frontier and the pending updates."""
        updates, self.updates = self.updates, []
        return self.frontier, updates

    def close(self) -> None:
        """Do nothing: there are no resources to release."""


def _call(symbol: str, left: Column, right: Column | Parameter) -> Call:
    return Call(resolve_operator(symbol, [left.type, right.type]).function, (left, right), Type.BOOLEAN)


def _aggregate(symbol: str, *arguments: Column) -> Aggregate:
    resolution = resolve_aggregate(symbol, [argument.type for argument in arguments])
    return Aggregate(resolution.function, arguments, resolution.result_type)


def view() -> Reduce:
    """Return a view with count, sum and maximum of the amounts per city."""
    amount = Column(2, _BIGINT)
    joined = Join((_ORDERS, _CUSTOMERS), (_call("=", Column(1, _BIGINT), Column(3, _BIGINT)),))
    return Reduce(
        joined, (Column(4, Type.TEXT),), (_aggregate("count"), _aggregate("sum", amount), _aggregate("max", amount))
    )


class Bench:
    """An instance with a view, and its input."""

    def __init__(self) -> None:
        self.random = Random(1)
        self.orders: list[Row] = [self.order(number) for number in range(ORDERS)]
        customers: list[Row] = [(number, f"city {number % CITIES}") for number in range(CUSTOMERS)]
        self.streams = (Stream(_ORDERS.types, list(self.orders)), Stream(_CUSTOMERS.types, customers))
        self.instance = Instance()

    def order(self, number: int) -> Row:
        """Return a random order."""
        return number, self.random.randrange(CUSTOMERS), self.random.randrange(1000)

    def settle(self) -> None:
        """Work until there is none left."""
        while self.instance.step():
            pass

    def hydrate(self) -> float:
        """Begin to maintain the view; return the processor seconds."""
        begin = time.process_time()
        self.instance.maintain(_VIEW, view(), 1, {1: self.streams[0], 2: self.streams[1]})
        self.settle()
        return time.process_time() - begin

    def replace(self, count: int, ticks: int) -> float:
        """Replace `count` orders in each tick; return the processor seconds."""
        first = self.streams[0].frontier
        changes = [self._changes(first + tick, count) for tick in range(ticks)]
        begin = time.process_time()
        for tick, updates in enumerate(changes):
            self.streams[0].updates = updates
            for stream in self.streams:
                stream.frontier = first + tick + 1
            self.settle()
        return time.process_time() - begin

    def _changes(self, clock: int, count: int) -> list[tuple[int, Row, int]]:
        updates: list[tuple[int, Row, int]] = []
        for number in self.random.sample(range(ORDERS), count):
            before, self.orders[number] = self.orders[number], self.order(number)
            updates += [(clock, before, -1), (clock, self.orders[number], 1)]
        return updates

    def lookups(self) -> list[float]:
        """Return the sorted seconds of lookups of orders by their number."""
        now = self.streams[0].frontier - 1
        orders = Stream(_ORDERS.types, self.orders, now, now + 1)
        self.instance.maintain(1, _ORDERS, now, {1: orders})
        self.instance.index(1, [Column(0, _BIGINT)])
        self.settle()
        one = Filter(_ORDERS, _call("=", Column(0, _BIGINT), Parameter(0, _BIGINT)))
        peek = self.instance.prepare(one, Finishing((), None, 0, (0, 1, 2)))
        seconds = []
        for _ in range(LOOKUPS):
            number = self.random.randrange(ORDERS)
            begin = time.perf_counter()
            rows = list(self.instance.peek(peek, arguments=(number,)))
            seconds.append(time.perf_counter() - begin)
            assert rows == [[self.orders[number]]]
        return sorted(seconds)


def main(arguments: Sequence[str] = ()) -> int:
    """Run the measurements; return exit code 1 if a limit is missed."""
    assert not arguments, "there is nothing to choose"
    bench = Bench()
    print(f"\nA view of {ORDERS:,} orders joined with {CUSTOMERS:,} customers in {CITIES} groups: count, sum, max")
    print(f"hydrated in {bench.hydrate():.2f} s")
    missed = []
    updates = 0.0
    for count, ticks in TICKS:
        seconds = min(bench.replace(count, ticks) for _ in range(ROUNDS)) / ticks
        updates = 2 * count / seconds
        print(f"{count:>7,} replaced in a tick: {seconds * 1000:>9.2f} ms a tick, {updates:>9,.0f} updates/s")
    if updates < LEAST_UPDATES:
        missed.append(f"{updates:,.0f} updates/s are fewer than {LEAST_UPDATES:,}")
    seconds_of_lookups = bench.lookups()
    middle, slow = (seconds_of_lookups[int(LOOKUPS * share)] for share in (0.5, 0.99))
    print(f"look-up of one order by its number: p50 {middle * 1e6:.0f} µs, p99 {slow * 1e6:.0f} µs")
    if middle > MOST_LOOKUP_SECONDS:
        missed.append(f"a look-up takes more than {MOST_LOOKUP_SECONDS * 1e6:.0f} µs")
    bench.instance.close()
    for miss in missed:
        print(f"missed: {miss}", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
