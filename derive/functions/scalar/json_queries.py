"""`JSON_EXISTS`, `JSON_VALUE`, `JSON_QUERY`, the items of `JSON_TABLE`, and the constructors of SQL/JSON.

The functions have a variant for each type of RETURNING, because a value that the type does not take is an error that
`ON ERROR` replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from derive.algebra.types import ARRAYS, CATALOG_TYPES, Datum, Type
from derive.errors import SqlError
from derive.functions.function import Function, Functions, SqlForm, registered_name, word_of
from derive.functions.scalar import casts
from derive.functions.scalar.json import json_datum_of, json_form, key_form
from derive.functions.scalar.json_paths import has_item_at, is_suppressible, items_at
from derive.functions.types.array import MOST_DIMENSIONS, array_of, elements_of, sizes_of
from derive.functions.types.array_literal import too_many_dimensions
from derive.functions.types.jsonb import Json, jsonb_datum, parsed_json
from derive.functions.types.type_info import datum_of_text

FUNCTIONS = Functions()

_J, _T, _I, _B = Type.JSONB, Type.TEXT, Type.INTEGER, Type.BOOLEAN
RETURNED = frozenset(Type) - CATALOG_TYPES - {Type.UNKNOWN, Type.MZ_TIMESTAMP}
"""Types of RETURNING."""


def value_function(name: str, kind: Type) -> str:
    """Return the function of `JSON_VALUE` or `JSON_QUERY` with a type of its result.

    Its arguments are document, path, variables, options (wrapper, quotes, ON EMPTY and ON ERROR, separated by commas),
    the function that fits a value to a type modifier (empty for none), the two numbers of the modifier, and the values
    of DEFAULT ON EMPTY and DEFAULT ON ERROR.
    """
    return f"{name}_{word_of(kind)}"


@cache
def _fitting() -> dict[str, Callable[..., Datum]]:
    return {function.name: function.python for function in casts.FUNCTIONS if function.python}


def _exists(document: Datum, path: Datum, variables: Datum, on_error: Datum) -> Datum:
    if document is None or path is None:
        return None
    try:
        return int(has_item_at(parsed_json(str(document)), str(path), parsed_json(str(variables))))
    except SqlError as error:
        if on_error == "error" or not is_suppressible(error):
            raise
        return {"true": 1, "false": 0}.get(str(on_error))


_Select = Callable[[list[Json], list[str]], Json]
"""A function that chooses the result from the items of a path, by the wrapper and the quotes."""


def _single_value(items: list[Json], _: list[str]) -> Json:
    if len(items) > 1:
        raise SqlError("22034", "JSON path expression in JSON_VALUE must return single scalar item")
    if isinstance(items[0], list | dict):
        raise SqlError("2203F", "JSON path expression in JSON_VALUE must return single scalar item")
    return items[0]


def _wrapped(items: list[Json], options: list[str]) -> Json:
    wrapper = options[0]
    if wrapper == "unconditional" or (wrapper and len(items) > 1):
        return items
    if len(items) > 1:
        hint = "Use the WITH WRAPPER clause to wrap SQL/JSON items into an array."
        message = "JSON path expression in JSON_QUERY must return single item when no wrapper is requested"
        raise SqlError("22034", message, hint=hint)
    return items[0]


def _of_scalar(kind: Type, item: Json, _: bool) -> Datum:
    """Return a scalar as a value of a type, as its text would be read."""
    if kind is Type.JSONB:
        return jsonb_datum(item)
    return None if item is None else datum_of_text(kind, _plain_text(item))


def _of_document(kind: Type, item: Json, omits_quotes: bool) -> Datum:
    """Return a document as a value of a type."""
    if kind is Type.JSONB:
        is_text = omits_quotes and isinstance(item, str)
        return jsonb_datum(parsed_json(item)) if is_text else jsonb_datum(item)
    if item is None:
        return None
    if kind.element is not None:
        return _array_of_document(kind.element, item)
    if kind is Type.TEXT and not omits_quotes:
        return jsonb_datum(item)
    return datum_of_text(kind, _plain_text(item))


def _array_of_document(kind: Type, item: Json) -> bytes:
    """Return a document as an array, whose first elements show the number of dimensions."""
    depth, part = 0, item
    while isinstance(part, list):
        depth, part = depth + 1, part[0] if part else None
    if not depth:
        raise SqlError("22P02", "expected JSON array")
    if depth > MOST_DIMENSIONS:
        raise too_many_dimensions(depth)
    parts, sizes = [item], list[int]()
    for _ in range(depth):
        if not all(isinstance(part, list) for part in parts):
            raise SqlError("22P02", "expected JSON array")
        counts = {len(part) for part in parts if isinstance(part, list)}
        if len(counts) > 1:
            detail = "Multidimensional arrays must have sub-arrays with matching dimensions."
            raise SqlError("22P02", "malformed JSON array", detail=detail)
        sizes += counts
        parts = [one for part in parts if isinstance(part, list) for one in part]
    elements = [_of_document(kind, part, True) for part in parts]
    return array_of(kind, elements, tuple(sizes) if parts else ())


def _plain_text(item: Json) -> str:
    return item if isinstance(item, str) else jsonb_datum(item)


def _evaluated(kind: Type, select: _Select, convert: Callable[[Type, Json, bool], Datum]) -> Callable[..., Datum]:
    def value(document: Datum, path: Datum, variables: Datum, options: Datum, fit: Datum, *more: Any) -> Datum:
        if document is None or path is None:
            return None
        *modifier, on_empty, on_error = more
        parts = str(options).split(",")
        try:
            items = items_at(parsed_json(str(document)), str(path), parsed_json(str(variables)))
            item = select(items, parts) if items else None
        except SqlError as error:
            if parts[3] == "error" or not (is_suppressible(error) or error.sqlstate in {"22034", "2203F"}):
                raise
            return _replacement(kind, parts[3], on_error, convert)
        if not items:
            if parts[2] == "error":
                raise SqlError("22035", "no SQL/JSON item found for specified path")
            return _replacement(kind, parts[2], on_empty, convert)
        try:
            datum = convert(kind, item, parts[1] == "omit")
            return _fitting()[str(fit)](datum, *modifier[: 2 if "numeric" in str(fit) else 1]) if fit else datum
        except SqlError as error:
            if parts[3] == "error" or not error.sqlstate.startswith("22"):
                raise
            return _replacement(kind, parts[3], on_error, convert)

    return value


def _replacement(kind: Type, behavior: str, default: Datum, convert: Callable[[Type, Json, bool], Datum]) -> Datum:
    if behavior == "default":
        return default
    if behavior.startswith("empty"):
        return convert(kind, [] if behavior == "empty array" else {}, False)
    return None


def _items(document: Json, path: str, variables: Json, raises: bool) -> tuple[str, ...]:
    """Return the items of a path, none if it cannot be evaluated."""
    try:
        return tuple(map(jsonb_datum, items_at(document, path, variables)))
    except SqlError as error:
        if raises or not is_suppressible(error):
            raise
        return ()


def _add_queries() -> None:
    FUNCTIONS.define("json_table[items]", (_J, _T, _J, _B), Type.JSONB_ARRAY, word="json_table_items")(_items)
    FUNCTIONS.add(Function("json_exists", "json_exists[]", (_J, _T, _J, _T), _B, _exists))
    for kind in RETURNED:
        arguments = (_J, _T, _J, _T, _T, _I, _I, kind, kind)
        for name, select, convert in (
            ("json_value", _single_value, _of_scalar),
            ("json_query", _wrapped, _of_document),
        ):
            if name == "json_value" and kind.element is not None:
                continue
            function = _evaluated(kind, select, convert)
            FUNCTIONS.add(Function(value_function(name, kind), f"{name}[]", arguments, kind, function))


def _object(sqlstate: str, *, is_unique: bool, is_strict: bool) -> Callable[..., Datum]:
    def made(*members: Datum) -> str:
        keys = list(map(str, members[::2]))
        for index, key in enumerate(members[::2]):
            if key is None and sqlstate == "22023":
                raise SqlError(sqlstate, f"argument {2 * index + 1}: key must not be null")
            if key is None:
                raise SqlError(sqlstate, "null value not allowed for object key")
        if is_unique and len(set(keys)) < len(keys):
            raise SqlError("22030", "duplicate JSON object key value")
        pairs = zip(keys, members[1::2], strict=True)
        kept = {key: value for key, value in pairs if value is not None or not is_strict}
        return jsonb_datum({key: None if value is None else parsed_json(str(value)) for key, value in kept.items()})

    return made


def _object_form(name: str) -> SqlForm:
    def form(arguments: Sequence[str], kinds: Sequence[Type]) -> str:
        parts = [
            (json_form if index % 2 else key_form)(argument, kind)
            for index, (argument, kind) in enumerate(zip(arguments, kinds, strict=True))
        ]
        return f"{registered_name(name)}({', '.join(parts)})"

    return form


def _strict_array(*elements: Datum) -> str:
    return f"[{', '.join(str(element) for element in elements if element is not None)}]"


def _strict_array_form(arguments: Sequence[str], kinds: Sequence[Type]) -> str:
    elements = [json_form(argument, kind) for argument, kind in zip(arguments, kinds, strict=True)]
    return f"{registered_name('json_array_strict')}({', '.join(elements)})"


def _of_rows(kind: Type) -> Callable[[Datum], Datum]:
    """Return the function of the array of a query's rows; without rows, the result is NULL."""

    def listed(array: Datum) -> Datum:
        elements = elements_of(kind, array) if isinstance(array, bytes) else ()
        if not elements:
            return None
        if kind.array is not None and isinstance(array, bytes) and sizes_of(kind, array):
            return json_datum_of(kind.array, array)
        return _strict_array(*(None if datum is None else json_datum_of(kind, datum) for datum in elements))

    return listed


