"""Random rows of an auction house, and random changes of them, in the shapes of Nexmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random

from trade_rows import Row, TableChange

AUCTION_COLUMNS: Mapping[str, str] = {
    "people": "no integer, name text, city text, state text, made timestamp",
    "auctions": "no integer, item text, reserve integer, made timestamp, expires timestamp, seller integer,"
    " category integer",
    "bids": "auction integer, bidder integer, price integer, channel text, url text, made timestamp, extra text",
    "channels": "name text, owner text",
}
"""Columns of each table, as CREATE TABLE declares them."""

_STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
_CHANNELS = ["apple", "google", "facebook", "baidu", *(f"channel-{number}" for number in range(20))]
_BEGIN = datetime.fromisoformat("2024-05-01 05:30:00")


@dataclass(slots=True)
class Auctions:
    """The rows of all tables: 46 bids and 3 auctions for each person.

    Attributes:
        people: number of people.
        random: source of random numbers.
        tables: rows of each table.
    """

    people: int
    random: Random = field(default_factory=lambda: Random(1))
    tables: dict[str, list[Row]] = field(default_factory=dict)
    _next_auction: int = 0

    def __post_init__(self) -> None:
        """Create the first rows."""
        self.tables = {"people": [self._person(number) for number in range(self.people)]}
        self.tables["auctions"] = [self._auction() for _ in range(3 * self.people)]
        self.tables["bids"] = [self._bid() for _ in range(46 * self.people)]
        self.tables["channels"] = [(name, f"owner of {name}") for name in _CHANNELS]

    def _person(self, number: int) -> Row:
        random = self.random
        return number, f"person {number}", f"city {random.randrange(9)}", random.choice(_STATES), self._time()

    def _time(self) -> datetime:
        return _BEGIN + timedelta(seconds=int(48 * 3600 * self.random.random() ** 2))

    def _auction(self) -> Row:
        random = self.random
        self._next_auction += 1
        begin = self._time()
        return (
            *(self._next_auction, f"item {random.randrange(99)}", random.randrange(1000), begin),
            *(begin + timedelta(hours=random.randrange(1, 30)), random.randrange(self.people), random.randrange(8, 14)),
        )

    def _bid(self) -> Row:
        random = self.random
        auction = self._next_auction - int(random.random() ** 3 * min(self._next_auction, 3 * self.people))
        channel = random.choice(_CHANNELS)
        return (
            *(auction, random.randrange(self.people), int(10 ** (random.random() * 6) * 100), channel),
            *(f"https://house.example/a{random.randrange(9)}/b/c?channel_id={random.randrange(99)}", self._time()),
            "".join(random.choices("abc ", k=12)),
        )

    def change(self, count: int) -> list[TableChange]:
        """Change the rows: new auctions and bids, removed bids, and a replaced person.

        Args:
            count: number of new bids, and of removed bids.

        Returns:
            For each changed table, the removed and the added rows.
        """
        random, tables = self.random, self.tables
        person = random.choice(tables["people"])
        changes: list[TableChange] = [
            ("people", [person], [self._person(int(str(person[0])))]),
            ("auctions", [], [self._auction() for _ in range(1 + count // 15)]),
            (
                "bids",
                random.sample(tables["bids"], min(count, len(tables["bids"]))),
                [self._bid() for _ in range(count)],
            ),
        ]
        for name, removed, added in changes:
            rest: Sequence[Row] = removed
            out = set(rest)
            tables[name] = [row for row in tables[name] if row not in out] + list(added)
        return changes
