"""GROUP BY: expressions, and sets of them, of which rows are grouped by one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations, product
from typing import TYPE_CHECKING, TypeAlias

from derive.errors import SqlError
from derive.sql.parser.ast import RowValue, SyntaxNode
from derive.sql.parser.query_syntax import Groups
from derive.sql.parser.token_reader import TokenReader
from derive.sql.parser.tokens import TokenKind

if TYPE_CHECKING:
    from derive.sql.parser.expressions import ExpressionParser

GroupingSet: TypeAlias = tuple[SyntaxNode, ...]
"""What rows are grouped by at once."""

MOST_SETS = 256
_MOST_CUBED = 8


def parse_groups(reader: TokenReader, expressions: ExpressionParser) -> Groups | None:
    """Read GROUP BY, if it is next."""
    if not reader.accept_words("group", "by"):
        return None
    offset = reader.offset
    is_distinct = reader.accept_word("distinct", "all") == "distinct"
    items = reader.list_of(lambda: _sets(reader, expressions))
    if all(len(sets) == 1 for sets in items):
        return Groups(tuple(node for sets in items for node in sets[0]))
    count = 1
    for sets in items:
        count *= len(sets)
    if count > MOST_SETS:
        raise SqlError("54000", f"too many grouping sets present (maximum {MOST_SETS})", offset=offset)
    joined = [tuple(chain.from_iterable(choice)) for choice in product(*items)]
    return Groups(_nodes(joined), tuple(joined), is_distinct)


def _nodes(sets: Sequence[GroupingSet]) -> GroupingSet:
    """What any of some sets groups by, each once."""
    return tuple(dict.fromkeys(node for nodes in sets for node in nodes))


def _sets(reader: TokenReader, expressions: ExpressionParser) -> Sequence[GroupingSet]:
    """One item of GROUP BY as the sets that it stands for."""
    behind = reader.ahead()
    is_call = behind.kind is TokenKind.SYMBOL and behind.value == "("
    if reader.accept_words("grouping", "sets"):
        listed = reader.in_parentheses(lambda: _sets(reader, expressions))
        return [nodes for sets in listed for nodes in sets]
    if is_call and reader.is_word("rollup", "cube"):
        offset, word = reader.offset, reader.next().value
        elements = reader.in_parentheses(lambda: _element(reader, expressions))
        if word == "rollup":
            return [_joined(elements[:count]) for count in range(len(elements), -1, -1)]
        if len(elements) > _MOST_CUBED:
            raise SqlError("54011", f"CUBE is limited to {_MOST_CUBED} elements", offset=offset)
        counts = range(len(elements), -1, -1)
        return [_joined(chosen) for count in counts for chosen in combinations(elements, count)]
    return [_element(reader, expressions)]


def _joined(elements: Sequence[GroupingSet]) -> GroupingSet:
    return tuple(chain.from_iterable(elements))


def _element(reader: TokenReader, expressions: ExpressionParser) -> GroupingSet:
    """An expression, several in parentheses, or `()`, which is nothing."""
    if reader.is_symbol("(") and reader.ahead().value == ")":
        reader.next()
        reader.next()
        return ()
    node = expressions.parse()
    return node.items if isinstance(node, RowValue) else (node,)
