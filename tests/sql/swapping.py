"""A client that has tables change places over and over, while the server is killed: names say what was committed."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import psycopg

Values = Mapping[str, int]
"""The one row of each table, by the table's name without that of the history."""


class Served(Protocol):
    """A server that is killed, and started again."""

    def connect(self) -> psycopg.Connection:
        """A connection; waits for the next server while there is none."""


class Swapper:
    """Swaps tables as dbt does, rotates three of them, alters one, and drops and creates one under its name.

    Attributes:
        commits: how many transactions were acknowledged.
        unknown: how many ended with the server.
        defect: what has ended it.
    """

    def __init__(self, server: Served, number: int, chance: random.Random) -> None:
        self._server, self._number, self._chance = server, number, chance
        self._last = 4
        self._values: Values = {"live": 1, "x": 2, "y": 3, "z": 4}
        self._connection = server.connect()
        self.commits = self.unknown = 0
        self.defect: BaseException | None = None
        for name, value in self._values.items():
            self._connection.execute(f"CREATE TABLE {self._name(name)} AS SELECT {value} AS v".encode())

    def run(self, stop: threading.Event) -> None:
        """Act until told to stop."""
        try:
            while not stop.is_set():
                self._change(self._chance.choice([self._swap, self._rotate, self._recreate, self._alter]))
                time.sleep(self._chance.random() * 0.05)
        except BaseException as error:
            self.defect = error
        finally:
            self._connection.close()

    def _name(self, name: str) -> str:
        return f"{name}_{self._number}"

    def _change(self, transaction: Callable[[], tuple[list[str], Values]]) -> None:
        texts, after = transaction()
        try:
            self._connection.execute(f"DROP TABLE IF EXISTS {self._name('bak')}".encode())
            with self._connection.transaction():
                for text in texts:
                    self._connection.execute(text.encode())
            self.commits += 1
            self._values = after
            self._check(after)
        except psycopg.OperationalError as error:
            if not self._connection.closed:
                raise
            self.unknown += 1
            self._connection = self._server.connect()
            self._look(after, error)

    def _look(self, after: Values, error: psycopg.OperationalError) -> None:
        """A change that ended with the server has happened as a whole, or not at all."""
        while True:
            try:
                seen = self._seen()
                break
            except psycopg.OperationalError:
                if not self._connection.closed:
                    raise
                self._connection = self._server.connect()
        if seen not in (self._values, after):
            raise SystemExit(f"{seen} is neither {self._values} nor {after}") from error
        self._values = seen

    def _check(self, expected: Values) -> None:
        seen = self._seen()
        if seen != expected:
            raise SystemExit(f"{seen} in place of {expected}")

    def _seen(self) -> Values:
        selected = " UNION ALL ".join(f"SELECT '{name}', v FROM {self._name(name)}" for name in self._values)
        return dict(self._connection.execute(selected.encode()).fetchall())

    def _renamed(self, name: str, new_name: str) -> str:
        return f"ALTER TABLE {self._name(name)} RENAME TO {self._name(new_name)}"

    def _swap(self) -> tuple[list[str], Values]:
        self._last += 1
        create = f"CREATE TABLE {self._name('tmp')} AS SELECT {self._last} AS v"
        texts = [create, self._renamed("live", "bak"), self._renamed("tmp", "live")]
        return texts, {**self._values, "live": self._last}

    def _rotate(self) -> tuple[list[str], Values]:
        names = self._chance.sample(["x", "y", "z", "live"], self._chance.randint(2, 4))
        texts = [self._renamed(names[0], "tmp")]
        texts += [self._renamed(name, before) for before, name in itertools.pairwise(names)]
        texts.append(self._renamed("tmp", names[-1]))
        moved = dict(zip(names, [*names[1:], names[0]], strict=True))
        return texts, {**self._values, **{name: self._values[other] for name, other in moved.items()}}

    def _alter(self) -> tuple[list[str], Values]:
        name = self._name(self._chance.choice(["x", "y", "z", "live"]))
        added = f"ALTER TABLE {name} ADD COLUMN IF NOT EXISTS extra int DEFAULT {self._last}"
        return [self._chance.choice([added, f"ALTER TABLE {name} DROP COLUMN IF EXISTS extra"])], self._values

    def _recreate(self) -> tuple[list[str], Values]:
        self._last += 1
        name = self._chance.choice(["x", "y", "z"])
        texts = [f"DROP TABLE {self._name(name)}", f"CREATE TABLE {self._name(name)} (v int)"]
        texts.append(f"INSERT INTO {self._name(name)} VALUES ({self._last})")
        return texts, {**self._values, name: self._last}
