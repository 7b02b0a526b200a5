"""Recursions in one-shot evaluation: each is a loop that fills a table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import count
from typing import Any, TypeVar

import apsw

from derive.algebra.recursion import Recurring, Recursion
from derive.algebra.relation import Get, GlobalId
from derive.compute.sqlite.block import names
from derive.compute.sqlite.query import select_of
from derive.errors import SqlError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Loop:
    """A recursion whose rows are collected in a table.

    Attributes:
        id: negative identifier of the rows in queries, and of the latest rows in `recursion.step`.
        recursion: the recursion, with inner recursions replaced by tables.
    """

    id: GlobalId
    recursion: Recursion

    @property
    def table(self) -> str:
        """Return the table of its rows."""
        return table_of(Get(self.id, self.recursion.types))

    @property
    def latest(self) -> str:
        """Return a SELECT in parentheses of the rows after number `:mark`."""
        return f"(SELECT {names(len(self.recursion.types))} FROM {self.table} WHERE rowid > :mark)"

    def statements(self, table: Callable[[Get], str]) -> tuple[str, str]:
        """Return SELECTs of the first rows, and of a step's rows from the rows after number `:mark`."""
        step = select_of(self.recursion.step, lambda get: self.latest if get.id == self.id else table(get))
        return select_of(self.recursion.base, table), step

    def fill(
        self,
        connection: apsw.Connection,
        statements: tuple[str, str],
        most_bytes: int | None,
        cancelled: Callable[[], None],
    ) -> Iterator[int]:
        """Create the table, and fill it step by step.

        Args:
            connection: connection with the tables that the statements read.
            statements: statements of this loop.
            most_bytes: maximum size of all tables together; None for no limit.
            cancelled: called before each step; raises to end.

        Yields:
            The number after which the newest rows are.
        """
        width = len(self.recursion.types) or 1
        connection.execute(f"CREATE TABLE {self.table}({names(width)})")
        if self.recursion.is_distinct:
            # A unique index treats NULLs as distinct.
            columns = ", ".join(f"c{index} IS NULL, ifnull(c{index}, 0)" for index in range(width))
            name = self.table.removeprefix("temp.")
            connection.execute(f"CREATE UNIQUE INDEX temp.{name}_once ON {name}({columns})")
        mark, (statement, step) = 0, statements
        while True:
            cancelled()
            before = _last(connection, self.table)
            connection.execute(f"INSERT OR IGNORE INTO {self.table} {statement}", {"mark": mark})
            if _last(connection, self.table) == before:
                return
            if most_bytes is not None and _bytes(connection) > most_bytes:
                hint = (
                    "Give WITH RECURSIVE a condition under which it ends, or raise the limit with --max-result-bytes."
                )
                raise SqlError("54000", f"a recursive query has more than {most_bytes} bytes", hint=hint)
            yield before
            mark, statement = before, step


def table_of(get: Get) -> str:
    """Return the table of a recursion's rows."""
    return f"temp.recursion{-get.id}"


def _last(connection: apsw.Connection, table: str) -> int:
    number: int | None = connection.execute(f"SELECT max(rowid) FROM {table}").get
    return number or 0


def _bytes(connection: apsw.Connection) -> int:
    pages: int = connection.execute("PRAGMA temp.page_count").get
    size: int = connection.execute("PRAGMA temp.page_size").get
    return pages * size


def unrolled(node: T) -> tuple[T, list[Loop]]:
    """Replace recursions in a node by tables; return the node, and the loops that fill the tables, in order."""
    loops: list[Loop] = []
    ids = count(-1, -1)
    known: dict[Recursion, Get] = {}

    def of(part: Any, around: Mapping[int, Get]) -> Any:
        if isinstance(part, Recurring):
            return around[part.id]
        if isinstance(part, Recursion):
            if part not in known:
                get = Get(next(ids), part.types)
                base, step = of(part.base, around), of(part.step, {**around, part.id: get})
                loops.append(Loop(get.id, replace(part, base=base, step=step)))
                known[part] = get
            return known[part]
        if isinstance(part, tuple):
            return tuple(of(one, around) for one in part)
        if not is_dataclass(part) or isinstance(part, type):
            return part
        parts = {item.name: getattr(part, item.name) for item in fields(part)}
        changed = {name: other for name, one in parts.items() if (other := of(one, around)) is not one}
        return replace(part, **changed) if changed else part

    rewritten: T = of(node, {})
    return rewritten, loops


def loop_of(loops: Collection[Loop], get: Get) -> Loop | None:
    """Return the loop of a node; None if it is another node."""
    return next((loop for loop in loops if loop.id == get.id), None)
