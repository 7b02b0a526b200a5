"""A SQL table that is written, dropped, created and renamed while tasks read it.

Statements run in a coordinator of their own, which lives as long as they take. The tables `items` and `spare` have rows
of a key, a group and a value, and each may take the name of the other. Two derivations count and sum the rows of `items`
by their group: `sums` takes rows of a former relation back, and `kept` has state, so it starts over with each relation.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from sql_world import Client

from derive.protocol.specs import CatalogSpec
from derive.sql.coordinator import Coordinator

SOURCE = "sql/public/items"
FOLLOWING = {"items": "id, g, v", "sums": "g, n, v", "kept": "g, n, v"}
"""The tables at an endpoint, and their columns, of which the first is the key."""

Row: TypeAlias = tuple[int, int, int]

_KEYS, _GROUPS = 60, 7
_INTEGER = {"type": "integer"}
_DELETE = {
    "if": {"required": ["_meta"], "properties": {"_meta": {"required": ["op"], "properties": {"op": {"const": "d"}}}}},
    "then": {"reduce": {"strategy": "lastWriteWins", "delete": True}},
    "else": {"reduce": {"strategy": "lastWriteWins"}},
}


_SUM = {"type": "integer", "reduce": {"strategy": "sum"}}
_TOTALS = {"type": "object", "required": ["g"], "reduce": {"strategy": "merge"}}
_READ = {"name": "read", "source": SOURCE, "onSourceReset": "follow"}
_KEPT_ROWS = "CREATE TABLE kept_rows (g INTEGER, id INTEGER, v INTEGER, PRIMARY KEY (g, id))"
_KEEP = """
DELETE FROM kept_rows WHERE g = $g AND id = $id;
INSERT INTO kept_rows SELECT $g, $id, $v WHERE $_meta$op IS NOT 'd';
SELECT $g, count(*) AS n, coalesce(sum(v), 0) AS v FROM kept_rows WHERE g = $g;
"""
COLLECTIONS = {
    SOURCE: {
        "key": ["/id"],
        "schema": {
            "type": "object",
            "required": ["id"],
            "properties": {
                "id": _INTEGER,
                "g": _INTEGER,
                "v": _INTEGER,
                "_meta": {"type": "object", "properties": {"op": {"type": "string"}}},
            },
            **_DELETE,
        },
    },
    "torture/sums": {
        "key": ["/g"],
        "schema": {**_TOTALS, "properties": {"g": _INTEGER, "n": _SUM, "v": _SUM}},
        "derive": {
            "using": {"sqlite": {}},
            "transforms": [
                {
                    **_READ,
                    "shuffle": "any",
                    "lambda": "SELECT $g, iif($_meta$op IS 'd', -1, 1) AS n, iif($_meta$op IS 'd', -$v, $v) AS v;",
                }
            ],
        },
    },
    "torture/kept": {
        "key": ["/g"],
        "schema": {**_TOTALS, "properties": {"g": _INTEGER, "n": _INTEGER, "v": _INTEGER}},
        "derive": {
            "using": {"sqlite": {"migrations": [_KEPT_ROWS]}},
            "transforms": [{**_READ, "shuffle": {"key": ["/g"]}, "lambda": _KEEP}],
        },
    },
}
BINDINGS = [
    {"source": source, "resource": {"table": table}, "onSourceReset": "follow"}
    for source, table in zip(COLLECTIONS, FOLLOWING, strict=True)
]


class ChangingTable:
    """The table in a data folder, and statements that change it.

    Args:
        catalog: declares it.
        chance: chooses the changes.

    Attributes:
        changes: how often each kind of change was made.
        statements: since the tables were created, each with the second at which it was begun.
    """

    def __init__(self, catalog: CatalogSpec, chance: random.Random) -> None:
        self._catalog, self._chance = catalog, chance
        self.changes: Counter[str] = Counter()
        self.statements: list[tuple[float, str]] = []
        self._kinds: dict[str, Callable[[Collection[str]], list[str]]] = {
            "insert": self._insert,
            "update": self._update,
            "delete": self._delete,
            "truncate": self._truncate,
            "alter": self._alter,
            "drop": self._drop,
            "recreate": self._recreate,
            "rename": self._rename,
            "swap": self._swap,
            "replace": self._replace,
        }

    def create(self, data: Path) -> None:
        """Create the tables."""
        asyncio.run(self._run(data, [lambda _: [self._created("items"), self._created("spare")]]))

    def change(self, data: Path) -> None:
        """Make some changes, each in a transaction.

        Raises:
            FlowError: another process keeps a database locked.
        """
        kinds = self._chance.choices(list(self._kinds), k=self._chance.randint(1, 3))
        asyncio.run(self._run(data, [self._kinds[kind] for kind in kinds]))
        self.changes.update(kinds)

    def expected(self, data: Path) -> Mapping[str, list[Row]]:
        """Return the rows that each table at an endpoint has to have, sorted.

        The table is created if nothing has its name. Of groups without rows nothing is returned.
        """
        rows = asyncio.run(self._run(data, [self._existing]))
        totals: dict[int, tuple[int, int]] = {}
        for _, group, value in rows:
            n, v = totals.get(group, (0, 0))
            totals[group] = n + 1, v + value
        groups = sorted((group, *total) for group, total in totals.items())
        return {"items": sorted(rows), "sums": groups, "kept": groups}

    async def _run(self, data: Path, changes: Sequence[Callable[[Collection[str]], list[str]]]) -> list[Row]:
        """Make changes, each by its statements for the tables that exist; return the rows of `items` after them."""
        coordinator = Coordinator(data, self._catalog)
        try:
            client = Client(coordinator)
            for change in changes:
                tables = {str(row[0]) for row in await client("SHOW TABLES")}
                for text in ("BEGIN", *change(tables), "COMMIT"):
                    self.statements.append((time.time(), text))
                    await client(text)
            tables = {str(row[0]) for row in await client("SHOW TABLES")}
            rows = await client("SELECT id, g, v FROM items") if "items" in tables else []
            return [(int(id_ or 0), int(g or 0), int(v or 0)) for id_, g, v in rows]
        finally:
            await coordinator.close()

    def _some(self) -> str:
        """Rows with keys of a random range."""
        begin = self._chance.randrange(_KEYS)
        end = self._chance.randint(begin, _KEYS)
        shift, factor = self._chance.randrange(_GROUPS), self._chance.randrange(1, 1000)
        return (
            f"SELECT k AS id, (k + {shift}) % {_GROUPS} AS g, k * {factor} AS v FROM generate_series({begin}, {end}) k"
        )

    def _created(self, name: str) -> str:
        return f"CREATE TABLE {name} AS {self._some()}"

    def _existing(self, tables: Collection[str]) -> list[str]:
        return [] if "items" in tables else [self._created("items")]

    def _insert(self, tables: Collection[str]) -> list[str]:
        insert = f"INSERT INTO items (id, g, v) SELECT id, g, v FROM ({self._some()}) s WHERE id NOT IN (SELECT id FROM items)"
        return [*self._existing(tables), insert]

    def _update(self, tables: Collection[str]) -> list[str]:
        return [*self._existing(tables), f"UPDATE items SET v = v + 1, g = (g + 1) % {_GROUPS} WHERE {self._third()}"]

    def _delete(self, tables: Collection[str]) -> list[str]:
        return [*self._existing(tables), f"DELETE FROM items WHERE {self._third()}"]

    def _third(self) -> str:
        return f"id % 3 = {self._chance.randrange(3)}"

    def _truncate(self, tables: Collection[str]) -> list[str]:
        return [*self._existing(tables), "TRUNCATE items"]

    def _alter(self, tables: Collection[str]) -> list[str]:
        added = f"ADD COLUMN IF NOT EXISTS extra int DEFAULT {self._chance.randrange(9)}"
        action = self._chance.choice([added, "DROP COLUMN IF EXISTS extra"])
        return [*self._existing(tables), f"ALTER TABLE items {action}"]

    def _drop(self, tables: Collection[str]) -> list[str]:
        return ["DROP TABLE IF EXISTS items"]

    def _recreate(self, tables: Collection[str]) -> list[str]:
        return ["DROP TABLE IF EXISTS items", self._created("items")]

    def _rename(self, tables: Collection[str]) -> list[str]:
        """Take the name of the table away, or give it to the other one."""
        if "items" not in tables:
            return ["ALTER TABLE spare RENAME TO items"] if "spare" in tables else [self._created("items")]
        return ["DROP TABLE IF EXISTS spare", "ALTER TABLE items RENAME TO spare"]

    def _swap(self, tables: Collection[str]) -> list[str]:
        """Have the two tables change places."""
        if not {"items", "spare"} <= set(tables):
            return [*self._existing(tables), "DROP TABLE IF EXISTS spare", self._created("spare")]
        renames = ("items", "tmp"), ("spare", "items"), ("tmp", "spare")
        return [f"ALTER TABLE {name} RENAME TO {new}" for name, new in renames]

    def _replace(self, tables: Collection[str]) -> list[str]:
        """Have a new table take the place of the table, which is kept."""
        renames = ["ALTER TABLE items RENAME TO spare", "ALTER TABLE tmp RENAME TO items"]
        return [*self._existing(tables), "DROP TABLE IF EXISTS spare", self._created("tmp"), *renames]
