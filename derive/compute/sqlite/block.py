"""Parts of SELECTs, from which whole ones are put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from derive.algebra.relation import Constant, Distinct, Filter, Join, Order, Project, Reduce, Relation, TopK
from derive.algebra.types import Row
from derive.functions.registry import sort_key, sql_of_datum


def names(width: int, prefix: str = "") -> str:
    """Names of so many columns, with a comma in between; one column stands for none."""
    return ", ".join(f"{prefix}c{index}" for index in range(width or 1))


@dataclass(slots=True)
class Block:
    """A SELECT without grouping, in parts.

    Attributes:
        source: its FROM clause without the word; empty for one row of nothing.
        columns: SQL of what it selects.
        computed: indices of those that are more than a column of a table, or a constant.
        predicates: SQL of conditions that never fail.
        fallible: SQL of conditions that may.
        tables: how many are joined.
        is_plain: whether further tables may join with a comma.
        is_derived: whether it selects from other SELECTs.
        depth: into how many SELECTs, one inside the other, SQLite may put what it computes.
    """

    source: str
    columns: list[str]
    computed: frozenset[int] = frozenset()
    predicates: list[str] = field(default_factory=list)
    fallible: list[str] = field(default_factory=list)
    tables: int = 1
    is_plain: bool = True
    is_derived: bool = False
    depth: int = 0


def order_term(order: Order, text: str) -> str:
    """What stands behind ORDER BY, for an expression as SQL."""
    direction = "DESC" if order.is_descending else "ASC"
    return f"({sort_key(text, order.expression.type)}) {direction} NULLS {'FIRST' if order.nulls_first else 'LAST'}"


def rows_sql(rows: Sequence[Row], width: int) -> str:
    """A SELECT of rows, whose columns are `c0`, `c1` and so on.

    Args:
        rows: each of as many data.
        width: how many those are.
    """
    if not rows:
        return "SELECT " + (", ".join(f"NULL AS c{index}" for index in range(width or 1))) + " WHERE 0"
    columns = ", ".join(f"column{index + 1} AS c{index}" for index in range(width)) or "NULL AS c0"
    values = ", ".join(f"({', '.join(map(sql_of_datum, row)) or 'NULL'})" for row in rows)
    return f"SELECT {columns} FROM (VALUES {values})"


def limit_sql(limit: int | None, offset: int) -> str:
    """What stands behind all else, with a space before it."""
    if limit is None and not offset:
        return ""
    return f" LIMIT {-1 if limit is None else limit} OFFSET {offset}"


def guarded(predicates: Sequence[str], fallible: Sequence[str]) -> list[str]:
    """SQL of conditions, those that may fail being asked only where the others are true."""
    if not fallible:
        return list(predicates)
    # As a condition of CASE, SQLite asks for one after the other, and for no more than it needs.
    return [*predicates, f"(CASE WHEN {' AND '.join([*predicates, *fallible])} THEN 1 ELSE 0 END)"]


def kept_apart(select: str) -> str:
    """A SELECT of the same rows, that SQLite does not make one with those around it."""
    return f"WITH once AS MATERIALIZED ({select}) SELECT * FROM once"


def is_one_row(relation: Relation) -> bool:
    """Whether a relation has one row at most, as can be told from its form."""
    match relation:
        case Reduce(keys=()):
            return True
        case Constant(rows=rows):
            return len(rows) <= 1
        case TopK(keys=(), limit=limit):
            return limit is not None and limit <= 1
        case Project(input=source) | Filter(input=source) | Distinct(input=source):
            return is_one_row(source)
        case Join(inputs=inputs):
            return all(map(is_one_row, inputs))
        case _:
            return False
