"""Types by their names in SQL, types of parameters, and implicit and explicit casts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal as OneOf
from typing import TypeAlias

from derive.algebra.expression import Call, Expression, Literal, Parameter
from derive.algebra.modifier_inference import modifier_of
from derive.algebra.types import REGISTERED, ModifiedType, Type, TypeModifier
from derive.errors import SqlError, suggest
from derive.functions.registry import common_type, evaluate, function_named, resolve_cast
from derive.functions.scalar.casts import fitting_function
from derive.functions.scalar.json_paths import PATH_SYMBOLS
from derive.functions.types.formats import scale_of_text
from derive.functions.types.jsonpath import parsed_path
from derive.functions.types.type_info import INFOS, READ_IN_ZONE, datum_in_zone, datum_of_text, text_of
from derive.sql.parser.ast import TypeName
from derive.sql.planner import zones

_TYPES = {
    "bool": Type.BOOLEAN,
    "int2": Type.SMALLINT,
    "int4": Type.INTEGER,
    "int8": Type.BIGINT,
    "float4": Type.REAL,
    "float8": Type.DOUBLE,
    "numeric": Type.NUMERIC,
    "text": Type.TEXT,
    "varchar": Type.TEXT,
    "bpchar": Type.TEXT,
    "name": Type.TEXT,
    "bytea": Type.BYTEA,
    "json": Type.JSONB,
    "jsonb": Type.JSONB,
    "date": Type.DATE,
    "timestamp": Type.TIMESTAMP,
    "timestamptz": Type.TIMESTAMPTZ,
    "interval": Type.INTERVAL,
    "mz_timestamp": Type.MZ_TIMESTAMP,
    **dict.fromkeys(["char", "cstring", "pg_node_tree", "aclitem", "sql_identifier", "character_data"], Type.TEXT),
    **dict.fromkeys(["cardinal_number"], Type.INTEGER),
    "xid": Type.OID,
    **dict.fromkeys(["regprocedure", "regoper", "regoperator"], Type.REGPROC),
    "int2vector": Type.SMALLINT_ARRAY,
    "oidvector": Type.OID_ARRAY,
    **{info.name: kind for kind, info in INFOS.items()},
}
_TYPES |= {f"_{name}": kind.array for name, kind in _TYPES.items() if kind.array and name != "json"}
_MODIFIED_TYPES = {
    "numeric": ModifiedType.NUMERIC,
    "varchar": ModifiedType.VARCHAR,
    "bpchar": ModifiedType.BPCHAR,
    "timestamp": ModifiedType.TIMESTAMP,
    "timestamptz": ModifiedType.TIMESTAMPTZ,
    "time": ModifiedType.TIME,
    "timetz": ModifiedType.TIMETZ,
}
_OF_ARRAYS = frozenset({ModifiedType.VARCHAR, ModifiedType.NUMERIC})
"""Modified types of which arrays have the modifier, too."""
_WITH_MODIFIERS = frozenset({*_MODIFIED_TYPES, "interval"})
_MOST_DIGITS = 6
"""Greatest number of digits of seconds; PostgreSQL accepts larger numbers as this one."""
_UNSUPPORTED = frozenset(
    ["xml", "money", "bit", "varbit", "macaddr8", "point", "line", "lseg", "box", "path", "polygon", "circle"]
)
_UNSUPPORTED |= {"tsvector", "tsquery", "record"}


def type_of(name: TypeName) -> Type:
    """Return the type of a name, without its modifiers.

    Raises:
        SqlError: 42704, the type does not exist; 0A000, the type is not supported; 42601, the type takes no modifiers.
    """
    kind = _TYPES.get(name.name)
    if kind is None:
        if name.name in _UNSUPPORTED:
            instead = "Use jsonb." if name.name == "record" else "Use text."
            raise SqlError("0A000", f"type {name.name} is not supported", offset=name.offset, hint=instead)
        nearest = suggest(name.name, _TYPES)
        hint = f"Did you mean {nearest}?" if nearest else None
        raise SqlError("42704", f'type "{name.name}" does not exist', offset=name.offset, hint=hint)
    if name.modifiers and name.name not in _WITH_MODIFIERS:
        message = f'type modifier is not allowed for type "{name.name}"'
        raise SqlError("42601", message, offset=name.offset)
    _check_modifiers(name)
    if name.is_array and kind.array is None:
        raise SqlError("0A000", f"arrays of {kind.value} are not supported", offset=name.offset, hint="Use jsonb.")
    return kind.array or kind if name.is_array else kind


def is_type(name: TypeName) -> bool:
    """Return whether a name is the name of a type of PostgreSQL, also of one that is not supported."""
    return name.name in _TYPES or name.name in _UNSUPPORTED


def modifier_of_type(name: TypeName) -> TypeModifier | None:
    """Return the modifier of a type; None without a supported modifier."""
    modified = _MODIFIED_TYPES.get(name.name)
    if modified is None or not name.modifiers or (name.is_array and modified not in _OF_ARRAYS):
        return None
    if modified.has_precision:
        return TypeModifier(modified, min(name.modifiers[0], _MOST_DIGITS) + 1)
    return TypeModifier(modified, *name.modifiers[: 2 if modified is ModifiedType.NUMERIC else 1])


def _check_modifiers(name: TypeName) -> None:
    if name.name == "numeric" and name.modifiers and not 1 <= name.modifiers[0] <= 1000:
        message = f"NUMERIC precision {name.modifiers[0]} must be between 1 and 1000"
        raise SqlError("22023", message, offset=name.offset)
    if name.name == "numeric" and len(name.modifiers) > 1 and not -1000 <= name.modifiers[1] <= 1000:
        message = f"NUMERIC scale {name.modifiers[1]} must be between -1000 and 1000"
        raise SqlError("22023", message, offset=name.offset)
    modified = _MODIFIED_TYPES.get(name.name)
    if modified and modified.has_precision and name.modifiers and name.modifiers[0] < 0:
        raise SqlError("22023", f"{name.name}({name.modifiers[0]}) precision must not be negative", offset=name.offset)
    if name.name in {"varchar", "bpchar"} and name.modifiers and name.modifiers[0] < 1:
        shown = "varchar" if name.name == "varchar" else "char"
        raise SqlError("22023", f"length for type {shown} must be at least 1", offset=name.offset)


class ParameterTypes:
    """Types of a statement's parameters, as far as the planner has determined them."""

    def __init__(self, given: Sequence[Type | None] = ()) -> None:
        self._types: dict[int, Type] = {index: kind for index, kind in enumerate(given) if kind}
        self._count = len(given)
        self._offsets: dict[int, int] = {}

    def reference(self, index: int, offset: int) -> Parameter:
        """Return a parameter with the type that is known so far."""
        self._count = max(self._count, index + 1)
        self._offsets.setdefault(index, offset)
        return Parameter(index, self._types.get(index, Type.UNKNOWN))

    def decide(self, index: int, kind: Type) -> Parameter:
        """Set the type of a parameter, unless it has a type already.

        Raises:
            SqlError: the parameter has another type already (42P08).
        """
        decided = self._types.setdefault(index, kind)
        if decided is not kind:
            message = f"inconsistent types deduced for parameter ${index + 1}"
            detail = f"{decided.value} versus {kind.value}"
            raise SqlError("42P08", message, offset=self._offsets.get(index), detail=detail)
        return Parameter(index, decided)

    def known(self) -> tuple[Type | None, ...]:
        """Return the types of all parameters; None for a type that is not known yet."""
        return tuple(self._types.get(index) for index in range(self._count))

    def finish(self) -> tuple[Type, ...]:
        """Return the types of all parameters.

        Raises:
            SqlError: a parameter has no type (42P18).
        """
        for index in range(self._count):
            if index not in self._types:
                message = f"could not determine data type of parameter ${index + 1}"
                hint = f"Write ${index + 1}::text, or another type."
                raise SqlError("42P18", message, offset=self._offsets.get(index), hint=hint)
        return tuple(self._types[index] for index in range(self._count))


