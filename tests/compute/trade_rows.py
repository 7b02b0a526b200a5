"""Random rows of the trading company, and random changes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import TypeAlias

Value: TypeAlias = int | str | Decimal | date | datetime
Row: TypeAlias = tuple[Value, ...]
TableChange: TypeAlias = tuple[str, Sequence[Row], Sequence[Row]]
"""Name of a table, removed and added rows."""

COLUMNS: Mapping[str, str] = {
    "regions": "no integer, name text",
    "countries": "no integer, name text, region_no integer",
    "makers": "no integer, name text, address text, country_no integer, phone text, balance numeric(12,2), note text",
    "items": "no integer, name text, house text, brand text, kind text, size integer, container text,"
    " price numeric(12,2)",
    "offers": "item_no integer, maker_no integer, available integer, cost numeric(12,2)",
    "customers": "no integer, name text, address text, country_no integer, phone text, balance numeric(12,2),"
    " segment text, note text",
    "orders": "no integer, customer_no integer, state text, total numeric(12,2), placed date, priority text,"
    " urgency integer, note text",
    "lines": "order_no integer, item_no integer, maker_no integer, line_no integer, quantity numeric(12,2),"
    " amount numeric(12,2), discount numeric(12,2), tax numeric(12,2), returned text, state text, shipped date,"
    " promised date, received date, handling text, mode text",
}
"""Columns of each table, as CREATE TABLE declares them."""

_REGIONS = ["AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST"]
_COUNTRIES = [
    "ALGERIA 0",
    "ARGENTINA 1",
    "BRAZIL 1",
    "CANADA 1",
    "EGYPT 4",
    "ETHIOPIA 0",
    "FRANCE 3",
    "GERMANY 3",
    "INDIA 2",
    "INDONESIA 2",
    "IRAN 4",
    "IRAQ 4",
    "JAPAN 2",
    "JORDAN 4",
    "KENYA 0",
    "MOROCCO 0",
    "MOZAMBIQUE 0",
    "PERU 1",
    "CHINA 2",
    "ROMANIA 3",
    "SAUDI ARABIA 4",
    "VIETNAM 2",
    "RUSSIA 3",
    "UNITED KINGDOM 3",
    "UNITED STATES 1",
]
_COLOURS = [
    "almond",
    "azure",
    "beige",
    "blue",
    "brown",
    "coral",
    "cream",
    "forest",
    "green",
    "grey",
    "ivory",
    "khaki",
    "lemon",
    "navy",
    "olive",
    "pink",
    "red",
]
_FINISHES = ["STANDARD", "SMALL", "MEDIUM", "LARGE", "ECONOMY", "PROMO"]
_COATS = ["ANODIZED", "BURNISHED", "PLATED", "POLISHED", "BRUSHED"]
_METALS = ["TIN", "NICKEL", "BRASS", "STEEL", "COPPER"]
_BOXES = [f"{size} {box}" for size in ("SM", "LG", "MED", "JUMBO", "WRAP") for box in ("CASE", "BOX", "BAG", "PKG")]
_SEGMENTS = ["AUTOMOBILE", "BUILDING", "FURNITURE", "MACHINERY", "HOUSEHOLD"]
_PRIORITIES = ["1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"]
_MODES = ["REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB"]
_HANDLING = ["DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN"]
_NOTES = ["on time", "special requests", "Customer wrote Complaints", "quick and special bulk requests", "nothing"]
_FIRST, _LAST, _TODAY = date(1992, 1, 1), date(1998, 8, 2), date(1995, 6, 17)


def _money(random: Random, low: int, high: int) -> Decimal:
    return Decimal(random.randrange(low * 100, high * 100)).scaleb(-2)


@dataclass(slots=True)
class Trade:
    """The rows of all tables, which change.

    Attributes:
        scale: size; 1 is 6,000,000 lines.
        random: source of random numbers.
        tables: rows of each table.
    """

    scale: float
    random: Random = field(default_factory=lambda: Random(1))
    tables: dict[str, list[Row]] = field(default_factory=dict)
    _next_order: int = 0

    def __post_init__(self) -> None:
        """Create the first rows."""
        self.tables = {
            "regions": list(enumerate(_REGIONS)),
            "countries": [(number, text[:-2], int(text[-1])) for number, text in enumerate(_COUNTRIES)],
            "makers": [self._maker(number) for number in range(1, self._count(10_000) + 1)],
            "items": [self._item(number) for number in range(1, self._count(200_000) + 1)],
            "customers": [self._customer(number) for number in range(1, self._count(150_000) + 1)],
        }
        self.tables["offers"] = [offer for item in self.tables["items"] for offer in self._offers(item)]
        self.tables["orders"], self.tables["lines"] = [], []
        for _ in range(self._count(1_500_000)):
            order, lines = self._order()
            self.tables["orders"].append(order)
            self.tables["lines"] += lines

    def _count(self, at_one: int) -> int:
        return max(4, int(at_one * self.scale))

    def _maker(self, number: int) -> Row:
        random = self.random
        country = random.randrange(25)
        return (
            *(number, f"Maker#{number:09}", f"street {random.randrange(9999)}", country, self._phone(country)),
            *(_money(random, -999, 9999), random.choice(_NOTES)),
        )

    def _phone(self, country: int) -> str:
        return f"{country + 10}-{self.random.randrange(100, 1000)}-{self.random.randrange(1000, 10_000)}"

    def _item(self, number: int) -> Row:
        random = self.random
        house = random.randrange(1, 6)
        kind = f"{random.choice(_FINISHES)} {random.choice(_COATS)} {random.choice(_METALS)}"
        return (
            *(number, " ".join(random.sample(_COLOURS, 5)), f"House#{house}", f"Brand#{house}{random.randrange(1, 6)}"),
            *(kind, random.randrange(1, 51), random.choice(_BOXES), Decimal(90000 + number % 20000).scaleb(-2)),
        )

    def _offers(self, item: Row) -> Iterator[Row]:
        makers = [row[0] for row in self.tables["makers"]]
        for maker in self.random.sample(makers, 4):
            yield item[0], maker, self.random.randrange(1, 10_000), _money(self.random, 1, 1000)

    def _customer(self, number: int) -> Row:
        random = self.random
        country = random.randrange(25)
        return (
            *(number, f"Customer#{number:09}", f"road {random.randrange(9999)}", country, self._phone(country)),
            *(_money(random, -999, 9999), random.choice(_SEGMENTS), random.choice(_NOTES)),
        )

    def _order(self) -> tuple[Row, list[Row]]:
        random = self.random
        self._next_order += 1
        number = self._next_order
        customers = self.tables["customers"]
        customer = random.randrange(len(customers) * 2 // 3) + 1  # a third of the customers has no order
        placed = _FIRST + timedelta(random.randrange((_LAST - _FIRST).days))
        lines = [self._line(number, line, placed) for line in range(1, random.randrange(1, 8) + 1)]
        states = {str(line[9]) for line in lines}
        total = sum((Decimal(str(line[5])) for line in lines), Decimal(0))
        order = (
            *(number, customer, states.pop() if len(states) == 1 else "P", total, placed, random.choice(_PRIORITIES)),
            *(0, random.choice(_NOTES)),
        )
        return order, lines

    def _line(self, order: int, line: int, placed: date) -> Row:
        random = self.random
        offer = random.choice(self.tables["offers"])
        quantity = random.randrange(1, 51)
        item = self.tables["items"][int(str(offer[0])) - 1]
        shipped = placed + timedelta(random.randrange(1, 122))
        promised = placed + timedelta(random.randrange(30, 91))
        received = shipped + timedelta(random.randrange(1, 31))
        return (
            *(order, offer[0], offer[1], line, Decimal(quantity), quantity * Decimal(str(item[7]))),
            *(Decimal(random.randrange(11)).scaleb(-2), Decimal(random.randrange(9)).scaleb(-2)),
            *(random.choice("RA") if received <= _TODAY else "N", "O" if shipped > _TODAY else "F"),
            *(shipped, promised, received, random.choice(_HANDLING), random.choice(_MODES)),
        )

    def change(self, count: int) -> list[TableChange]:
        """Change the rows: new and removed orders with their lines, and replaced rows of other tables.

        Args:
            count: number of new orders, and of removed orders.

        Returns:
            For each changed table, the removed and the added rows.
        """
        random, tables = self.random, self.tables
        made = [self._order() for _ in range(count)]
        gone = set(random.sample([row[0] for row in tables["orders"]], min(count, len(tables["orders"]))))
        changes: list[TableChange] = [
            ("orders", [row for row in tables["orders"] if row[0] in gone], [order for order, _ in made]),
            (
                "lines",
                [row for row in tables["lines"] if row[0] in gone],
                [line for _, lines in made for line in lines],
            ),
        ]
        for name, fresh in (("customers", self._customer), ("makers", self._maker), ("items", self._item)):
            old = random.choice(tables[name])
            changes.append((name, [old], [fresh(int(str(old[0])))]))
        offer = random.choice(tables["offers"])
        changes.append(("offers", [offer], [(offer[0], offer[1], int(str(offer[2])) + 1, _money(random, 1, 1000))]))
        for name, removed, added in changes:
            out = set(removed)
            tables[name] = [row for row in tables[name] if row not in out] + list(added)
            if name in {"items", "makers", "customers"}:
                tables[name].sort(key=lambda row: int(str(row[0])))
        return changes


def text_of(row: Row) -> str:
    """Return a row as a line of COPY."""
    return "\t".join(map(str, row)) + "\n"
