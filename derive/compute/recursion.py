"""Recursions of a query that is evaluated once: each is a loop that fills a table."""

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
    """A recursion whose rows come to be in a table.

    Attributes:
        id: negative; what stands in queries for the rows, and in `recursion.step` for the latest of them.
        recursion: in which others are replaced by tables.
    """

    id: GlobalId
    recursion: Recursion

    @property
    def table(self) -> str:
        """The table of its rows."""
        return table_of(Get(self.id, self.recursion.types))

    @property
    def latest(self) -> str:
        """A SELECT in parentheses of the rows behind number `:mark`."""
        return f"(SELECT {names(len(self.recursion.types))} FROM {self.table} WHERE rowid > :mark)"

    def statements(self, table: Callable[[Get], str]) -> tuple[str, str]:
        """SELECTs of the first rows, and of those that a step makes of the rows behind number `:mark`."""
        step = select_of(self.recursion.step, lambda get: self.latest if get.id == self.id else table(get))
        return select_of(self.recursion.base, table), step

    def fill(
        self,
        connection: apsw.Connection,
        statements: tuple[str, str],
        most_bytes: int | None,
        cancelled: Callable[[], None],
    ) -> Iterator[int]:
        """Make the table, and step after step its rows.

        Args:
            connection: that has the tables which the statements read.
            statements: of this loop.
            most_bytes: so many may be in all tables together; None for any number.
            cancelled: called before each step; raises to end.

        Yields:
            Behind which number the newest rows are.
        """
        width = len(self.recursion.types) or 1
        connection.execute(f"CREATE TABLE {self.table}({names(width)})")
        if self.recursion.is_distinct:
            # An index holds NULLs apart from one another.
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
    """The table of a recursion's rows."""
    return f"temp.recursion{-get.id}"


def _last(connection: apsw.Connection, table: str) -> int:
    number: int | None = connection.execute(f"SELECT max(rowid) FROM {table}").get
    return number or 0


def _bytes(connection: apsw.Connection) -> int:
    pages: int = connection.execute("PRAGMA temp.page_count").get
    size: int = connection.execute("PRAGMA temp.page_size").get
    return pages * size


def unrolled(node: T) -> tuple[T, list[Loop]]:
    """A relation, or what has some, with tables in the place of recursions; and the loops that fill them, in order."""
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
    """The loop whose rows something stands for; None if it is none."""
    return next((loop for loop in loops if loop.id == get.id), None)
