"""Temporal filters: rows that come and go when the time increases, by a queue of future changes.

A row with the times from `begin` to before `end` is inserted at `begin`, or when its input inserts it later, and is
deleted at `end`. The queue has the changes that are not due. A restart keeps it with the other tables of the operator.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw
from typing_extensions import override

from derive.algebra.types import Type
from derive.compute.operators.groups import same, stand_in
from derive.compute.operators.operator import Operator, Tick
from derive.compute.plans.plan import Temporal
from derive.time import END_OF_TIME


class TemporalOperator(Operator):
    """An operator that keeps the rows within their times.

    The columns of the queue are the time `t` of a change, the columns of the row without NULLs, and `w`.
    """

    plan: Temporal

    def __init__(self, connection: apsw.Connection, number: int, plan: Temporal, inputs: Sequence[Operator]) -> None:
        super().__init__(connection, number, plan, inputs)
        self._queue = f"q{number}"
        self._kinds = plan.types or (Type.BOOLEAN,)
        begins = [f"c{len(plan.types) + index}" for index in range(plan.begins)]
        ends = [f"c{len(plan.types) + plan.begins + index}" for index in range(plan.ends)]
        self._begin, self._end = _extreme("max", begins), _extreme("min", ends)
        known = [f"{column} IS NOT NULL" for column in (*begins, *ends)]
        self._has_times = " AND ".join([*known, *([f"{self._begin} < {self._end}"] if begins and ends else [])])

    @override
    def prepare(self) -> None:
        key = f"t, {self.columns}"
        self.connection.execute(
            f"CREATE TABLE {self._queue}({key}, w INTEGER NOT NULL, PRIMARY KEY ({key})) WITHOUT ROWID"
        )
        self.connection.execute(f"CREATE INDEX {self._queue}_none ON {self._queue}(w) WHERE w = 0")

    @override
    def drop(self) -> None:
        super().drop()
        self.connection.execute(f"DROP TABLE IF EXISTS {self._queue}")

    def due(self) -> int | None:
        """Return the earliest time of a change in the queue; None if the queue is empty."""
        time: int | None = self.connection.execute(f"SELECT min(t) FROM {self._queue}").get
        return time

    @override
    def is_due(self, time: int) -> bool:
        due = self.due()
        return due is not None and due <= time

    @override
    def update(self, tick: Tick) -> None:
        source, execute = self.changed(self.inputs[0]), self.connection.execute
        row = self.columns if self.plan.types else "NULL AS c0"
        is_known = self.is_new or self.inputs[0].is_dirty
        present = [f"{self._begin} <= :now"] if self.plan.begins else []
        present += [f":now < {self._end}"] if self.plan.ends else []
        changes = f"SELECT {row}, w FROM {source} WHERE {' AND '.join([self._has_times, *present])}"
        values = ", ".join(
            f"nullif({name}, {stand_in(kind)}) AS {name}"
            for name, kind in zip(self.columns.split(", "), self._kinds, strict=True)
        )
        due = f"SELECT {values}, w FROM {self._queue} WHERE t <= :now"
        self.settle(f"{changes} UNION ALL {due}" if is_known else due, {"now": tick.time})
        execute(f"DELETE FROM {self._queue} WHERE t <= :now", {"now": tick.time})
        if is_known:
            for time, sign in ((self._begin, ""), (self._end, "-")):
                if time:
                    self._enqueue(source, time, sign, tick.time)
            execute(f"DELETE FROM {self._queue} WHERE w = 0")

    def _enqueue(self, source: str, time: str, sign: str, now: int) -> None:
        """Add the future changes that follow from changes of the input."""
        names = self.columns.split(", ") if self.plan.types else ["NULL"]
        values = [same(name, kind) for name, kind in zip(names, self._kinds, strict=True)]
        grouping = ", ".join(str(position + 1) for position in range(len(values) + 1))
        self.connection.execute(
            f"INSERT INTO {self._queue} SELECT {time}, {', '.join(values)}, {sign}sum(w) FROM {source}"
            f" WHERE {self._has_times} AND {time} > :now AND {time} < :never GROUP BY {grouping} HAVING sum(w) <> 0"
            " ON CONFLICT DO UPDATE SET w = w + excluded.w",
            {"now": now, "never": END_OF_TIME},
        )


def _extreme(function: str, columns: Sequence[str]) -> str:
    """Return SQL of the greatest or least of columns; empty without columns."""
    return f"{function}({', '.join(columns)})" if len(columns) > 1 else "".join(columns)
