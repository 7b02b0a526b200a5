"""Planner of the parts and the condition of an index: columns and expressions over the rows of a relation.

The catalog keeps the texts of the parts and of the condition. An expression has one value for a row, whatever the
session, because its functions are immutable and it is planned in UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from derive.algebra.expression import Expression
from derive.errors import SqlError
from derive.functions.scalar.text import quoted_name
from derive.sql.parser.ast import ColumnReference, FunctionCall, IndexPart, SyntaxNode
from derive.sql.parser.parse import parse_expression
from derive.sql.parser.statement import Default
from derive.sql.planner.interfaces import Constraint, NamedRelation
from derive.sql.planner.output import UNNAMED, name_of, start_of
from derive.sql.planner.row_expressions import NoNames, RowPlanner, column_named, is_immutable, renamed_in
from derive.sql.planner.scope import Clause

_EXPRESSION = Clause("index expressions", has_own_functions=False)
_PREDICATE = Clause("index predicates", has_own_functions=False)
_OTHER_ZONE = "Asia/Kolkata"
"""A zone in which an expression has another plan than in UTC, if its value depends on the zone of the session."""


@dataclass(frozen=True, slots=True)
class IndexKey:
    """The planned parts of an index.

    Attributes:
        columns: names of the columns that the parts and the condition mention; the parts of an index on columns.
        parts: texts of the parts as expressions; empty for an index of all rows on columns.
        condition: text of the condition of the rows; None for all rows.
        names: a name for each part, for the name of the index.
    """

    columns: tuple[str, ...]
    parts: tuple[str, ...]
    condition: str | None
    names: tuple[str, ...]


def plan_index_key(table: NamedRelation, parts: Sequence[IndexPart], condition: Default | None) -> IndexKey:
    """Plan the parts and the condition of an index; without parts, it is on all columns.

    Raises:
        SqlError: 42703, a column does not exist; 42701, a column is named twice; 42P17, an expression is not immutable;
            0A000, an expression has a subquery, or a function of CREATE FUNCTION; and others.
    """
    columns = [column.name for column in table.columns] if not parts else []
    for part in parts:
        if part.column is not None:
            column_named(table, part.column, part.offset)
            if part.column in columns:
                raise SqlError("42701", f'column "{part.column}" specified more than once', offset=part.offset)
            columns.append(part.column)
    names = tuple(_distinct(map(_name, (part.expression for part in parts)))) if parts else tuple(columns)
    if condition is None and all(part.column is not None for part in parts):
        return IndexKey(tuple(columns), (), None, names)
    mentioned: dict[str, None] = {}
    texts = tuple(_checked(table, part, mentioned) for part in parts) or tuple(map(quoted_name, columns))
    mentioned |= dict.fromkeys(columns if not parts else ())
    predicate = None if condition is None else _checked_condition(table, condition, mentioned)
    return IndexKey(tuple(mentioned), texts, predicate, names)


def _name(node: SyntaxNode) -> str:
    name = name_of(node)
    return "expr" if name == UNNAMED else name


def _distinct(names: Iterable[str]) -> Iterator[str]:
    """Yield names, with numbers behind repeated ones."""
    used: set[str] = set()
    for name in names:
        number, free = 0, name
        while free in used:
            number += 1
            free = f"{name}{number}"
        used.add(free)
        yield free


def _checked(table: NamedRelation, part: IndexPart, mentioned: dict[str, None]) -> str:
    """Return the text of a part, and add the columns that it mentions."""
    planner = RowPlanner(table, NoNames(), _EXPRESSION)
    value = planner.value(part.expression, "index expression")
    elsewhere = RowPlanner(table, NoNames(_OTHER_ZONE), _EXPRESSION, is_in_session=True)
    if not is_immutable(value) or elsewhere.value(part.expression, "index expression") != value:
        message = "functions in index expression must be marked IMMUTABLE"
        raise SqlError("42P17", message, offset=start_of(part.expression))
    text = part.text if part.column is None else quoted_name(part.column)
    return _unqualified(table, text, planner, mentioned)


def _checked_condition(table: NamedRelation, condition: Default, mentioned: dict[str, None]) -> str:
    planner = RowPlanner(table, NoNames(), _PREDICATE)
    value = planner.condition(condition.expression, "WHERE", "index predicate")
    elsewhere = RowPlanner(table, NoNames(_OTHER_ZONE), _PREDICATE, is_in_session=True)
    if not is_immutable(value) or elsewhere.condition(condition.expression, "WHERE", "index predicate") != value:
        message = "functions in index predicate must be marked IMMUTABLE"
        raise SqlError("42P17", message, offset=start_of(condition.expression))
    return _unqualified(table, condition.text, planner, mentioned)


def _unqualified(table: NamedRelation, text: str, planner: RowPlanner, mentioned: dict[str, None]) -> str:
    """Return a text in which columns have no table, so that it stays valid if the table is renamed."""
    for name in dict.fromkeys(table.columns[index].name for index, _ in planner.references):
        mentioned[name] = None
        text = renamed_in(text, table, NoNames(), name, name)
    return text


def expressions_of(table: NamedRelation, parts: Sequence[str]) -> tuple[Expression, ...]:
    """Plan the parts of an index, over the columns of the relation's rows.

    Raises:
        SqlError: a column has a type for which an expression has no meaning, as after ALTER TABLE.
    """
    planners = (RowPlanner(table, NoNames(), _EXPRESSION) for _ in parts)
    return tuple(
        planner.value(parse_expression(part), "index expression") for planner, part in zip(planners, parts, strict=True)
    )


def condition_of(table: NamedRelation, condition: str | None) -> Expression | None:
    """Plan the condition of an index, as `expressions_of` plans its parts."""
    if condition is None:
        return None
    planner = RowPlanner(table, NoNames(), _PREDICATE)
    return planner.condition(parse_expression(condition), "WHERE", "index predicate")


def renamed_parts(parts: Sequence[str], table: NamedRelation, old: str, new: str) -> tuple[str, ...]:
    """Return the parts of an index with another name of a column of the table."""
    return tuple(renamed_in(part, table, NoNames(), old, new) for part in parts)


@dataclass(frozen=True, slots=True)
class NamedPart:
    """The name of a part of an index, unique in the index, and its column; None for an expression."""

    name: str
    column: str | None


def named_parts(parts: Sequence[str]) -> tuple[NamedPart, ...]:
    """Return the parts of an index with names.

    >>> [part.name for part in named_parts(["a", "lower(b)", "lower(c)", "a + 1"])]
    ['a', 'lower', 'lower1', 'expr']
    """
    nodes = [parse_expression(part) for part in parts]
    columns = (node.parts[-1] if isinstance(node, ColumnReference) else None for node in nodes)
    return tuple(map(NamedPart, _distinct(map(_name, nodes)), columns))


def shown_part(part: str) -> str:
    """Return a part as `pg_get_indexdef` shows it in an index of one part: in parentheses, if PostgreSQL needs them.

    >>> [shown_part(part) for part in ("name", "lower(name)", "a + b", "a::text")]
    ['name', 'lower(name)', '((a + b))', '((a::text))']
    """
    node = parse_expression(part)
    if isinstance(node, ColumnReference | FunctionCall):
        return part
    return f"({shown_expression(part)})"


def shown_expression(part: str) -> str:
    """Return a part as PostgreSQL shows an expression of its own: an operation in parentheses."""
    return part if isinstance(parse_expression(part), ColumnReference | FunctionCall) else f"({part})"


def inferred_keys(table: NamedRelation, parts: Sequence[IndexPart], where: Default | None) -> tuple[Constraint, ...]:
    """Return the keys of a table that have the parts of an ON CONFLICT clause, in any order.

    A key with a condition is only meant by a clause with the same condition.

    Raises:
        SqlError: 42703, a column does not exist; and others.
    """
    for part in parts:
        if part.column is not None:
            column_named(table, part.column, part.offset)
    named = {RowPlanner(table, NoNames(), _EXPRESSION).value(part.expression, "ON CONFLICT") for part in parts}
    condition = None
    if where is not None:
        condition = RowPlanner(table, NoNames(), _PREDICATE).condition(where.expression, "WHERE", "ON CONFLICT")
    keys = []
    for key in table.keys:
        texts = key.parts or tuple(map(quoted_name, key.columns))
        is_meant = key.condition is None or condition_of(table, key.condition) == condition
        if is_meant and set(expressions_of(table, texts)) == named:
            keys.append(key)
    return tuple(keys)