CastContext: TypeAlias = OneOf["implicit", "assignment", "explicit"]


class Coercion:
    """Casts of expressions; a parameter takes the first type that a cast requires.

    Args:
        parameters: types of the statement's parameters.
        zone: time zone of the session; None for UTC.

    Attributes:
        times: texts of constants whose values depend on the time zone, by offset; None if they are not collected.
    """

    def __init__(self, parameters: ParameterTypes, zone: str | None = None) -> None:
        self._parameters = parameters
        self.zone = zone
        self.times: dict[int, str] | None = None

    def cast(
        self, value: Expression, target: Type, offset: int, context: CastContext = "implicit"
    ) -> Expression | None:
        """Cast a value to a type; return None if there is no such cast.

        Raises:
            SqlError: the text of a literal is invalid for the type.
        """
        if value.type is target:
            return value
        if value.type is Type.UNKNOWN:
            if isinstance(value, Parameter) and target in REGISTERED:
                value = self._parameters.decide(value.index, Type.TEXT)  # the query looks up the name of an object
            elif isinstance(value, Parameter):
                return self._parameters.decide(value.index, target)
            if isinstance(value, Literal) and (target not in REGISTERED or value.value is None):
                literal = _literal(value, target, offset, self.zone)
                if self.times is not None and target in READ_IN_ZONE and literal.value is not None:
                    self.times[offset] = text_of(target, literal.value)
                return literal
        name = resolve_cast(value.type, target, context)
        if name is None:
            return None
        if self.zone is not None and (zoned := zones.cast(value, target, self.zone)) is not None:
            return folded(zoned) if isinstance(zoned, Call) else zoned
        return replace(value, type=target) if not name else folded(Call(name, (value,), target))

    def called(self, function: str, arguments: tuple[Expression, ...], kind: Type) -> Expression:
        """Return a call; if its value depends on the time zone of the session, the call names the zone."""
        call = Call(function, arguments, kind)
        return call if self.zone is None else zones.called(call, self.zone)

    def shown(self, value: Expression) -> Expression:
        """Return a timestamp with time zone as a text in the time zone of the session; another value unchanged."""
        is_zoned = self.zone is not None and value.type is Type.TIMESTAMPTZ
        return (self.cast(value, Type.TEXT, 0, "explicit") or value) if is_zoned else value

    @staticmethod
    def fitted(value: Expression, modifier: TypeModifier | None, *, is_cast: bool = False) -> Expression:
        """Return a value with the type modifier of a column or a cast applied."""
        if modifier is None:
            return value
        arguments = (modifier.size, modifier.scale) if modifier.name is ModifiedType.NUMERIC else (modifier.size,)
        literals = [Literal(argument, Type.INTEGER) for argument in arguments]
        call = Call(fitting_function(modifier, value.type, is_cast=is_cast), (value, *literals), value.type)
        # A literal has no type modifier, because the modifier means that spaces are shown.
        fitted = call if modifier.name is ModifiedType.BPCHAR else folded(call)
        return (
            replace(fitted, scale=modifier.scale)
            if isinstance(fitted, Literal) and value.type is Type.NUMERIC
            else fitted
        )

    def known(self, value: Expression, offset: int) -> Expression:
        """Return a value of a known type: an unknown type is cast to text."""
        if value.type is not Type.UNKNOWN:
            return value
        return self.cast(value, Type.TEXT, offset) or value

    def explicit(self, value: Expression, target: Type, offset: int, operand_offset: int) -> Expression:
        """Plan an explicit cast.

        Raises:
            SqlError: the cast does not exist (42846).
        """
        cast = self.cast(value, target, operand_offset, "explicit")
        if cast is None:
            message = f"cannot cast type {value.type.value} to {target.value}"
            raise SqlError("42846", message, offset=offset)
        return cast

    def boolean(self, value: Expression, clause: str, offset: int) -> Expression:
        """Cast a value to boolean.

        Raises:
            SqlError: the value is not boolean (42804).
        """
        cast = self.cast(value, Type.BOOLEAN, offset)
        if cast is None:
            message = f"argument of {clause} must be type boolean, not type {value.type.value}"
            raise SqlError("42804", message, offset=offset)
        return cast

    def arguments(
        self, values: Sequence[Expression], types: Sequence[Type], offsets: Sequence[int]
    ) -> tuple[Expression, ...]:
        """Cast the arguments of a resolved function to its argument types."""
        return tuple(
            self.cast(value, kind, offset) or value for value, kind, offset in zip(values, types, offsets, strict=True)
        )

    def alike(self, values: Sequence[Expression], offsets: Sequence[int], construct: str) -> tuple[Expression, ...]:
        """Cast values to their common type.

        Raises:
            SqlError: there is no common type (42804 or 42846).
        """
        kind = self.common([value.type for value in values], offsets, construct)
        return self.arguments(values, [kind] * len(values), offsets)

    def common(self, types: Sequence[Type], offsets: Sequence[int], construct: str) -> Type:
        """Return the common type of values; an error has the offset of the first value that does not fit."""
        # The result depends on the distinct types and their order, not on their number.
        firsts = list(dict.fromkeys(types))
        for count in range(2, len(firsts) + 1):
            try:
                common_type(firsts[:count], construct)
            except SqlError as error:
                raise located(error, offsets[types.index(firsts[count - 1])]) from None
        return common_type(firsts, construct)


