"""Functions of `jsonb`: access, containment, changes, paths, and JSON made of values of other types."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias

from derive.algebra.types import ARRAYS, Datum, Type
from derive.errors import SqlError
from derive.functions.function import (
    Function,
    Functions,
    SqlForm,
    are_short,
    name_of,
    over_data,
    registered_name,
    word_of,
)
from derive.functions.scalar.casts import json_kind
from derive.functions.scalar.text import text_form
from derive.functions.types.array import Nested, elements_of, nested_values, sizes_of
from derive.functions.types.encodings import UTF8
from derive.functions.types.jsonb import Json, jsonb_datum, parsed_json
from derive.functions.types.type_info import text_of

Path: TypeAlias = tuple[str | None, ...]
"""Steps; None for NULL."""

_INTEGER = re.compile(r"\s*[+-]?\d{1,18}", re.ASCII)


def _steps(path: Path) -> tuple[str, ...]:
    """Return the steps of a path at which a value is changed; a NULL step is an error."""
    steps: list[str] = []
    for position, step in enumerate(path, start=1):
        if step is None:
            raise SqlError("22004", f"path element at position {position} is null")
        steps.append(step)
    return tuple(steps)


def step_into(container: Json, step: str) -> str | int | None:
    """Return the key or index of a path's step in a value; None if the value has no such part."""
    if isinstance(container, dict):
        return step
    if isinstance(container, list) and _INTEGER.fullmatch(step):
        return int(step)
    return None


def _index(step: str, position: int) -> int:
    if _INTEGER.fullmatch(step) is None or not -1 << 31 <= int(step) < 1 << 31:
        raise SqlError("22P02", f'path element at position {position} is not an integer: "{step}"')
    return int(step)


def _refuse_scalar(value: Json, what: str) -> None:
    if not isinstance(value, dict | list):
        raise SqlError("22023", f"cannot {what} in scalar" if what == "set path" else f"cannot {what} path in scalar")


def removed(value: Json, path: Path) -> Json:
    """Return a value without the part at a path.

    Raises:
        SqlError: 22023, it is a scalar; 22P02, a step into an array is no integer; 22004, a step is NULL.
    """
    _refuse_scalar(value, "delete")
    if not value:
        return value
    steps = _steps(path)
    return _removed(value, steps, 1) if steps else value


def _removed(value: Json, path: tuple[str, ...], position: int) -> Json:
    step, rest = path[0], path[1:]
    if isinstance(value, dict):
        if step not in value:
            return value
        members = {key: member for key, member in value.items() if key != step}
        return {**members, step: _removed(value[step], rest, position + 1)} if rest else members
    if not isinstance(value, list):
        return value
    index = _index(step, position)
    index += len(value) if index < 0 else 0
    if not 0 <= index < len(value):
        return value
    between = [_removed(value[index], rest, position + 1)] if rest else []
    return [*value[:index], *between, *value[index + 1 :]]


def changed(value: Json, path: Path, new: Json, *, creates: bool) -> Json:
    """Return a value with the part at a path replaced; with `creates`, the last step may be missing.

    Raises:
        SqlError: 22023, it is a scalar; 22P02, a step into an array is no integer; 22004, a step is NULL.
    """
    _refuse_scalar(value, "set path")
    steps = _steps(path)
    return _changed(value, steps, new, creates, 1) if steps else value


def _changed(value: Json, path: tuple[str, ...], new: Json, creates: bool, position: int) -> Json:
    step, rest = path[0], path[1:]
    if isinstance(value, dict):
        if rest:
            return {**value, step: _changed(value[step], rest, new, creates, position + 1)} if step in value else value
        return {**value, step: new} if creates or step in value else value
    if not isinstance(value, list):
        return value
    index = _index(step, position)
    at = index + len(value) if index < 0 else index
    if not 0 <= at < len(value):
        if rest or not creates:
            return value
        return [new, *value] if index < 0 else [*value, new]
    member = _changed(value[at], rest, new, creates, position + 1) if rest else new
    return [*value[:at], member, *value[at + 1 :]]


def inserted(value: Json, path: Path, new: Json, *, is_after: bool) -> Json:
    """Return a value with a second value inserted before or after an element, or for a missing key.

    Raises:
        SqlError: 22023, it is a scalar, or the key exists; 22P02, a step into an array is no integer; 22004, a step is
            NULL.
    """
    _refuse_scalar(value, "set path")
    steps = _steps(path)
    return _inserted(value, steps, new, is_after, 1) if steps else value


