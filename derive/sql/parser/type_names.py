"""Parser of type names, with their modifiers and the fields of intervals."""

from __future__ import annotations

from derive.errors import SqlError
from derive.sql.parser.ast import TypeName
from derive.sql.parser.tokens import TokenKind, TokenReader

_SHORT = {
    "int": "int4",
    "integer": "int4",
    "smallint": "int2",
    "bigint": "int8",
    "real": "float4",
    "boolean": "bool",
    "decimal": "numeric",
    "dec": "numeric",
}
_WORDS = frozenset(
    (*_SHORT, "numeric", "float", "double", "character", "char", "varchar", "time", "timestamp", "interval")
)
_UNITS = ("year", "month", "day", "hour", "minute", "second")
_LAST_FIELDS = {"year": _UNITS[1:2], "day": _UNITS[3:], "hour": _UNITS[4:], "minute": _UNITS[5:]}
"""The units that can follow TO, by the first field of an interval."""


def begins_type(reader: TokenReader) -> bool:
    """Return whether the next token starts a type name with a syntax of its own."""
    return reader.is_word(*_WORDS) and (not reader.is_word("double") or reader.is_words("double", "precision"))


def parse_type(reader: TokenReader) -> TypeName:
    """Read a type name."""
    offset = reader.offset
    name, modifiers = simple_type(reader)
    fields, is_array = "", False
    if name == "interval" and not modifiers:
        fields, modifiers = interval_fields(reader)
    while reader.accept_symbol("["):
        if reader.token.kind is TokenKind.NUMBER:
            reader.integer()
        reader.expect_symbol("]")
        is_array = True
    if reader.accept_word("array"):
        is_array = True
    return TypeName(name, modifiers, offset, is_array, fields)


def simple_type(reader: TokenReader) -> tuple[str, tuple[int, ...]]:
    """Read a type name without `[]` and without fields; return the name and its modifiers."""
    word = reader.token.value if begins_type(reader) else ""
    if not word:
        return _named_type(reader)
    reader.next()
    if word == "double":
        reader.expect_word("precision")
    if word in {"double", "float"}:
        return _float(reader) if word == "float" else ("float8", ())
    if word in {"time", "timestamp", "interval"}:
        return _temporal(reader, word)
    if word in {"character", "char"}:
        name = "varchar" if reader.accept_word("varying") else "bpchar"
        modifiers = _modifiers(reader)
        return name, modifiers or ((1,) if name == "bpchar" else ())
    return _SHORT.get(word, word), _modifiers(reader)


def _named_type(reader: TokenReader) -> tuple[str, tuple[int, ...]]:
    if not reader.is_name(of_function=True):
        raise reader.error()
    name = reader.next().value
    while reader.accept_symbol("."):
        name = reader.any_name()
    return name, _modifiers(reader)


def _modifiers(reader: TokenReader) -> tuple[int, ...]:
    if not reader.is_symbol("("):
        return ()
    return reader.in_parentheses(lambda: -reader.integer() if reader.accept_symbol("-") else reader.integer())


def _float(reader: TokenReader) -> tuple[str, tuple[int, ...]]:
    offset = reader.offset
    modifiers = _modifiers(reader)
    if modifiers and modifiers[0] < 1:
        raise SqlError("22023", "precision for type float must be at least 1 bit", offset=offset)
    if modifiers and modifiers[0] > 53:
        raise SqlError("22023", "precision for type float must be less than 54 bits", offset=offset)
    return ("float4" if modifiers and modifiers[0] < 25 else "float8"), ()


def _has_zone(reader: TokenReader) -> bool:
    if reader.accept_words("with", "time", "zone"):
        return True
    reader.accept_words("without", "time", "zone")
    return False


def _temporal(reader: TokenReader, word: str) -> tuple[str, tuple[int, ...]]:
    if word != "interval":
        if reader.is_symbol("(") and reader.ahead().value == "-":
            raise reader.error(reader.ahead())
        modifiers = _modifiers(reader)
        return word + ("tz" if _has_zone(reader) else ""), modifiers
    return "interval", _modifiers(reader)


def interval_fields(reader: TokenReader) -> tuple[str, tuple[int, ...]]:
    """Read the fields of an interval, such as `DAY TO SECOND(3)`: its words, and the precision of its seconds."""
    first = last = reader.accept_word(*_UNITS)
    if first is None or last is None:
        return "", ()
    if first in _LAST_FIELDS and reader.accept_word("to"):
        last = reader.expect_word(*_LAST_FIELDS[first]).value
    fields = first if first == last else f"{first} to {last}"
    return fields, _modifiers(reader) if last == "second" else ()


_OPERATORS = """
    array bool bpchar bpchar_pattern bytea cidr date float4 float8 inet int2 int4 int8 interval jsonb macaddr numeric
    oid text text_pattern time timestamp timestamptz timetz uuid varchar varchar_pattern
"""
OPERATOR_CLASSES = frozenset(f"{kind}_ops" for kind in _OPERATORS.split())
"""Operator classes of indexes on types. All of them order texts by bytes, as indexes here do."""