def _literal(value: Literal, target: Type, offset: int, zone: str | None) -> Literal:
    if value.value is None:
        return Literal(None, target)
    try:
        text = str(value.value)
        if zone is not None and target in READ_IN_ZONE:
            return Literal(datum_in_zone(target, text, zone), target)
        return Literal(datum_of_text(target, text), target, scale_of_text(text) if target is Type.NUMERIC else None)
    except SqlError as error:
        raise located(error, offset) from None


def folded(call: Call) -> Expression:
    """Return a call of literals as a literal.

    Calls that fail, that need a session, or whose type has a modifier that literals lack, are returned unchanged.
    """
    if not all(isinstance(argument, Literal) for argument in call.arguments):
        return call
    function = function_named(call.function)
    if function.is_volatile or function.needs_context:
        return call
    try:
        modifier = modifier_of(call, ())
        if modifier is not None and modifier.name is not ModifiedType.NUMERIC:
            return call
        return Literal(evaluate(call), call.type, modifier.scale if modifier else None)
    except SqlError:
        return call


def check_path(symbol: str, values: Sequence[Expression], offsets: Sequence[int]) -> None:
    """Check the path in a call of a function of SQL/JSON paths, if the path is a literal.

    Raises:
        SqlError: the path is malformed (42601 or 22P02), or has an unsupported method (0A000).
    """
    path = values[1] if symbol in PATH_SYMBOLS and len(values) > 1 else None
    if isinstance(path, Literal) and isinstance(path.value, str):
        try:
            parsed_path(path.value)
        except SqlError as error:
            raise located(error, offsets[1]) from None


def located(error: SqlError, offset: int) -> SqlError:
    """Return an error with an offset; an existing offset stays."""
    if error.offset is None:
        error.offset = offset
    return error