def _inserted(value: Json, path: tuple[str, ...], new: Json, is_after: bool, position: int) -> Json:
    step, rest = path[0], path[1:]
    if isinstance(value, dict):
        if rest and step in value:
            return {**value, step: _inserted(value[step], rest, new, is_after, position + 1)}
        if step in value:
            hint = "Try using the function jsonb_set to replace key value."
            raise SqlError("22023", "cannot replace existing key", hint=hint)
        return value if rest else {**value, step: new}
    if not isinstance(value, list):
        return value
    index = _index(step, position)
    at = index + len(value) if index < 0 else index
    if rest and 0 <= at < len(value):
        return [*value[:at], _inserted(value[at], rest, new, is_after, position + 1), *value[at + 1 :]]
    if rest:
        return value
    at = min(max(at + is_after, 0), len(value)) if at >= 0 else 0
    return [*value[:at], new, *value[at:]]


FUNCTIONS = Functions()

_J, _T, _I, _B = Type.JSONB, Type.TEXT, Type.INTEGER, Type.BOOLEAN
_P = Type.TEXT_ARRAY
_MISSING: Json = object()


def text_of_json(value: Json) -> str | None:
    """Return a JSON value as text: the contents of a string, NULL for null."""
    if value is None or isinstance(value, str):
        return value
    return jsonb_datum(value)


def _member(container: Json, step: str | int) -> Json:
    if isinstance(container, dict) and isinstance(step, str):
        return container.get(step, _MISSING)
    if isinstance(container, list) and isinstance(step, int):
        return container[step] if -len(container) <= step < len(container) else _MISSING
    return _MISSING


def _member_of_any(container: Json, step: str | int) -> Json:
    """Return a member as JSON operators do: a scalar is treated as an array with that element."""
    if step in {0, -1} and not isinstance(container, dict | list):
        return container
    return _member(container, step)


def _get(container: Json, step: str | int) -> str | None:
    value = _member_of_any(container, step)
    return None if value is _MISSING else jsonb_datum(value)


def _get_text(container: Json, step: str | int) -> str | None:
    value = _member_of_any(container, step)
    return None if value is _MISSING else text_of_json(value)


def _at_path(value: Json, path: Sequence[str | None]) -> Json:
    for step in path:
        if step is None:
            return _MISSING
        key = step_into(value, step)
        value = _MISSING if key is None else _member(value, key)
        if value is _MISSING:
            return _MISSING
    return value


def _extract(value: Json, path: Sequence[str | None]) -> str | None:
    reached = _at_path(value, path)
    return None if reached is _MISSING else jsonb_datum(reached)


def _extract_text(value: Json, path: Sequence[str | None]) -> str | None:
    reached = _at_path(value, path)
    return None if reached is _MISSING else text_of_json(reached)


def _is_same(left: Json, right: Json) -> bool:
    return jsonb_datum(left) == jsonb_datum(right)


def contains(whole_value: Json, part: Json, *, is_outermost: bool = True) -> bool:
    """Return whether a JSON value contains a second value at the same places; array elements may be anywhere."""
    if isinstance(whole_value, dict) and isinstance(part, dict):
        return all(
            key in whole_value and contains(whole_value[key], value, is_outermost=False) for key, value in part.items()
        )
    if isinstance(whole_value, list) and isinstance(part, list):
        return all(any(contains(own, element, is_outermost=False) for own in whole_value) for element in part)
    if isinstance(whole_value, list) and is_outermost and not isinstance(part, dict):
        return any(_is_same(own, part) for own in whole_value)
    if isinstance(whole_value, dict | list) or isinstance(part, dict | list):
        return False
    return _is_same(whole_value, part)


def _exists(container: Json, key: str) -> bool:
    if isinstance(container, str):
        return container == key
    return isinstance(container, dict | list) and any(own == key for own in container if isinstance(own, str))


def _any_exists(container: Json, keys: Sequence[str | None]) -> bool:
    return any(key is not None and _exists(container, key) for key in keys)


def _all_exist(container: Json, keys: Sequence[str | None]) -> bool:
    return all(key is None or _exists(container, key) for key in keys)


