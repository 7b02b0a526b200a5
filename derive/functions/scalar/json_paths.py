"""Evaluation of SQL/JSON paths: `jsonb_path_query` and similar functions, `@?` and `@@`.

Items are generated one by one, in the order of the document, so that a lax test of existence evaluates only as much
as it needs. Numbers are computed as `numeric`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from itertools import chain
from typing import Any

from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.function import Functions
from derive.functions.regex.expression import regular_expression
from derive.functions.scalar.casts import json_kind
from derive.functions.scalar.math import numeric_remainder
from derive.functions.types.formats import boolean_of_text, integer_of_text, numeric_of_text
from derive.functions.types.jsonb import Json, jsonb_datum
from derive.functions.types.jsonpath import (
    LAST,
    Arithmetic,
    Comparison,
    Current,
    Descendants,
    Elements,
    Exists,
    Filter,
    LastIndex,
    Logic,
    Matched,
    Member,
    Method,
    Node,
    Prefixed,
    Root,
    Value,
    Variable,
    parsed_path,
)
from derive.functions.types.numbers import EXACT, double_of_text, quotient

FUNCTIONS = Functions()


_SUPPRESSED = frozenset({"22003", "22012", "22033", "22036", "22038", "22039", "2203A", "2203B", "2203C"})
"""SQLSTATEs of errors that predicates and `silent` suppress."""


def _raise_other(error: SqlError) -> None:
    """Raise an error unless predicates and `silent` suppress it."""
    if error.sqlstate not in _SUPPRESSED:
        raise error


@dataclass(frozen=True, slots=True)
class _Context:
    """The surroundings of a node.

    Attributes:
        document: the whole document.
        variables: values of variables.
        is_lax: the mode of the path.
        current: the item that a filter tests.
        ignores_structure: whether structural errors are ignored.
        size: size of the array whose subscripts are evaluated.
    """

    document: Json
    variables: dict[str, Json]
    is_lax: bool
    current: Json
    ignores_structure: bool
    size: int = 0


def _items(node: Node, context: _Context) -> Iterator[tuple[Json, bool]]:
    """Yield the items of a node, each with whether structural errors of its next step are ignored."""
    if isinstance(node, Member | Elements | Descendants | Filter | Method):
        for item, ignores in _items(node.base, context):
            yield from _step(node, item, replace(context, ignores_structure=ignores))
        return
    results = _computed(node, context) if isinstance(node, Arithmetic) else (_single(node, context),)
    for result in results:
        yield result, context.ignores_structure


def _single(node: Node, context: _Context) -> Json:
    """Return the item of a node that has one item."""
    match node:
        case Value(value):
            return value
        case Variable(name):
            if name not in context.variables:
                raise SqlError("42704", f'could not find jsonpath variable "{name}"')
            return context.variables[name]
        case Root():
            return context.document
        case Current():
            return context.current
        case LastIndex():
            return context.size - 1
    return _test(node, context)


def _step(node: Node, item: Json, context: _Context) -> Iterator[tuple[Json, bool]]:
    """Yield the items that a step finds in an item."""
    ignores = context.ignores_structure
    items: Iterator[Json]
    match node:
        case Member(_, key):
            items = _members(item, key, context)
        case Elements(_, subscripts):
            items = _elements(item, subscripts, context)
        case Descendants(_, first, last):
            items = chain([item] if first == 0 else [], _below(item, 1, first, last))
            ignores = True
        case Filter(_, predicate):
            items = (
                one for one in _unwrapped(item, context) if _test(predicate, replace(context, current=one)) is True
            )
        case Method(_, name, arguments):
            items = _called(name, arguments, item, context)
        case _:
            raise ValueError(f"{node} is not a step")
    for one in items:
        yield one, ignores


def _values(node: Node, context: _Context) -> Iterator[Json]:
    for item, _ in _items(node, context):
        yield item


def _unwrapped_values(node: Node, context: _Context) -> Iterator[Json]:
    for item in _values(node, context):
        yield from _unwrapped(item, context)


def _unwrapped(item: Json, context: _Context) -> Iterator[Json]:
    """Yield the elements of an array in lax mode; else the item."""
    if context.is_lax and isinstance(item, list):
        yield from item
    else:
        yield item


def _members(item: Json, key: str | None, context: _Context) -> Iterator[Json]:
    for one in _unwrapped(item, context):
        if isinstance(one, dict):
            if key is None:
                yield from _ordered(one)
            elif key in one:
                yield one[key]
            elif not context.ignores_structure:
                raise SqlError("2203A", f'JSON object does not contain key "{key}"')
        elif not context.ignores_structure:
            if key is None:
                raise SqlError("2203C", "jsonpath wildcard member accessor can only be applied to an object")
            raise SqlError("2203A", "jsonpath member accessor can only be applied to an object")


def _ordered(members: dict[str, Json]) -> Iterator[Json]:
    """Yield the members of an object in the order of jsonb."""
    for key in sorted(members, key=lambda key: (len(key.encode()), key.encode())):
        yield members[key]


def _elements(item: Json, subscripts: tuple[tuple[Node, Node | None], ...] | None, context: _Context) -> Iterator[Json]:
    if not isinstance(item, list) and not context.is_lax:
        if not context.ignores_structure:
            what = "wildcard array" if subscripts is None else "array"
            raise SqlError("22039", f"jsonpath {what} accessor can only be applied to an array")
        return
    array = item if isinstance(item, list) else [item]
    if subscripts is None:
        yield from array
        return
    inside = replace(context, size=len(array))
    for begin, end in subscripts:
        first = _subscript(begin, inside)
        last = first if end is None else _subscript(end, inside)
        if not context.ignores_structure and (first < 0 or first > last or last >= len(array)):
            raise SqlError("22033", "jsonpath array subscript is out of bounds")
        yield from array[max(first, 0) : max(last + 1, 0)]


def _subscript(node: Node, context: _Context) -> int:
    items = list(_values(node, context))
    if len(items) != 1 or not _is_number(items[0]):
        raise SqlError("22033", "jsonpath array subscript is not a single numeric value")
    index = int(Decimal(items[0]).to_integral_value(ROUND_DOWN))
    if not -1 << 31 <= index < 1 << 31:
        raise SqlError("22033", "jsonpath array subscript is out of integer range")
    return index


def _below(item: Json, level: int, first: int, last: int) -> Iterator[Json]:
    """Yield the items below an item at some levels, each before the items below it."""
    if level > last or not isinstance(item, dict | list):
        return
    for child in _ordered(item) if isinstance(item, dict) else item:
        is_leaf = not isinstance(child, dict | list)
        if level >= first or (first == LAST and last == LAST and is_leaf):
            yield child
        yield from _below(child, level + 1, first, last)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


_OPERATIONS: dict[str, Callable[[Decimal, Decimal], Decimal]] = {
    "+": EXACT.add,
    "-": EXACT.subtract,
    "*": EXACT.multiply,
    "/": quotient,
    "%": numeric_remainder,
}


def _computed(node: Arithmetic, context: _Context) -> Iterator[Json]:
    symbol, operands = node.symbol, node.operands
    if len(operands) == 1:
        items = list(_unwrapped_values(operands[0], context))
        for value in items:
            if not _is_number(value):
                message = f"operand of unary jsonpath operator {symbol} is not a numeric value"
                raise SqlError("2203B", message)
            yield value if symbol == "+" else -value
        return
    numbers = []
    sides = [list(_unwrapped_values(operand, context)) for operand in operands]
    for side, items in zip(("left", "right"), sides, strict=True):
        if len(items) != 1 or not _is_number(items[0]):
            message = f"{side} operand of jsonpath operator {symbol} is not a single numeric value"
            raise SqlError("22038", message)
        numbers.append(Decimal(items[0]))
    yield _OPERATIONS[symbol](*numbers)


def _called(name: str, arguments: tuple[int, ...], item: Json, context: _Context) -> Iterator[Json]:
    if name == "type":
        kind = json_kind(item)
        yield "number" if kind == "numeric" else kind
        return
    if name == "size":
        if not isinstance(item, list) and not context.is_lax and not context.ignores_structure:
            raise SqlError("22039", "jsonpath item method .size() can only be applied to an array")
        yield len(item) if isinstance(item, list) else 1
        return
    for one in _unwrapped(item, context):
        yield _of_scalar(name, arguments, one)


_ROUNDINGS: dict[str, Callable[[Decimal], Any]] = {"abs": abs, "floor": math.floor, "ceiling": math.ceil}
_INTEGERS = {"integer": Type.INTEGER, "bigint": Type.BIGINT}


def _of_scalar(name: str, arguments: tuple[int, ...], item: Json) -> Json:
    if name in _ROUNDINGS:
        if not _is_number(item):
            raise SqlError("22036", f"jsonpath item method .{name}() can only be applied to a numeric value")
        return _ROUNDINGS[name](Decimal(item))
    if name == "string":
        if isinstance(item, str):
            return item
        if isinstance(item, bool) or _is_number(item):
            return jsonb_datum(item)
    elif name == "boolean" and isinstance(item, bool):
        return item
    elif isinstance(item, str) or _is_number(item):
        try:
            return _converted(name, arguments, item)
        except SqlError as exc:
            what = f'argument "{item}" of jsonpath item method .{name}() is invalid'
            raise SqlError("22036", what) from exc
    raise SqlError("22036", f"jsonpath item method .{name}() cannot be applied to this item")


def _converted(name: str, arguments: tuple[int, ...], item: Json) -> Json:
    text = item if isinstance(item, str) else jsonb_datum(item)
    if name == "boolean":
        return bool(boolean_of_text(text)) if isinstance(item, str) else bool(integer_of_text(Type.INTEGER, text))
    if name in _INTEGERS:
        if not isinstance(item, str):
            text = str(Decimal(item).to_integral_value(ROUND_HALF_UP))
        return integer_of_text(_INTEGERS[name], text)
    if name == "double":
        number = double_of_text(text)
        if not math.isfinite(number):
            raise SqlError("22036", "NaN or Infinity is not allowed")
        return Decimal(f"{number:.15g}") if isinstance(item, str) else item
    value = numeric_of_text(text)
    if not value.is_finite():
        raise SqlError("22036", "NaN or Infinity is not allowed")
    return _fitted(value, *arguments) if arguments else value


def _fitted(number: Decimal, precision: int, scale: int = 0) -> Decimal:
    if not 1 <= precision <= 1000 or not -1000 <= scale <= 1000:
        raise SqlError("22023", "NUMERIC precision or scale is out of range")
    rounded = number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, EXACT)
    if rounded and rounded.adjusted() >= precision - scale:
        raise SqlError("22003", "numeric field overflow")
    return rounded


def _test(node: Node, context: _Context) -> bool | None:
    """Return the truth of a predicate; None if it is unknown."""
    match node:
        case Logic(symbol, operands):
            return _logic(symbol, operands, context)
        case Exists(path):
            return _exists(path, context)
        case Comparison(symbol, left, right):
            return _any_pair(left, right, context, lambda own, other: _compared(symbol, own, other), unwraps=True)
        case Prefixed(text, prefix):
            return _any_pair(text, prefix, context, _is_prefixed, unwraps=False)
        case Matched(text, expression, flags):
            compiled = regular_expression(expression, flags)
            nothing = Value(None)
            return _any_pair(
                text,
                nothing,
                context,
                lambda own, _: compiled.is_in(own) if isinstance(own, str) else None,
                unwraps=False,
            )
    raise ValueError(f"{node} is not a predicate")


def _logic(symbol: str, operands: tuple[Node, ...], context: _Context) -> bool | None:
    first = _test(operands[0], context)
    if symbol == "is unknown":
        return first is None
    if symbol == "!":
        return None if first is None else not first
    decisive = symbol == "||"
    if first is decisive:
        return decisive
    second = _test(operands[1], context)
    return first if second is not decisive and first is None else second


def _exists(path: Node, context: _Context) -> bool | None:
    try:
        return _has_item(path, context)
    except SqlError as error:
        _raise_other(error)
        return None


def _has_item(node: Node, context: _Context) -> bool:
    """Return whether a node has an item: in lax mode by the first item, in strict mode by all, for their errors."""
    if not context.is_lax:
        return bool(list(_values(node, context)))
    if isinstance(node, Arithmetic) and len(node.operands) == 1:
        operands = list(_unwrapped_values(node.operands[0], context))
        return any(map(_is_number, operands))
    return next(_values(node, context), _NOTHING) is not _NOTHING


_NOTHING: Json = object()


def _any_pair(
    left: Node, right: Node, context: _Context, test: Callable[[Json, Json], bool | None], *, unwraps: bool
) -> bool | None:
    """Return whether a pair of items passes a test; None if this is unknown.

    Lax mode stops at the first pair that passes, and strict mode at the first unknown result.
    """
    try:
        lefts = list(_unwrapped_values(left, context))
        rights = list((_unwrapped_values if unwraps else _values)(right, context))
    except SqlError as error:
        _raise_other(error)
        return None
    is_found = is_unknown = False
    for own in lefts:
        for other in rights:
            result = test(own, other)
            if result is None:
                if not context.is_lax:
                    return None
                is_unknown = True
            elif result:
                if context.is_lax:
                    return True
                is_found = True
    return True if is_found else None if is_unknown else False


def _compared(symbol: str, left: Json, right: Json) -> bool | None:
    kinds = json_kind(left), json_kind(right)
    if kinds[0] != kinds[1]:
        return symbol == "!=" if "null" in kinds else None
    if isinstance(left, dict | list):
        return None
    if isinstance(left, str):
        left, right = left.encode(), right.encode()
    elif left is None:
        left = right = 0
    tests = {
        "==": left == right,
        "!=": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }
    return bool(tests[symbol])


def _is_prefixed(text: Json, prefix: Json) -> bool | None:
    return text.startswith(prefix) if isinstance(text, str) and isinstance(prefix, str) else None


def _begun(document: Json, path: str, variables: Json) -> tuple[Node, _Context]:
    if not isinstance(variables, dict):
        raise SqlError("22023", '"vars" argument is not an object', detail="Jsonpath parameters are members of vars.")
    parsed = parsed_path(path)
    return parsed.root, _Context(document, variables, parsed.is_lax, document, parsed.is_lax)


def _found(document: Json, path: str, variables: Json, silent: bool) -> list[Json]:
    items: list[Json] = []
    try:
        items.extend(_values(*_begun(document, path, variables)))
    except SqlError as error:
        if not silent:
            raise
        _raise_other(error)
    return items


def items_at(document: Json, path: str, variables: Json) -> list[Json]:
    """Return the items of a path.

    Raises:
        SqlError: the path cannot be evaluated; see `is_suppressible`.
    """
    return list(_values(*_begun(document, path, variables)))


def has_item_at(document: Json, path: str, variables: Json) -> bool:
    """Return whether a path has an item, with the errors of `items_at`."""
    return _has_item(*_begun(document, path, variables))


def is_suppressible(error: SqlError) -> bool:
    """Return whether predicates, `silent`, and `ON ERROR` replace an error."""
    return error.sqlstate in _SUPPRESSED


def _query(document: Json, path: str, variables: Json = {}, silent: bool = False) -> tuple[str, ...]:  # noqa: B006
    return tuple(map(jsonb_datum, _found(document, path, variables, silent)))


def _query_array(document: Json, path: str, variables: Json = {}, silent: bool = False) -> str:  # noqa: B006
    return jsonb_datum(_found(document, path, variables, silent))


def _query_first(document: Json, path: str, variables: Json = {}, silent: bool = False) -> str | None:  # noqa: B006
    items = _found(document, path, variables, silent)
    return jsonb_datum(items[0]) if items else None


def _path_exists(
    document: Json,
    path: str,
    variables: Json = {},  # noqa: B006
    silent: bool = False,
) -> bool | None:
    node, context = _begun(document, path, variables)
    try:
        return _has_item(node, context)
    except SqlError as error:
        if not silent:
            raise
        _raise_other(error)
        return None


def _path_match(
    document: Json,
    path: str,
    variables: Json = {},  # noqa: B006
    silent: bool = False,
) -> bool | None:
    items = _found(document, path, variables, silent)
    if len(items) == 1 and (items[0] is None or isinstance(items[0], bool)):
        return items[0]
    if silent:
        return None
    raise SqlError("22038", "single boolean result is expected")


QUERY = "jsonb_path_query"
"""The function that returns one row for each item."""
PATH_SYMBOLS = frozenset(
    {"@?", "@@"}
    | {
        f"{name}{zone}"
        for name in (QUERY, *(f"jsonb_path_{end}" for end in ("exists", "match")))
        for zone in ("", "_tz")
    }
    | {f"{QUERY}_{end}{zone}" for end in ("array", "first") for zone in ("", "_tz")}
)
"""Functions and operators whose second argument is a path."""


def _add() -> None:
    define = FUNCTIONS.define
    document, path, flag = Type.JSONB, Type.TEXT, Type.BOOLEAN
    for zone in ("", "_tz"):
        for symbol, result, function in (
            (f"{QUERY}{zone}[]", Type.JSONB_ARRAY, _query),
            (f"{QUERY}_array{zone}", Type.JSONB, _query_array),
            (f"{QUERY}_first{zone}", Type.JSONB, _query_first),
            (f"jsonb_path_exists{zone}", Type.BOOLEAN, _path_exists),
            (f"jsonb_path_match{zone}", Type.BOOLEAN, _path_match),
        ):
            for arguments in ((document, path), (document, path, document), (document, path, document, flag)):
                define(symbol, arguments, result, word=symbol.removesuffix("[]"))(function)
    define("@?", (document, path), Type.BOOLEAN, word="path_exists")(
        lambda value, text: _path_exists(value, text, silent=True)
    )
    define("@@", (document, path), Type.BOOLEAN, word="path_match")(
        lambda value, text: _path_match(value, text, silent=True)
    )


_add()
