"""Functions and operators of arrays; each is defined once and added for every element type."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from operator import eq, ge, gt, le, lt
from typing import Any, Literal, TypeAlias

import orjson

from derive.algebra.types import ARRAYS, OF_BYTES, Datum, Type
from derive.errors import SqlError
from derive.functions.function import Function, Functions, registered_name, word_of
from derive.functions.scalar import dimensions
from derive.functions.scalar.dimensions import Array
from derive.functions.scalar.logic import rank
from derive.functions.types.array import END, Elements, array_of, elements_of, sizes_of
from derive.functions.types.type_info import INFO_OF, text_of

FUNCTIONS = Functions()

Part: TypeAlias = Literal["array", "element"] | Type
"""A type in a signature: the array type, the element type, or a fixed type."""

_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}


@dataclass(frozen=True, slots=True)
class ArraySignature:
    """The signature of an operator or function of arrays, for elements of any type.

    Attributes:
        word: prefix of the functions' names, before the element type.
        arguments: types of the arguments.
        result: type of the result.
        is_strict: whether array and element types must match without casts.
    """

    word: str
    arguments: tuple[Part, ...]
    result: Part
    is_strict: bool = False


TEXT_FUNCTIONS = Functions()
"""Functions from texts to arrays, which are resolved like all others."""

SIGNATURES: dict[str, list[ArraySignature]] = {}
"""Signatures by symbol, in the order in which they are tried."""


def actual(part: Part, element: Type) -> Type:
    """Return a type of a signature, for an element type."""
    if isinstance(part, Type):
        return part
    array = element.array
    assert array is not None
    return array if part == "array" else element


_A: Part = "array"
_E: Part = "element"
_T, _I, _B = Type.TEXT, Type.INTEGER, Type.BOOLEAN
_Python: TypeAlias = Callable[..., Any]


def _define(
    symbol: str,
    arguments: tuple[Part, ...],
    result: Part,
    *,
    word: str | None = None,
    is_strict: bool = False,
    takes_null: bool = False,
    can_fail: bool = False,
    several: Callable[[Type], _Python] | None = None,
) -> Callable[[Callable[[Type], _Python]], None]:
    """Decorate a factory of functions by element type; they take arrays as tuples, and other data unchanged.

    Functions of `several` are called if an array has several dimensions; they take and return arrays as `Array`.
    Without `several`, the decorated function takes the elements of all dimensions.
    """

    def take(make: Callable[[Type], _Python]) -> None:
        signature = ArraySignature(word or symbol, arguments, result, is_strict)
        SIGNATURES.setdefault(symbol, []).append(signature)
        for kind in ARRAYS:
            element = kind.element
            assert element is not None
            python = _over_data(make(element), arguments, result, element, takes_null=takes_null)
            if several is not None:
                python = _over_dimensions(python, several(element), arguments, element, takes_null=takes_null)
            types = tuple(actual(part, element) for part in arguments)
            name = f"{signature.word}_{word_of(element)}"
            FUNCTIONS.add(Function(name, symbol, types, actual(result, element), python, can_fail=can_fail))

    return take


def _over_dimensions(
    of_one: Callable[..., Datum], of_several: _Python, arguments: tuple[Part, ...], element: Type, *, takes_null: bool
) -> Callable[..., Datum]:
    """Return the function that distinguishes arrays of one dimension, and others."""
    places = [place for place, part in enumerate(arguments) if part == "array"]
    ends_with_elements = element is not Type.INTERVAL  # their last byte tells whether dimensions follow

    def call(*data: Any) -> Datum:
        for place in places:
            datum = data[place]
            if datum is None or (ends_with_elements and datum[-1] == END):
                continue
            if sizes_of(element, datum):
                break
        else:
            return of_one(*data)
        if not takes_null and None in data:
            return None
        values = list(data)
        for place in places:
            values[place] = None if data[place] is None else Array.of(element, data[place])
        value = of_several(*values)
        return value.datum(element) if isinstance(value, Array) else value

    return call


def _over_data(
    python: _Python, arguments: tuple[Part, ...], result: Part, element: Type, *, takes_null: bool
) -> Callable[..., Datum]:
    are_arrays = [part == "array" for part in arguments]

    def call(*data: Any) -> Datum:
        if not takes_null and None in data:
            return None
        values = [
            elements_of(element, datum) if is_array and datum is not None else datum
            for is_array, datum in zip(are_arrays, data, strict=True)
        ]
        value = python(*values)
        if value is None:
            return None
        if result == "array":
            return value.datum(element) if type(value) is Array else array_of(element, value)
        return int(value) if result is _B else value

    return call


def _same(make: _Python) -> Callable[[Type], _Python]:
    """Return a factory of one function for all element types."""
    return lambda _: make


def _concatenated(left: Elements | None, right: Elements | None) -> Elements | None:
    return right if left is None else left if right is None else left + right


def _appended(elements: Elements | None, element: Datum) -> Elements:
    return (*(elements or ()), element)


def _prepended(element: Datum, elements: Elements | None) -> Elements:
    return (element, *(elements or ()))


def _key_of(element: Type) -> Callable[[Any], Any]:
    """Return the function from data to keys by which Python sorts them as SQL does."""
    return INFO_OF[element].comparison_key or rank


def _same_of(element: Type) -> Callable[[Datum, Datum], bool]:
    """Return the function that compares data of a type; NULL equals NULL."""
    if INFO_OF[element].has_equal_data:
        return eq
    key = _key_of(element)
    return lambda left, right: left is right if left is None or right is None else key(left) == key(right)


def _replaced(element: Type) -> _Python:
    same = _same_of(element)

    def replace(elements: Elements | None, old: Datum, new: Datum) -> Elements | None:
        return None if elements is None else tuple(new if same(one, old) else one for one in elements)

    return replace


def _replaced_in_several(element: Type) -> _Python:
    replace = _replaced(element)
    return lambda own, old, new: Array(replace(own.elements, old, new), own.sizes)


def _position(element: Type) -> _Python:
    same = _same_of(element)

    def position(elements: Elements | None, desired: Datum, begin: int | None = 1) -> int | None:
        if not elements or (desired is None and None not in elements):
            return None
        if begin is None:
            raise SqlError("22004", "initial position must not be null")
        for index in range(max(begin, 1) - 1, len(elements)):
            if same(elements[index], desired):
                return index + 1
        return None

    return position


def _positions(element: Type) -> _Python:
    same = _same_of(element)

    def positions(elements: Elements | None, desired: Datum) -> bytes | None:
        if elements is None:
            return None
        return array_of(Type.INTEGER, [index for index, one in enumerate(elements, start=1) if same(one, desired)])

    return positions


def _compared_elements(element: Type) -> Callable[[Elements], Elements]:
    """Return the function from elements to data that are equal for equal elements."""
    if INFO_OF[element].has_equal_data:
        return lambda elements: elements
    key = _key_of(element)
    return lambda elements: tuple(None if one is None else key(one) for one in elements)


def _contains(element: Type) -> _Python:
    of = _compared_elements(element)
    return lambda elements, others: None not in others and set(of(others)) <= set(of(elements))


def _is_contained(element: Type) -> _Python:
    contains = _contains(element)
    return lambda elements, by: contains(by, elements)


def _overlap(element: Type) -> _Python:
    of = _compared_elements(element)

    def overlap(elements: Elements, others: Elements) -> bool:
        own = of(elements)
        return any(one is not None and one in own for one in of(others))

    return overlap


def _length(elements: Elements, dimension: int) -> int | None:
    return len(elements) if dimension == 1 and elements else None


def _subscripts(first: int, elements: Elements, dimension: int, is_reversed: int = 0) -> bytes:
    """Return the array of all subscripts of an array, which begin with `first`."""
    subscripts = range(first, first + len(elements)) if dimension == 1 else range(0)
    return array_of(Type.INTEGER, subscripts[::-1] if is_reversed else subscripts)


def _sliced(elements: Elements, begin: int | None, end: int | None) -> Elements | None:
    return elements[max(begin or 1, 1) - 1 : max(end or 0, 0)] if begin is not None and end is not None else None


def _compared_with(symbol: str, element: Type, *, is_all: bool) -> _Python:
    """Return the function of `operand operator ANY | ALL (array)`, in three-valued logic."""
    key = _key_of(element)

    def compare(operand: Datum, elements: Elements | None) -> bool | None:
        if elements is None:
            return None
        if not elements:
            return is_all
        if operand is None:
            return None
        if symbol in {"=", "<>"}:
            same = _same_of(element)
            outcomes = {same(operand, one) is (symbol == "=") for one in elements if one is not None}
        else:
            ranked, holds = key(operand), _COMPARED[symbol]
            outcomes = {holds(ranked, key(one)) for one in elements if one is not None}
        if (not is_all) in outcomes:
            return not is_all
        return None if None in elements else is_all

    return compare


def _joined(element: Type) -> _Python:
    def join(elements: Elements | None, separator: str | None, null: str | None = None) -> str | None:
        if elements is None or separator is None:
            return None
        texts = [null if one is None else text_of(element, one) for one in elements]
        return separator.join(text for text in texts if text is not None)

    return join


def _trimmed(elements: Elements, count: int) -> Elements:
    if not 0 <= count <= len(elements):
        raise SqlError("2202E", f"number of elements to trim must be between 0 and {len(elements)}")
    return elements[: len(elements) - count]


def _trimmed_rows(own: Array, count: int) -> Array:
    rows = own.rows()
    if not 0 <= count <= len(rows):
        raise SqlError("2202E", f"number of elements to trim must be between 0 and {len(rows)}")
    return own.of_rows(rows[: len(rows) - count])


def _add_changes() -> None:
    change = partial(_define, takes_null=True, can_fail=True)
    fail = _same(dimensions.fail_to_add)
    for symbol, word in (("||", "concatenate_arrays"), ("array_cat", "array_cat")):
        change(symbol, (_A, _A), _A, word=word, several=_same(dimensions.concatenated))(_same(_concatenated))
    for symbol, word in (("||", "appended"), ("array_append", "array_append")):
        change(symbol, (_A, _E), _A, word=word, several=fail)(_same(_appended))
    for symbol, word in (("||", "prepended"), ("array_prepend", "array_prepend")):
        change(symbol, (_E, _A), _A, word=word, several=fail)(_same(_prepended))
    change("array_remove", (_A, _E), _A, several=_same(dimensions.fail_to_remove))(_without)
    _define("array_replace", (_A, _E, _E), _A, takes_null=True, several=_replaced_in_several)(_replaced)
    _define("trim_array", (_A, _I), _A, can_fail=True, several=_same(_trimmed_rows))(_same(_trimmed))


def _without(element: Type) -> _Python:
    same = _same_of(element)

    def without(elements: Elements | None, removed: Datum) -> Elements | None:
        return None if elements is None else tuple(one for one in elements if not same(one, removed))

    return without


def _sorted(element: Type) -> _Python:
    """Return the function that sorts arrays; NULL comes last if ascending, unless the call says otherwise."""
    key = _key_of(element)

    def sort(elements: Elements, is_descending: int = 0, nulls_first: int | None = None) -> Elements:
        values = sorted((one for one in elements if one is not None), key=key, reverse=bool(is_descending))
        nulls = (None,) * (len(elements) - len(values))
        return (*nulls, *values) if (is_descending if nulls_first is None else nulls_first) else (*values, *nulls)

    return sort


def _bucket_of(element: Type) -> _Python:
    key = _key_of(element)

    def bucket(operand: Datum, bounds: Elements) -> int:
        if None in bounds:
            raise SqlError("22004", "thresholds array must not contain NULLs")
        return bisect_right(bounds, key(operand), key=key)

    return bucket


def _add_orders() -> None:
    of_sizes: tuple[Part, ...] = (_E, Type.INTEGER_ARRAY)
    _define("array_fill", of_sizes, _A, takes_null=True, can_fail=True)(_same(dimensions.filled))
    _define("array_fill", (*of_sizes, Type.INTEGER_ARRAY), _A, word="array_fill_from", takes_null=True, can_fail=True)(
        _same(dimensions.filled_from)
    )
    bucket = _define(
        "width_bucket",
        (_E, _A),
        _I,
        word="width_bucket_of_array",
        can_fail=True,
        several=_same(dimensions.fail_to_find),
    )
    bucket(_bucket_of)
    rows_reversed = _same(lambda own: own.of_rows(own.rows()[::-1]))
    _define("array_reverse", (_A,), _A, several=rows_reversed)(_same(lambda own: own[::-1]))
    for arguments in ((_A,), (_A, _B), (_A, _B, _B)):
        word = f"array_sort_{len(arguments)}" if len(arguments) > 1 else None
        _define("array_sort", arguments, _A, word=word, several=dimensions.sorted_rows)(_sorted)


def _add_questions() -> None:
    fail = _same(dimensions.fail_to_search)
    for arguments, word in (((_A, _E), None), ((_A, _E, _I), "array_position_from")):
        _define("array_position", arguments, _I, word=word, takes_null=True, can_fail=True, several=fail)(_position)
    _define("array_positions", (_A, _E), Type.INTEGER_ARRAY, takes_null=True, can_fail=True, several=fail)(_positions)
    _define("@>", (_A, _A), _B, word="array_contains", is_strict=True)(_contains)
    _define("<@", (_A, _A), _B, word="array_is_contained", is_strict=True)(_is_contained)
    _define("&&", (_A, _A), _B, word="arrays_overlap", is_strict=True)(_overlap)
    _define("array_to_string", (_A, _T), _T, takes_null=True)(_joined)
    _define("array_to_string", (_A, _T, _T), _T, word="array_to_string_with_null", takes_null=True)(_joined)


def _add_sizes() -> None:
    size = _same(lambda own, dimension: own.size(dimension))
    _define("array_length", (_A, _I), _I, several=size)(_same(_length))
    _define("array_upper", (_A, _I), _I, several=size)(_same(_length))
    first = _same(lambda own, dimension: own.size(dimension) and 1)
    _define("array_lower", (_A, _I), _I, several=first)(
        _same(lambda own, dimension: 1 if _length(own, dimension) else None)
    )
    _define("array_ndims", (_A,), _I, several=_same(lambda own: len(own.sizes)))(_same(lambda own: 1 if own else None))
    _define("array_dims", (_A,), _T, several=_same(dimensions.bounds))(
        _same(lambda own: f"[1:{len(own)}]" if own else None)
    )
    _define("cardinality", (_A,), _I)(_same(len))
    for word, begin in (("generate_subscripts", 1), ("vector_subscripts", 0)):
        _define(f"{word}[]", (_A, _I), Type.INTEGER_ARRAY, word=word, several=_same(dimensions.subscripts))(
            _same(partial(_subscripts, begin))
        )
    reversible = _define(
        "generate_subscripts[]",
        (_A, _I, _B),
        Type.INTEGER_ARRAY,
        word="generate_subscripts_in_order",
        several=_same(dimensions.subscripts),
    )
    reversible(_same(partial(_subscripts, 1)))


def _add_parts() -> None:
    """Add the functions of subscripts and slices."""
    _define("[]", (_A, _I), _E, word="array_element", several=_same(lambda *_: None))(
        _same(lambda own, index: own[index - 1] if 1 <= index <= len(own) else None)
    )
    _define("[:]", (_A, _I, _I), _A, word="array_slice", several=_same(dimensions.sliced_rows))(_same(_sliced))
    _define("[][]", (_A, Type.INTEGER_ARRAY), _E, word="array_element_of_several", several=_same(dimensions.element))(
        _same(lambda *_: None)
    )
    _define("[:][:]", (_A, Type.INTEGER_ARRAY), _A, word="array_slice_of_several", several=_same(dimensions.sliced))(
        _same(dimensions.sliced_of_one)
    )


def _add_quantifiers() -> None:
    """Add the functions of ANY and ALL."""
    for symbol, word in (
        ("=", "equals"),
        ("<>", "differs_from"),
        ("<", "is_less_than"),
        ("<=", "is_at_most"),
        (">", "is_greater_than"),
        (">=", "is_at_least"),
    ):
        for name, is_all in (("any", False), ("all", True)):
            _define(f"{symbol} {name}", (_E, _A), _B, word=f"{word}_{name}", is_strict=True, takes_null=True)(
                partial(_compared_with, symbol, is_all=is_all)
            )


def _add_building() -> None:
    """Add the functions that `ARRAY[…]` calls."""
    for kind in ARRAYS:
        element = kind.element
        assert element is not None
        make = partial(_array, element)
        name = builder_of(element)
        FUNCTIONS.add(Function(name, name, (element,), kind, make, can_fail=False, is_variadic=True))
        name = builder_of(kind)
        make = partial(dimensions.array_of_arrays, element)
        FUNCTIONS.add(Function(name, name, (kind,), kind, make, is_variadic=True))


def _array(element: Type, *data: Datum) -> bytes:
    return array_of(element, data)


def builder_of(element: Type) -> str:
    """Return the function that builds an array of its arguments, which have one type; it may be a type of arrays."""
    return f"array_of_{word_of(element)}"


def _split(text: str | None, separator: str | None, null: str | None = None) -> bytes | None:
    if text is None:
        return None
    pieces: Sequence[str] = list(text) if separator is None else text.split(separator) if separator else [text]
    return array_of(_T, [None if piece == null else piece for piece in pieces] if text else ())


def _add_splitting() -> None:
    for types in ((_T, _T), (_T, _T, _T)):
        name = "string_to_array" + "_with_null" * (len(types) - 2)
        TEXT_FUNCTIONS.add(Function(name, "string_to_array", types, Type.TEXT_ARRAY, _split, can_fail=False))


def _add_elements() -> None:
    """Add the functions that `elements_sql` calls."""
    for kind in ARRAYS:
        element = kind.element
        assert element is not None
        name = f"elements_of_{word_of(element)}"
        FUNCTIONS.add(Function(name, name, (kind,), _T, partial(_listed, element), can_fail=False))


def _add_zipping() -> None:
    """`zip_arrays` makes one array of the rows of several arrays side by side, and `unzip_…` has a value of a row.

    A row is an array of bytes: for each array, an array of its element alone, or NULL from the array's end on.
    """
    _define("zip_element[]", (_A,), Type.BYTEA_ARRAY, word="zip_element")(
        lambda element: lambda own: array_of(Type.BYTEA, [array_of(element, (one,)) for one in own])
    )
    arrays = Type.BYTEA_ARRAY
    name = "zip_arrays"
    FUNCTIONS.add(Function(name, f"{name}[]", (arrays,), arrays, _zipped, can_fail=False, is_variadic=True))
    for kind in ARRAYS:
        element = kind.element
        assert element is not None
        name = unzip_of(element)
        unzip = partial(_unzipped, element)
        FUNCTIONS.add(Function(name, f"{name}[]", (Type.BYTEA, _I), element, unzip, can_fail=False))


def unzip_of(element: Type) -> str:
    """Return the name of the function of a row of `zip_arrays`, and the number of an array, from 0 on."""
    return f"unzip_{word_of(element)}"


def _zipped(*arrays: bytes | None) -> bytes:
    parts = [() if array is None else elements_of(Type.BYTEA, array) for array in arrays]
    return array_of(Type.BYTEA, [array_of(Type.BYTEA, row) for row in zip_longest(*parts)])


def _unzipped(element: Type, row: bytes | None, index: int) -> Datum:
    single = None if row is None else elements_of(Type.BYTEA, row)[index]
    return elements_of(element, single)[0] if isinstance(single, bytes) else None


def _listed(element: Type, datum: bytes | None) -> str | None:
    """Return elements as JSON for SQLite; bytes are hexadecimal digits."""
    if datum is None:
        return None
    elements = elements_of(element, datum)
    if element not in {Type.REAL, Type.DOUBLE}:
        return orjson.dumps([one.hex() if isinstance(one, bytes) else one for one in elements]).decode()
    return f"[{', '.join(map(_listed_double, elements))}]"


def _listed_double(datum: Datum) -> str:
    if datum is None:
        return "null"
    if isinstance(datum, str):
        return f'"{datum}"'
    return repr(datum).replace("inf", "9e999")


def elements_sql(array: str, kind: Type, alias: str) -> tuple[str, str, str]:
    """Return the elements of an array as rows of SQLite: FROM item, element, and position from 1.

    Args:
        array: SQL of the array.
        kind: type of its elements.
        alias: alias of the FROM item.
    """
    value = f"unhex({alias}.value)" if kind in OF_BYTES else f"{alias}.value"
    return (
        f"json_each({registered_name(f'elements_of_{word_of(kind)}')}({array})) AS {alias}",
        value,
        f"({alias}.key + 1)",
    )


_add_elements()
_add_zipping()
_add_changes()
_add_orders()
_add_questions()
_add_sizes()
_add_parts()
_add_quantifiers()
_add_building()
_add_splitting()
