"""Parts of SELECTs, and their assembly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from derive.algebra.relation import Constant, Distinct, Filter, Join, Order, Project, Reduce, Relation, TopK
from derive.algebra.types import Row
from derive.functions.registry import sort_key, sql_of_datum


def names(width: int, prefix: str = "") -> str:
    """Return names of columns, separated by commas; rows without columns have a placeholder."""
    return ", ".join(f"{prefix}c{index}" for index in range(width or 1))


@dataclass(slots=True)
class Block:
    """A SELECT without grouping, in parts.

    Attributes:
        source: its FROM clause without the keyword; empty for one row without columns.
        columns: SQL of its columns.
        computed: indexes of columns that are neither a table's column nor a constant.
        predicates: SQL of conditions that cannot fail.
        fallible: SQL of conditions that can fail.
        tables: number of joined tables.
        is_plain: whether further tables may be joined with a comma.
        is_derived: whether it selects from other SELECTs.
        depth: number of nested SELECTs that SQLite may flatten its expressions through.
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
    """Return the ORDER BY term of an expression's SQL."""
    direction = "DESC" if order.is_descending else "ASC"
    return f"({sort_key(text, order.expression.type)}) {direction} NULLS {'FIRST' if order.nulls_first else 'LAST'}"


def rows_sql(rows: Sequence[Row], width: int) -> str:
    """Return a SELECT of rows, with columns `c0`, `c1` and so on.

    Args:
        rows: rows of `width` data.
        width: number of columns.
    """
    if not rows:
        return "SELECT " + (", ".join(f"NULL AS c{index}" for index in range(width or 1))) + " WHERE 0"
    columns = ", ".join(f"column{index + 1} AS c{index}" for index in range(width)) or "NULL AS c0"
    values = ", ".join(f"({', '.join(map(sql_of_datum, row)) or 'NULL'})" for row in rows)
    return f"SELECT {columns} FROM (VALUES {values})"


def limit_sql(limit: int | None, offset: int) -> str:
    """Return the LIMIT clause, with a space before it."""
    if limit is None and not offset:
        return ""
    return f" LIMIT {-1 if limit is None else limit} OFFSET {offset}"


def guarded(predicates: Sequence[str], fallible: Sequence[str]) -> list[str]:
    """Return SQL of conditions; conditions that can fail are evaluated only if the others are true."""
    if not fallible:
        return list(predicates)
    # In a CASE condition, SQLite evaluates one after the other, and stops at the first false one.
    return [*predicates, f"(CASE WHEN {' AND '.join([*predicates, *fallible])} THEN 1 ELSE 0 END)"]


def materialized_once(select: str) -> str:
    """Return a SELECT of the same rows that SQLite does not merge with its surroundings."""
    return f"WITH once AS MATERIALIZED ({select}) SELECT * FROM once"


def is_one_row(relation: Relation) -> bool:
    """Return whether a relation has at most one row, according to its structure."""
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
