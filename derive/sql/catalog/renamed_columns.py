"""Views and functions after the rename of a column that they use.

The text of a view or function names columns as they were when it was written. After a rename, the text gives the
relation an alias with the earlier names, so that it keeps its meaning, and a view the names of its own columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from derive.functions.scalar.text import quoted_name
from derive.sql.catalog.items import Item
from derive.sql.parser.ast import ColumnReference, CommonTable, FunctionCall, RelationReference, Star
from derive.sql.parser.parse import parse
from derive.sql.parser.queries import QueryParser
from derive.sql.parser.tokens import TokenReader


def with_earlier_names(view: Item, relation: int, columns: Sequence[str], renamed: Mapping[str, str]) -> Item | None:
    """Return a view or function whose text gives earlier names to renamed columns of a relation that it reads.

    Args:
        view: the view or function.
        relation: identifier of the relation in the bindings of the view.
        columns: names of the relation's columns before.
        renamed: new names of columns by their names before.

    Returns:
        None if the text takes the relation as a row, whose fields have the new names from now on, or if a common table
        expression has the name of the relation.

    >>> from derive.sql.parser.statement import ObjectKind
    >>> columns, renamed = ("a", "b"), {"a": "n"}
    >>> view = Item(2, ObjectKind.VIEW, "public", "v", definition="SELECT a FROM t AS x", bindings={"t": 1})
    >>> with_earlier_names(view, 1, columns, renamed).definition
    'SELECT a FROM t AS x (a, b)'
    """
    assert view.definition is not None
    bound = {name for name, identifier in view.bindings.items() if identifier == relation}
    nodes = list(_nodes(parse(view.definition)))
    common = {node.name for node in nodes if isinstance(node, CommonTable)}
    references = [node for node in nodes if isinstance(node, RelationReference) and str(node.name) in bound]
    text, read = view.definition, dict(view.read)
    for reference in sorted(references, key=lambda node: node.name.offset, reverse=True):
        name = str(reference.name)
        known = [column for column in view.read.get(name, columns) if column in columns]
        alias = reference.alias
        given = alias.columns if alias else ()
        if not renamed.keys() & set(known[len(given) :]):
            continue
        shown = alias.name if alias else reference.name.name
        names = (*given, *known[len(given) :])
        if name in common or (shown not in names and _has_row(nodes, shown)):
            return None
        text = _with_alias(text, reference, names)
    for name in bound & read.keys():
        read[name] = tuple(renamed.get(column, column) for column in read[name])
    return replace(view, definition=text, read=read)


def _has_row(nodes: Sequence[object], name: str) -> bool:
    """Return whether a query mentions a relation as a row."""
    for node in nodes:
        if isinstance(node, ColumnReference) and node.parts == (name,):
            return True
        stars = node.arguments if isinstance(node, FunctionCall) else ()
        if any(isinstance(star, Star) and star.qualifier[-1:] == (name,) for star in stars):
            return True
    return False


def _with_alias(text: str, reference: RelationReference, columns: Sequence[str]) -> str:
    """Return a text in which a relation has an alias with names of columns."""
    begin = reference.name.offset
    reader = TokenReader(text[begin:])
    reader.qualified_name()
    reader.accept_symbol("*")
    end = reader.end_before
    listed = f"({', '.join(map(quoted_name, columns))})"
    if reference.alias is None:
        added = f" AS {quoted_name(reference.name.name)} {listed}"
        return text[: begin + end] + added + text[begin + end :]
    QueryParser(reader).tables.alias()
    added = f" AS {quoted_name(reference.alias.name)} {listed}"
    return text[: begin + end] + added + text[begin + reader.end_before :]


def _nodes(node: Any) -> list[object]:
    """Return all parts of a syntax tree without its stars."""
    if isinstance(node, tuple):
        return [part for item in node for part in _nodes(item)]
    if not is_dataclass(node) or isinstance(node, Star):
        return []
    return [node, *(part for item in fields(node) for part in _nodes(getattr(node, item.name)))]
