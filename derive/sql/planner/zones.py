"""Times in the time zone of a session: calls that depend on the zone name it as an argument.

The functions of the algebra know UTC only. In a session with another time zone, the planner applies them to the local
time, or calls the variant that takes a zone. So a plan says its zone, and a view, which is planned in UTC, has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TypeAlias

from derive.algebra.expression import Call, Case, Expression, Literal
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.registry import resolve_cast, resolve_function, resolve_operator

_T, _TZ, _L, _V = Type.TEXT, Type.TIMESTAMPTZ, Type.TIMESTAMP, Type.INTERVAL

_Arguments: TypeAlias = Sequence[Expression]
_Form: TypeAlias = Callable[[_Arguments, str], Expression]


def _called(name: str, *arguments: Expression) -> Call:
    resolution = resolve_function(name, [argument.type for argument in arguments])
    return Call(resolution.function, arguments, resolution.result_type)


def local(value: Expression, zone: str) -> Expression:
    """Return the local time of a timestamp with time zone."""
    return _called("timezone", Literal(zone, _T), value)


def _cast(value: Expression, target: Type) -> Expression:
    name = resolve_cast(value.type, target, "explicit")
    assert name
    return Call(name, (value,), target)


def cast(value: Expression, target: Type, zone: str) -> Expression | None:  # noqa: PLR0911 (one for each pair of types)
    """Return a cast between times with and without a time zone; None for a cast that does not depend on the zone."""
    match value.type, target:
        case Type.TIMESTAMPTZ, Type.TIMESTAMP:
            return local(value, zone)
        case Type.TIMESTAMPTZ, Type.DATE | Type.TIME:
            return _cast(local(value, zone), target)
        case ((Type.TIMESTAMPTZ | Type.TIME | Type.TEXT), Type.TIMETZ):
            return _called("timetz_in_zone", Literal(zone, _T), value)
        case Type.TIMESTAMPTZ, Type.TEXT:
            return _called("text_in_zone", Literal(zone, _T), value)
        case Type.TIMESTAMP, Type.TIMESTAMPTZ:
            return _called("timezone", Literal(zone, _T), value)
        case Type.DATE, Type.TIMESTAMPTZ:
            return _called("timezone", Literal(zone, _T), _cast(value, _L))
        case Type.TEXT | Type.UNKNOWN, Type.TIMESTAMPTZ:
            return _called("timestamptz_in_zone", Literal(zone, _T), value)
    return None


def called(call: Call, zone: str) -> Expression:
    """Return a call whose value depends on the zone in the form that names the zone; other calls are unchanged.

    Raises:
        SqlError: the call has no such form (0A000).
    """
    form = _forms().get(call.function)
    return call if form is None else form(call.arguments, zone)


@cache
def _forms() -> Mapping[str, _Form]:
    """Return the forms of functions of timestamps with time zone, by function."""

    def function(name: str, *types: Type) -> str:
        return resolve_function(name, types).function

    def operator(symbol: str, *types: Type) -> str:
        return resolve_operator(symbol, types).function

    def with_zone(name: str, *, is_reversed: bool = False) -> _Form:
        """Return the form that calls a function with the zone as the last argument."""

        def form(arguments: _Arguments, zone: str) -> Expression:
            ordered = tuple(reversed(arguments)) if is_reversed else arguments
            return _called(name, *ordered, Literal(zone, _T))

        return form

    def of_local(name: str) -> _Form:
        """Return the form that calls a function for local times."""

        def form(arguments: _Arguments, zone: str) -> Expression:
            return _called(name, *(local(one, zone) if one.type is _TZ else one for one in arguments))

        return form

    return {
        function("date_trunc", _T, _TZ): with_zone("date_trunc"),
        operator("+", _TZ, _V): with_zone("date_add"),
        operator("-", _TZ, _V): with_zone("date_subtract"),
        operator("+", _V, _TZ): with_zone("date_add", is_reversed=True),
        function("date_add", _TZ, _V): with_zone("date_add"),
        function("date_subtract", _TZ, _V): with_zone("date_subtract"),
        function("make_timestamptz", *(Type.INTEGER,) * 5, Type.DOUBLE): with_zone("make_timestamptz"),
        function("generate_series[]", _TZ, _TZ, _V): with_zone("generate_series[]"),
        function("age", _TZ, _TZ): of_local("age"),
        function("extract", _T, _TZ): _field("extract"),
        function("date_part", _T, _TZ): _field("date_part"),
        function("to_char", _TZ, _T): _template,
        function("to_timestamp", _T, _T): _read,
    }


def _field(name: str) -> _Form:
    """Return the form of a function of a time's field: of the local time, except seconds since 1970 and offsets."""

    def form(arguments: _Arguments, zone: str) -> Expression:
        field, value = arguments
        word = field.value.lower() if isinstance(field, Literal) and isinstance(field.value, str) else None
        if word is not None and word.startswith("timezone"):
            hint = "Subtract times: t AT TIME ZONE 'Europe/Berlin' - t AT TIME ZONE 'UTC'."
            raise SqlError("0A000", f"{name} of {word} is supported in the time zone UTC only", hint=hint)
        own, in_zone = _called(name, field, value), _called(name, field, local(value, zone))
        if word is not None:
            return own if word == "epoch" else in_zone
        epoch = Literal("epoch", _T)
        lower = Call(resolve_function("lower", (_T,)).function, (field,), _T)
        is_epoch = Call(resolve_operator("=", (_T, _T)).function, (lower, epoch), Type.BOOLEAN)
        return Case(((is_epoch, own),), in_zone, own.type)

    return form


def _template(arguments: _Arguments, zone: str) -> Expression:
    value, template = arguments
    if isinstance(template, Literal) and any(word in str(template.value).upper() for word in ("TZ", "OF")):
        hint = "Write the zone as text."
        raise SqlError("0A000", "TZ and OF of to_char are supported in the time zone UTC only", hint=hint)
    return _called("to_char", local(value, zone), template)


def _read(arguments: _Arguments, zone: str) -> Expression:
    function = resolve_function("to_timestamp", (_T, _T)).function
    return _called("timezone", Literal(zone, _T), Call(function, tuple(arguments), _L))