def _concatenated(left: Json, right: Json) -> str:
    if isinstance(left, dict) and isinstance(right, dict):
        return jsonb_datum(left | right)
    elements = [value if isinstance(value, list) else [value] for value in (left, right)]
    return jsonb_datum(elements[0] + elements[1])


def _without_key(container: Json, key: str) -> str:
    if isinstance(container, dict):
        return jsonb_datum({own: value for own, value in container.items() if own != key})
    if not isinstance(container, list):
        raise SqlError("22023", "cannot delete from scalar")
    return jsonb_datum([element for element in container if element != key or not isinstance(element, str)])


def _without_index(container: Json, index: int) -> str:
    if isinstance(container, dict):
        raise SqlError("22023", "cannot delete from object using integer index")
    if not isinstance(container, list):
        raise SqlError("22023", "cannot delete from scalar")
    at = index if index >= 0 else index + len(container)
    return jsonb_datum([element for own, element in enumerate(container) if own != at])


def _kind(value: Json) -> str:
    kind = json_kind(value)
    return "number" if kind == "numeric" else kind


def _array_length(value: Json) -> int:
    if not isinstance(value, list):
        what = "a non-array" if isinstance(value, dict) else "a scalar"
        raise SqlError("22023", f"cannot get array length of {what}")
    return len(value)


def _without_nulls(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _without_nulls(member) for key, member in value.items() if member is not None}
    return [_without_nulls(element) for element in value] if isinstance(value, list) else value