def _unique_document(text: str) -> str:
    from json import JSONDecoder

    def members(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise SqlError("22030", "duplicate JSON object key value")
        return dict(pairs)

    datum = jsonb_datum(parsed_json(text))
    JSONDecoder(object_pairs_hook=members).decode(text)
    return datum


def _add_constructors() -> None:
    for prefix, sqlstate in (("json", "22004"), ("jsonb", "22023")):
        for options in ("", "strict", "unique", "unique strict"):
            name = f"{prefix}_object_{options.replace(' ', '_') or 'plain'}"
            symbol = f"{prefix}_object[{options}]"
            made = _object(sqlstate, is_unique="unique" in options, is_strict="strict" in options)
            FUNCTIONS.add(Function(name, symbol, (None,), _J, made, _object_form(name), is_variadic=True))
            FUNCTIONS.native(symbol, (), _J, lambda *_: "'{}'", word=f"{name}_empty")
    FUNCTIONS.add(
        Function(
            "json_array_strict", "json_array[strict]", (None,), _J, _strict_array, _strict_array_form, is_variadic=True
        )
    )
    FUNCTIONS.native("json_array[strict]", (), _J, lambda *_: "'[]'", word="json_array_strict_empty")
    for kind in ARRAYS:
        assert kind.element is not None
        name = f"json_array_of_query_{word_of(kind)}"
        FUNCTIONS.add(Function(name, "json_array[of query]", (kind,), _J, _of_rows(kind.element)))
    FUNCTIONS.define("json[unique]", (_T,), _J, word="json_unique")(_unique_document)


_add_queries()
_add_constructors()
