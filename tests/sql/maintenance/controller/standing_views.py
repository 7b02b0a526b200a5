"""Views that last through a whole torture: what clients see of them is always what they are views of."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
from torture_sql import Server, Subscriber

SLOTS, PARTS = 24, 4

_DEFINITIONS = (
    "CREATE TABLE slots (slot bigint, value bigint)",
    f"INSERT INTO slots SELECT g, 0 FROM generate_series(0, {SLOTS - 1}) g",
    f"CREATE VIEW slots_parts AS SELECT slot % {PARTS} AS part, value FROM slots",
    "CREATE MATERIALIZED VIEW parts AS SELECT part, count(*), sum(value)::bigint FROM slots_parts GROUP BY part",
    "CREATE INDEX parts_part ON parts (part)",
    "CREATE VIEW odd AS SELECT slot, value FROM slots WHERE value % 2 = 1",
    "CREATE INDEX odd_slot ON odd (slot)",
    f"CREATE MATERIALIZED VIEW odd_parts AS SELECT slot % {PARTS} AS part, count(*) AS n FROM odd GROUP BY 1",
)

Rows = frozenset[tuple[Any, ...]]


def odd(slots: Rows) -> Rows:
    """What the view `odd` is of the rows of the table."""
    return frozenset((slot, value) for slot, value in slots if value % 2 == 1)


def parts(slots: Rows) -> Rows:
    """What `parts` is."""
    numbers, totals = Counter[int](), Counter[int]()
    for slot, value in slots:
        numbers[slot % PARTS] += 1
        totals[slot % PARTS] += value
    return frozenset((part, numbers[part], totals[part]) for part in numbers)


def odd_parts(slots: Rows) -> Rows:
    """What `odd_parts` is."""
    return frozenset(Counter(slot % PARTS for slot, _ in odd(slots)).items())


VIEWS: dict[str, Callable[[Rows], Rows]] = {"odd": odd, "parts": parts, "odd_parts": odd_parts}


def create(server: Server) -> None:
    """Create all of it."""
    with server.connect() as connection:
        for definition in _DEFINITIONS:
            connection.execute(definition)


def read(connection: psycopg.Connection, query: str, *arguments: object) -> Rows:
    """The rows of a query, of which none is there twice."""
    rows = connection.execute(query.encode(), arguments or None).fetchall()
    if len(set(rows)) != len(rows):
        raise SystemExit(f"{query} has a row twice: {sorted(rows)}")
    return frozenset(rows)


def expect(what: str, seen: Rows, expected: Rows) -> None:
    """Check what was seen.

    Raises:
        SystemExit: it is not what is so.
    """
    if seen != expected:
        missing, strange = sorted(expected - seen), sorted(seen - expected)
        raise SystemExit(f"{what} lacks {missing} and has {strange} too many")


def check(connection: psycopg.Connection, *, at: int | None = None) -> None:
    """Check all views at one time: the latest one, or another one."""
    as_of = "" if at is None else f" AS OF {at}"
    with connection.transaction():
        seen = {name: read(connection, f"SELECT * FROM {name}{as_of}") for name in ("slots", *VIEWS)}
    for name, view in VIEWS.items():
        expect(f"{name}{as_of}", seen[name], view(seen["slots"]))


class StandingClient:
    """A client that does something again and again, and connects again when the server was killed.

    Attributes:
        defect: what has ended it.
        count: how often it has done it.
        slow: when that began and ended, where it took more than a second.
    """

    def __init__(self, server: Server, chance: random.Random, pause: float) -> None:
        self._server, self.chance, self._pause = server, chance, pause
        self.defect: BaseException | None = None
        self.count = 0
        self.slow: list[tuple[float, float]] = []

    def act(self, connection: psycopg.Connection) -> None:
        """Do it."""
        raise NotImplementedError

    def run(self, stop: threading.Event) -> None:
        """Act until told to stop."""
        try:
            while not stop.is_set():
                life = self._server.lives
                with self._server.connect() as connection:
                    try:
                        while not stop.wait(self.chance.random() * self._pause):
                            begin = time.monotonic()
                            self.act(connection)
                            self.count += 1
                            if (end := time.monotonic()) - begin > 1:
                                self.slow.append((begin, end))
                    except psycopg.OperationalError as error:
                        if not connection.closed:
                            raise
                        with self._server.connect():
                            pass
                        if self._server.lives == life:
                            raise SystemExit("the server has hung up, and was not killed") from error
        except BaseException as error:
            self.defect = error


class Writer(StandingClient):
    """Changes the table."""

    _STATEMENTS = (
        "UPDATE slots SET value = value + 1 WHERE slot = {0}",
        "DELETE FROM slots WHERE slot = {0}",
        "INSERT INTO slots SELECT {0}, 1 WHERE NOT EXISTS (SELECT FROM slots WHERE slot = {0})",
    )

    def act(self, connection: psycopg.Connection) -> None:
        (statement,) = self.chance.choices(self._STATEMENTS, (2, 1, 1))
        connection.execute(statement.format(self.chance.randrange(SLOTS)).encode())


class Looker(StandingClient):
    """Compares what views have with what they are views of, all of it or by a look-up."""

    def act(self, connection: psycopg.Connection) -> None:
        if self.chance.random() < 0.3:
            check(connection)
            return
        slot, part = self.chance.randrange(SLOTS), self.chance.randrange(PARTS)
        with connection.transaction():
            slots = read(connection, "SELECT * FROM slots")
            seen = read(connection, "SELECT * FROM odd WHERE slot = %s", slot)
            totals = read(connection, "SELECT * FROM parts WHERE part = %s", part)
        expect(f"odd at {slot}", seen, frozenset(row for row in odd(slots) if row[0] == slot))
        expect(f"parts at {part}", totals, frozenset(row for row in parts(slots) if row[0] == part))


class Definer(StandingClient):
    """Has instances maintain more, and less again."""

    def act(self, connection: psycopg.Connection) -> None:
        name = f"extra_{self.chance.randrange(2)}"
        present = {str(row[0]) for row in connection.execute("SHOW OBJECTS").fetchall()}
        if name in present:
            connection.execute(f"DROP MATERIALIZED VIEW {name} CASCADE".encode())
            return
        connection.execute(
            f"CREATE MATERIALIZED VIEW {name} AS SELECT value, count(*) AS n FROM odd GROUP BY 1".encode()
        )
        connection.execute(f"CREATE INDEX {name}_value ON {name} (value)".encode())
        with connection.transaction():
            slots, seen = read(connection, "SELECT * FROM slots"), read(connection, f"SELECT * FROM {name}")
        expect(name, seen, frozenset(Counter(value for _, value in odd(slots)).items()))


class ViewSubscriber(Subscriber):
    """Follows a view, in one subscription after the other, and checks times of the past.

    Attributes:
        name: of the view.
        checked: how many.
    """

    def __init__(self, server: Server, name: str, chance: random.Random) -> None:
        super().__init__(server, f"SELECT * FROM {name}")
        self.name, self._chance = name, chance
        self.checked = 0

    def rows(self) -> Rows:
        """What was told last."""
        return frozenset(self._cells)

    def is_enough(self) -> bool:
        return self._chance.random() < 0.1

    def record(self, clock: int) -> None:
        if self._chance.random() < 0.8:
            return
        with self._server.connect() as connection:
            try:
                slots = read(connection, f"SELECT * FROM slots AS OF {clock}")
            except psycopg.errors.InvalidParameterValue:
                return  # it is forgotten by now
            except psycopg.OperationalError:
                if connection.closed:
                    return
                raise
            expect(f"a subscription to {self.name} at {clock}", self.rows(), VIEWS[self.name](slots))
            self.checked += 1