def _pretty(value: Json, indent: int = 0) -> str:
    if not isinstance(value, dict | list):
        return jsonb_datum(value)
    margin = " " * (indent + 4)
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
        lines = [f"{margin}{jsonb_datum(key)}: {_pretty(value[key], indent + 4)}" for key in keys]
    else:
        lines = [f"{margin}{_pretty(element, indent + 4)}" for element in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return "\n".join([begin, ",\n".join(lines), " " * indent + end] if lines else [begin, " " * indent + end])


def json_datum_of(kind: Type, datum: Datum) -> str:
    """Return a datum as JSON, as `to_jsonb` does; NULL becomes null."""
    if datum is None:
        return "null"
    element = kind.element
    if element and isinstance(datum, bytes):
        return _listed(nested_values(element, datum, partial(json_datum_of, element)))
    return str(datum) if kind is Type.JSONB else _json_of_scalar(kind, datum)


def _listed(part: Nested) -> str:
    """Return lists of lists of JSON as JSON."""
    return f"[{', '.join(map(_listed, part))}]" if isinstance(part, list) else "null" if part is None else part


def _json_of_scalar(kind: Type, datum: Datum) -> str:
    if kind is Type.BOOLEAN:
        return "true" if datum else "false"
    if kind in {Type.SMALLINT, Type.INTEGER, Type.BIGINT, Type.MZ_TIMESTAMP}:
        return str(datum)
    text = text_of(kind, datum)
    if kind in {Type.REAL, Type.DOUBLE, Type.NUMERIC}:
        if text[-1].isdigit():
            return text if kind is Type.NUMERIC else jsonb_datum(Decimal(text))
    elif kind in {Type.TIMESTAMP, Type.TIMESTAMPTZ}:
        text = re.sub(r"^(\S+) (\S+?)(\+00)?( BC)?$", _rfc3339, text)
    return jsonb_datum(text)


def _rfc3339(match: re.Match[str]) -> str:
    return f"{match[1]}T{match[2]}{'+00:00' if match[3] else ''}{match[4] or ''}"


def json_form(argument: str, kind: Type) -> str:
    """Return SQL of a value as JSON; NULL stays NULL."""
    return argument if kind is Type.JSONB else f"{registered_name(f'to_jsonb_{word_of(kind)}')}({argument})"


def key_form(argument: str, kind: Type) -> str:
    """Return SQL of a value as the key of an object."""
    if kind is Type.JSONB:
        return "flow_fail('22023', 'key value must be scalar, not array, composite, or json')"
    if kind is Type.BOOLEAN:
        return f"CASE {argument} WHEN 1 THEN 'true' WHEN 0 THEN 'false' END"
    return text_form(argument, kind)


def _add_conversions() -> None:
    for kind in Type:
        if kind not in {Type.JSONB, Type.UNKNOWN}:
            FUNCTIONS.add(
                Function(f"to_jsonb_{word_of(kind)}", "to_jsonb", (kind,), _J, _converting(kind), can_fail=kind is _T)
            )
    for symbol in ("to_jsonb", "to_json"):
        form: SqlForm = lambda arguments, kinds: json_form(arguments[0], kinds[0])  # noqa: E731
        if symbol == "to_jsonb":
            FUNCTIONS.native(symbol, (_J,), _J, form)
        else:
            FUNCTIONS.add(Function(symbol, symbol, (None,), _J, None, form))


def _converting(kind: Type) -> Callable[[Datum], Datum]:
    return lambda datum: None if datum is None else json_datum_of(kind, datum)


def _built_array(*elements: Datum) -> str:
    return "[" + ", ".join("null" if element is None else str(element) for element in elements) + "]"


def _built_object(*members: Datum) -> str:
    if len(members) % 2:
        hint = "The arguments of jsonb_build_object() must consist of alternating keys and values."
        raise SqlError("22023", "argument list must have even number of elements", hint=hint)
    value: dict[str, Json] = {}
    for index in range(0, len(members), 2):
        key, member = members[index : index + 2]
        if key is None:
            raise SqlError("22023", f"argument {index + 1}: key must not be null")
        value[str(key)] = None if member is None else parsed_json(str(member))
    return jsonb_datum(value)


def _array_form(arguments: Sequence[str], kinds: Sequence[Type]) -> str:
    elements = [json_form(argument, kind) for argument, kind in zip(arguments, kinds, strict=True)]
    return f"{registered_name('jsonb_build_array')}({', '.join(elements)})"


def _object_form(arguments: Sequence[str], kinds: Sequence[Type]) -> str:
    members: list[str] = []
    for index, (argument, kind) in enumerate(zip(arguments, kinds, strict=True)):
        if index % 2:
            members.append(json_form(argument, kind))
        else:
            members.append(key_form(argument, kind))
    return f"{registered_name('jsonb_build_object')}({', '.join(members)})"


def _add_building() -> None:
    for prefix in ("jsonb", "json"):
        for name, python, form in (
            ("build_array", _built_array, _array_form),
            ("build_object", _built_object, _object_form),
        ):
            symbol = f"{prefix}_{name}"
            FUNCTIONS.add(Function(symbol, symbol, (None,), _J, python, form, is_variadic=True))
            empty = _constant(python())
            FUNCTIONS.add(Function(f"{symbol}_empty", symbol, (), _J, None, empty, can_fail=False))


def _constant(text: str) -> SqlForm:
    return lambda *_: f"'{text}'"


_NAME = re.compile(r"'[A-Za-z_][A-Za-z0-9_]*'")


def _get_text_form(arguments: Sequence[str], _: Sequence[Type]) -> str:
    """Return SQL of SQLite's own access if the member is a string, and of the function in Python otherwise."""
    document, key = arguments
    call = f"{registered_name('get_text_jsonb_text')}({document}, {key})"
    if not _NAME.fullmatch(key) or not are_short([document]):
        return call
    path = f"'$.{key[1:-1]}'"
    value = f"json_extract({document}, {path})"
    number = f"iif(typeof({value}) = 'integer', CAST({value} AS TEXT), {call})"
    return f"CASE json_type({document}, {path}) WHEN 'text' THEN {value} WHEN 'integer' THEN {number} ELSE {call} END"


def _add_access() -> None:
    define = FUNCTIONS.define
    for kind in (_T, _I):
        define("->", (_J, kind), _J, word="get", can_fail=False)(_get)
        form = _get_text_form if kind is _T else None
        define("->>", (_J, kind), _T, word="get_text", sql=form, can_fail=False)(_get_text)
    define("#>", (_J, _P), _J, word="get_path")(_extract)
    define("#>>", (_J, _P), _T, word="get_path_text")(_extract_text)
    for prefix in ("jsonb", "json"):
        define(f"{prefix}_extract_path", (_J, _T), _J, is_variadic=True, can_fail=False)(
            lambda value, *path: _extract(value, path)
        )
        define(f"{prefix}_extract_path_text", (_J, _T), _T, is_variadic=True, can_fail=False)(
            lambda value, *path: _extract_text(value, path)
        )
        define(f"{prefix}_typeof", (_J,), _T, can_fail=False)(_kind)
        define(f"{prefix}_array_length", (_J,), _I)(_array_length)
        define(f"{prefix}_strip_nulls", (_J,), _J)(lambda value: jsonb_datum(_without_nulls(value)))
    define("jsonb_pretty", (_J,), _T)(_pretty)
    define("@>", (_J, _J), _B, word="contains", can_fail=False)(contains)
    define("<@", (_J, _J), _B, word="is_contained", can_fail=False)(lambda part, value: contains(value, part))
    define("?", (_J, _T), _B, word="has_key", can_fail=False)(_exists)
    define("?|", (_J, _P), _B, word="has_any_key")(_any_exists)
    define("?&", (_J, _P), _B, word="has_all_keys")(_all_exist)


def _of_one_dimension(python: Callable[..., Datum]) -> Callable[..., Datum]:
    """Return a function that refuses arrays of several dimensions; its other arguments are no bytes."""

    def call(*data: Any) -> Datum:
        if any(isinstance(datum, bytes) and sizes_of(_T, datum) for datum in data):
            raise _wrong_subscripts()
        return python(*data)

    return call


def _wrong_subscripts() -> SqlError:
    return SqlError("2202E", "wrong number of array subscripts", hint="Give an array of one dimension.")


def _define_of_path(
    symbol: str, arguments: Sequence[Type], python: Callable[..., str], *, word: str | None = None
) -> None:
    """Define a function of values with an array of one dimension, such as a path."""
    of_data = _of_one_dimension(over_data(python, arguments, _J))
    FUNCTIONS.add(Function(name_of(symbol, word or symbol, arguments), symbol, tuple(arguments), _J, of_data))


def _add_changes() -> None:
    define = FUNCTIONS.define
    define("||", (_J, _J), _J, word="concatenate")(_concatenated)
    define("-", (_J, _T), _J, word="remove")(_without_key)
    define("-", (_J, _I), _J, word="remove")(_without_index)
    _define_of_path("#-", (_J, _P), lambda value, path: jsonb_datum(removed(value, path)), word="remove_path")

    def put(value: Json, path: Path, new: Json, creates: bool = True) -> str:
        return jsonb_datum(changed(value, path, new, creates=creates))

    def insert(value: Json, path: Path, new: Json, is_after: bool = False) -> str:
        return jsonb_datum(inserted(value, path, new, is_after=is_after))

    for symbol, function in (("jsonb_set", put), ("jsonb_insert", insert)):
        _define_of_path(symbol, (_J, _P, _J), function)
        _define_of_path(symbol, (_J, _P, _J, _B), function)


def _object_of_array(datum: bytes | None) -> Datum:
    """Return the object of keys and values in turn, or of the rows of a key and a value each."""
    if datum is None:
        return None
    sizes = sizes_of(_T, datum)
    if len(sizes) > 2:
        raise _wrong_subscripts()
    if sizes and sizes[1] != 2:
        raise SqlError("2202E", "array must have two columns")
    return _object_of_texts([None if text is None else str(text) for text in elements_of(_T, datum)])


def _object_of_texts(texts: Sequence[str | None]) -> str:
    if len(texts) % 2:
        raise SqlError("2202E", "array must have even number of elements")
    return _object_of_pairs(texts[::2], texts[1::2])


def _object_of_pairs(keys: Sequence[str | None], values: Sequence[str | None]) -> str:
    if len(keys) != len(values):
        raise SqlError("2202E", "mismatched array dimensions")
    if None in keys:
        raise SqlError("22004", "null value not allowed for object key")
    return jsonb_datum(dict(zip(keys, values, strict=True)))


def _without_any_nulls(value: Json, in_arrays: bool) -> Json:
    if isinstance(value, dict):
        return {key: _without_any_nulls(member, in_arrays) for key, member in value.items() if member is not None}
    if not isinstance(value, list):
        return value
    return [_without_any_nulls(element, in_arrays) for element in value if element is not None or not in_arrays]


def _without_keys(container: Json, keys: Sequence[str | None]) -> str:
    if not isinstance(container, dict | list):
        raise SqlError("22023", "cannot delete from scalar")
    if isinstance(container, dict):
        return jsonb_datum({own: value for own, value in container.items() if own not in keys})
    return jsonb_datum([element for element in container if not (isinstance(element, str) and element in keys)])


_SET_LAX = ("use_json_null", "raise_exception", "delete_key", "return_target")
"""Treatments of NULL by `jsonb_set_lax`."""


def _set_lax(
    value: Datum, path: bytes | None, new: Datum, creates: Datum = True, treatment: str | None = _SET_LAX[0]
) -> Datum:
    if value is None or path is None or creates is None:
        return None
    if treatment is None or (new is None and treatment not in _SET_LAX):
        hint = f"The treatments of null are {', '.join(_SET_LAX)}."
        raise SqlError("22023", "invalid treatment of null in jsonb_set_lax", hint=hint)
    if new is None and treatment == "raise_exception":
        detail = 'Exception was raised because null_value_treatment is "raise_exception".'
        raise SqlError("22004", "JSON value must not be null", detail=detail)
    if new is None and treatment == "return_target":
        return value
    steps: Path = tuple(None if step is None else str(step) for step in elements_of(_T, path))
    document = parsed_json(str(value))
    if new is None and treatment == "delete_key":
        return jsonb_datum(removed(document, steps))
    part = None if new is None else parsed_json(str(new))
    return jsonb_datum(changed(document, steps, part, creates=bool(creates)))


def _add_older_forms() -> None:
    """Add functions that make objects of texts, and variants of other functions."""
    define = FUNCTIONS.define
    for prefix in ("jsonb", "json"):
        FUNCTIONS.add(Function(f"{prefix}_object_text_array", f"{prefix}_object", (_P,), _J, _object_of_array))
        _define_of_path(f"{prefix}_object", (_P, _P), _object_of_pairs)
        define(f"{prefix}_strip_nulls", (_J, _B), _J)(
            lambda value, in_arrays: jsonb_datum(_without_any_nulls(value, in_arrays))
        )
    _define_of_path("-", (_J, _P), _without_keys, word="remove")
    for kind in ARRAYS:
        convert = _converting(kind)
        FUNCTIONS.add(Function(f"array_to_json_{word_of(kind)}", "array_to_json", (kind,), _J, convert))
    arguments = (_J, _P, _J, _B, _T)
    for count in (3, 4, 5):
        set_lax = _of_one_dimension(_set_lax)
        FUNCTIONS.add(Function(f"jsonb_set_lax_{count}", "jsonb_set_lax", arguments[:count], _J, set_lax))


_add_older_forms()

IS_JSON = "is json"
"""The operator of `IS JSON`; its right operand is the required kind, with ` unique` for unique keys."""


def _unique(members: list[tuple[str, Json]]) -> dict[str, Json]:
    object_ = dict(members)
    if len(object_) < len(members):
        raise ValueError("duplicate key")
    return object_


def _no_number(_: str) -> int:
    return 0


def _refuse_constant(constant: str) -> Json:
    raise ValueError(constant)


_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""The escape of U+0000 in JSON text."""

_CHECKERS = {
    is_unique: json.JSONDecoder(
        parse_float=_no_number,
        parse_int=_no_number,
        parse_constant=_refuse_constant,
        object_pairs_hook=_unique if is_unique else None,
    )
    for is_unique in (False, True)
}
_JSON_KINDS: Mapping[str, Callable[[Json], bool]] = {
    "value": lambda _: True,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "scalar": lambda value: not isinstance(value, list | dict),
}


def _is_json(text: str, test: str) -> bool:
    kind, _, unique = test.partition(" ")
    try:
        value = _CHECKERS[bool(unique)].decode(text)
        if unique and _NUL.search(json.dumps(value, ensure_ascii=False).encode()):
            return False  # PostgreSQL reads the escapes of texts only if it compares keys.
    except ValueError:
        return False
    except RecursionError as exc:
        raise SqlError("54001", "stack depth limit exceeded", hint="The JSON text is nested too deeply.") from exc
    return _JSON_KINDS[kind](value)


def _is_jsonb(value: Json, test: str) -> bool:
    return _JSON_KINDS[test.partition(" ")[0]](value)


def _is_json_in_bytes(data: bytes, test: str) -> bool:
    return _is_json(UTF8.decode(data), test)


def _add_tests() -> None:
    for kind, function in ((_T, _is_json), (Type.BYTEA, _is_json_in_bytes), (_J, _is_jsonb)):
        FUNCTIONS.define(IS_JSON, (kind, _T), _B, word="is_json")(function)


_add_tests()
_add_conversions()
_add_building()
_add_access()
_add_changes()
