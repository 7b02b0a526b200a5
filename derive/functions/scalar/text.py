"""Functions of text: characters are code points, and letters have their simple upper and lower case."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence

from derive.algebra.modifier_inference import RECORD, RECORDS
from derive.algebra.types import Datum, Type
from derive.errors import SqlError
from derive.functions.function import Function, Functions, registered_name, word_of
from derive.functions.statement_context import check_cancelled
from derive.functions.types.letter_case import lower, title, upper
from derive.functions.types.type_info import INFO_OF

FUNCTIONS = Functions()

_QUOTED_IN_RECORD = re.compile(r'[(),"\\\s]|\A\Z')


def _record_text(*texts: Datum) -> str:
    """Return the text of a row of texts, as PostgreSQL shows it."""
    return f"({','.join('' if text is None else _record_part(str(text)) for text in texts)})"


def _record_part(text: str) -> str:
    if not _QUOTED_IN_RECORD.search(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '""') + '"'


_FIELD = re.compile(r'[(,](?:"((?:[^"\\]|""|\\\\)*)"|([^,()"\\]*))')
_DOUBLED = re.compile(r'""|\\\\')


def fields_of_record(text: str) -> list[str | None]:
    """Return the texts of a row's columns, given the text of the row; None for NULL.

    >>> fields_of_record('(1,"a b",,"")')
    ['1', 'a b', None, '']
    """
    return [
        (plain or None) if quoted is None else _DOUBLED.sub(lambda match: match[0][0], quoted)
        for quoted, plain in ((match[1], match[2]) for match in _FIELD.finditer(text))
    ]


for _name in ("record_text", RECORD):
    FUNCTIONS.add(
        Function(_name, f"{_name}()", (Type.TEXT,), Type.TEXT, _record_text, can_fail=False, is_variadic=True)
    )
FUNCTIONS.add(Function(RECORDS, f"{RECORDS}()", (Type.TEXT,), Type.TEXT, lambda text: text, can_fail=False))

_T, _I, _L, _B = Type.TEXT, Type.INTEGER, Type.BIGINT, Type.BOOLEAN

LONGEST = 1 << 26
"""Maximum number of characters of a function's result."""
_LONG = 1 << 20
"""Number of characters from which a function checks for cancellation before its work."""


def checked_length(length: int) -> int:
    """Return the length of a result after a check.

    Raises:
        SqlError: the length is too great (54000).
    """
    if length > LONGEST:
        raise SqlError("54000", "requested length too large")
    if length > _LONG:
        check_cancelled()
    return length


def _repeat(text: str, count: int) -> str:
    checked_length(len(text) * max(count, 0))
    return text * count


def _replace(text: str, old: str, new: str) -> str:
    if not old:
        return text
    if len(new) > len(old) and len(text) * len(new) > _LONG:
        checked_length(len(text) + text.count(old) * (len(new) - len(old)))
    return text.replace(old, new)


def _padding(text: str, length: int, fill: str) -> str:
    missing = checked_length(length) - len(text)
    return (fill * (missing // len(fill) + 1))[:missing] if fill and missing > 0 else ""


def _lpad(text: str, length: int, fill: str = " ") -> str:
    return _padding(text, length, fill) + text[: max(length, 0)]


def _rpad(text: str, length: int, fill: str = " ") -> str:
    return text[: max(length, 0)] + _padding(text, length, fill)


def part(text: str, begin: int, count: int | None = None) -> str:
    """Return `count` characters from a position on, counted from 1. Positions before the first character count as well.

    Raises:
        SqlError: a negative count (22011).
    """
    if count is None:
        return text[max(begin - 1, 0) :]
    if count < 0:
        raise SqlError("22011", "negative substring length not allowed")
    return text[max(begin - 1, 0) : max(begin - 1 + count, 0)]


def _split_part(text: str, separator: str, position: int) -> str:
    if not position:
        raise SqlError("22023", "field position must not be zero")
    if not separator:
        return text if position in {1, -1} else ""
    # Split only as far as the result needs.
    parts = text.split(separator, position) if position > 0 else text.rsplit(separator, -position)[::-1]
    index = abs(position) - 1
    return parts[index] if index < len(parts) else ""


def _translate(text: str, characters: str, others: str) -> str:
    table: dict[int, str | None] = {}
    for index, character in enumerate(characters):
        table.setdefault(ord(character), others[index] if index < len(others) else None)
    return text.translate(table)


def _chr(code: int) -> str:
    if code <= 0:
        if not code:
            raise SqlError("54000", "null character not permitted")
        raise SqlError("22023", "character number must be positive")
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise SqlError("54000", f"requested character too large for encoding: {code}")
    return chr(code)


def _overlay(text: str, other: str, begin: int, count: int | None = None) -> str:
    if begin <= 0:
        raise SqlError("22011", "negative substring length not allowed")
    end = begin + (len(other) if count is None else count)
    if end >= 1 << 31:
        raise SqlError("22003", "integer out of range")
    return text[: begin - 1] + other + part(text, end)


_RESERVED = """
    all and any as asc both case cast check collate column constraint create cross current_date default desc
    distinct do else end except false fetch for foreign from full grant group having ilike in inner intersect into
    is isnull join lateral leading left like limit natural not notnull null offset on only or order outer primary
    references returning right select session_user similar some symmetric table then to trailing true union unique
    user using when where window with
"""
_KEYWORDS = frozenset(_RESERVED.split())


def quoted_name(name: str) -> str:
    """Return a name as written in SQL, quoted if needed."""
    if re.fullmatch(r"[a-z_][a-z0-9_$]*", name) and name not in _KEYWORDS:
        return name
    return '"' + name.replace('"', '""') + '"'


def quoted_literal(text: str) -> str:
    """Return a text as written in SQL, quoted."""
    quoted = "'" + text.replace("'", "''").replace("\\", "\\\\") + "'"
    return f"E{quoted}" if "\\" in text else quoted


def _quoted(text: Datum) -> Datum:
    return None if text is None else quoted_literal(str(text))


def _quoted_or_null(text: Datum) -> Datum:
    return "NULL" if text is None else quoted_literal(str(text))


def _trimming(strip: Callable[[str, str], str]) -> tuple[Callable[[str], str], Callable[[str, str], str]]:
    return (lambda text: strip(text, " ")), (lambda text, characters: strip(text, characters) if characters else text)


def _position(text: str, sought: str) -> int:
    return text.find(sought) + 1


def _ascii(text: str) -> int:
    return ord(text[0]) if text else 0


def _hexadecimal(bits: int) -> Callable[[int], str]:
    return lambda number: f"{number & (1 << bits) - 1:x}"


def _left(text: str, count: int) -> str:
    return text[:count]


def _right(text: str, count: int) -> str:
    return text[-count:] if count else ""


def _add_of_one() -> None:
    define = FUNCTIONS.define
    for symbol, function in (
        ("lower", lower),
        ("upper", upper),
        ("initcap", title),
        ("reverse", lambda text: text[::-1]),
        ("md5", lambda text: hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()),
        ("quote_ident", quoted_name),
    ):
        define(symbol, (_T,), _T, can_fail=False)(function)
    for symbol in ("length", "char_length", "character_length"):
        define(symbol, (_T,), _I, can_fail=False)(len)
    define("octet_length", (_T,), _I, can_fail=False)(lambda text: len(text.encode()))
    define("bit_length", (_T,), _I, can_fail=False)(lambda text: 8 * len(text.encode()))
    define("ascii", (_T,), _I, can_fail=False)(_ascii)
    define("chr", (_I,), _T)(_chr)
    define("unistr", (_T,), _T)(_with_unicode)
    for arguments in ((_T,), (_T, _B)):
        define("parse_ident", arguments, Type.TEXT_ARRAY)(_parsed_name)
    for kind, bits in ((_I, 32), (_L, 64)):
        define("to_hex", (kind,), _T, can_fail=False)(_hexadecimal(bits))
        define("to_bin", (kind,), _T, can_fail=False)(_digits(bits, "b"))
        define("to_oct", (kind,), _T, can_fail=False)(_digits(bits, "o"))


_UNICODE = re.compile(r"\\(?:(\\)|([0-9a-fA-F]{4})|u([0-9a-fA-F]{4})|\+([0-9a-fA-F]{6})|U([0-9a-fA-F]{8})|())", re.A)
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def _with_unicode(text: str) -> str:
    """Return a text with its Unicode escapes replaced."""

    def replacement(match: re.Match[str]) -> str:
        if match[1]:
            return "\\"
        digits = match[2] or match[3] or match[4] or match[5]
        if not digits:
            hint = r"Unicode escapes must be \XXXX, \+XXXXXX, \uXXXX, or \UXXXXXXXX."
            raise SqlError("42601", "invalid Unicode escape", hint=hint)
        code = int(digits, 16)
        if not 0 < code <= 0x10FFFF:
            raise SqlError("22023", f"invalid Unicode code point: {code:04X}")
        return chr(code)

    replaced = _UNICODE.sub(replacement, text)
    replaced = _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), replaced)
    if any("\ud800" <= letter <= "\udfff" for letter in replaced):
        raise SqlError("42601", "invalid Unicode surrogate pair")
    return replaced


_PART = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([A-Za-z_\x80-\U0010ffff][\w$\x80-\U0010ffff]*))\s*', re.A)


def _parsed_name(name: str, is_strict: bool = True) -> tuple[str, ...]:
    """Return the parts of a qualified name; `is_strict` refuses text behind the name."""
    parts: list[str] = []
    at = 0
    while True:
        match = _PART.match(name, at)
        if match is None or match[1] == "":
            raise SqlError("22023", f'string is not a valid identifier: "{name}"')
        quoted, plain = match[1], match[2]
        parts.append(quoted.replace('""', '"') if quoted is not None else _lower_ascii(plain))
        at = match.end()
        if name[at : at + 1] != ".":
            break
        at += 1
    if is_strict and at < len(name):
        raise SqlError("22023", f'string is not a valid identifier: "{name}"')
    return tuple(parts)


def _lower_ascii(text: str) -> str:
    return "".join(letter.lower() if letter.isascii() else letter for letter in text)


def _digits(bits: int, form: str) -> Callable[[int], str]:
    return lambda number: format(number & (1 << bits) - 1, form)


def _add_parts() -> None:
    define = FUNCTIONS.define
    for symbol in ("substr", "substring"):
        define(symbol, (_T, _I), _T, can_fail=False)(part)
        define(symbol, (_T, _I, _I), _T)(part)
    for symbol, strip in (("btrim", str.strip), ("ltrim", str.lstrip), ("rtrim", str.rstrip)):
        spaces, characters = _trimming(strip)
        define(symbol, (_T,), _T, can_fail=False)(spaces)
        define(symbol, (_T, _T), _T, can_fail=False)(characters)
    for symbol in ("position", "strpos"):
        define(symbol, (_T, _T), _I, can_fail=False)(_position)
    define("left", (_T, _I), _T, can_fail=False)(_left)
    define("right", (_T, _I), _T, can_fail=False)(_right)
    for symbol, pad in (("lpad", _lpad), ("rpad", _rpad)):
        define(symbol, (_T, _I), _T)(pad)
        define(symbol, (_T, _I, _T), _T)(pad)
    define("repeat", (_T, _I), _T)(_repeat)
    define("replace", (_T, _T, _T), _T)(_replace)
    define("split_part", (_T, _T, _I), _T)(_split_part)
    define("translate", (_T, _T, _T), _T, can_fail=False)(_translate)
    define("overlay", (_T, _T, _I), _T)(_overlay)
    define("overlay", (_T, _T, _I, _I), _T)(_overlay)
    for symbol in ("starts_with", "^@"):
        define(symbol, (_T, _T), _B, word="starts_with_operator" if symbol == "^@" else None, can_fail=False)(
            str.startswith
        )


def text_form(argument: str, kind: Type) -> str:
    """Return SQL of a value's text as clients receive it."""
    if INFO_OF[kind].is_text:
        return argument
    if kind is Type.BOOLEAN:
        return f"CASE {argument} WHEN 1 THEN 't' WHEN 0 THEN 'f' END"
    if kind is Type.INET:  # a cast shows more of the address
        return f"{registered_name('abbrev_inet')}({argument})"
    return f"{registered_name(f'{word_of(kind)}_to_text')}({argument})"


def _texts(arguments: Sequence[str], kinds: Sequence[Type]) -> list[str]:
    return [text_form(argument, kind) for argument, kind in zip(arguments, kinds, strict=True)]


def _joined(separator: Datum, *texts: Datum) -> Datum:
    if separator is None:
        return None
    pieces = [str(text) for text in texts if text is not None]
    checked_length(sum(map(len, pieces)) + len(str(separator)) * len(pieces))
    return str(separator).join(pieces)


def _add_of_any_type() -> None:
    FUNCTIONS.native(
        "||",
        (_T, _T),
        _T,
        lambda arguments, _: f"({arguments[0]} || {arguments[1]})",
        word="concatenate",
    )
    either: list[tuple[Type | None, ...]] = [(_T, None), (None, _T)]
    for arguments in either:
        # PostgreSQL turns the other operand of || into text by a cast, which writes `true` and `false` in full.
        FUNCTIONS.native("||", arguments, _T, _concatenation, word="concatenate")
    FUNCTIONS.add(
        Function(
            "concat",
            "concat",
            (None,),
            _T,
            lambda *texts: _joined("", *texts),
            lambda arguments, kinds: f"{registered_name('concat')}({', '.join(_texts(arguments, kinds))})",
            can_fail=False,
            is_variadic=True,
        )
    )
    FUNCTIONS.add(
        Function(
            "concat_ws",
            "concat_ws",
            (_T, None),
            _T,
            _joined,
            lambda arguments, kinds: f"{registered_name('concat_ws')}({', '.join(_texts(arguments, kinds))})",
            can_fail=False,
            is_variadic=True,
        )
    )
    for symbol, quote in (("quote_literal", _quoted), ("quote_nullable", _quoted_or_null)):
        FUNCTIONS.add(Function(symbol, symbol, (None,), _T, quote, _quote_form(symbol), can_fail=False))
    FUNCTIONS.add(Function("format_text", "format", (_T,), _T, formatted, _format_form("format_text")))
    FUNCTIONS.add(Function("format", "format", (_T, None), _T, formatted, _format_form("format"), is_variadic=True))


def _format_form(name: str) -> Callable[[Sequence[str], Sequence[Type]], str]:
    return lambda arguments, kinds: f"{registered_name(name)}({', '.join(_texts(arguments, kinds))})"


def _cast_form(argument: str, kind: Type) -> str:
    """Return SQL of a value cast to text, which writes out booleans."""
    if kind in {Type.BOOLEAN, Type.INET}:
        return f"{registered_name(f'{kind.value}_to_text')}({argument})"
    return text_form(argument, kind)


def _concatenation(arguments: Sequence[str], kinds: Sequence[Type]) -> str:
    return f"({_cast_form(arguments[0], kinds[0])} || {_cast_form(arguments[1], kinds[1])})"


def _quote_form(name: str) -> Callable[[Sequence[str], Sequence[Type]], str]:
    return lambda arguments, kinds: f"{registered_name(name)}({_cast_form(arguments[0], kinds[0])})"


_DIRECTIVE = re.compile(r"%(?:(\d+)\$)?(-)?(?:(\d+)|\*(?:(\d+)\$)?)?(.)?", re.DOTALL)


def formatted(template: Datum, *texts: Datum) -> Datum:
    """Return the result of `format`: a template with `%s`, `%I` and `%L`, with positions and widths.

    Raises:
        SqlError: the template has an invalid directive or no argument for one (22023 or 22004).
    """
    if template is None:
        return None
    at = length = 0

    def argument(position: str | None) -> Datum:
        nonlocal at
        at = int(position) if position else at + 1
        if not at:
            raise SqlError("22023", "format specifies argument 0, but arguments are numbered from 1")
        if at > len(texts):
            raise SqlError("22023", "too few arguments for format()")
        return texts[at - 1]

    def counted(match: re.Match[str]) -> str:
        nonlocal length
        shown = replaced(match)
        length = checked_length(length + len(shown))
        return shown

    def replaced(match: re.Match[str]) -> str:
        position, is_left, width, width_position, kind = match.groups()
        if kind == "%" and match[0] == "%%":
            return "%"
        if kind is None:
            raise SqlError("22023", "unterminated format() type specifier", hint='For a single "%" use "%%".')
        if kind not in "sIL":
            raise SqlError("22023", f'unrecognized format() type specifier "{kind}"', hint='For a single "%" use "%%".')
        if "*" in match[0]:
            given = argument(width_position)
            width = str(given) if given is not None else "0"
        columns = int(width or 0) if len(width or "") < 12 else LONGEST + 1
        checked_length(abs(columns))
        shown = _directed(kind, argument(position))
        return shown.ljust(abs(columns)) if is_left or columns < 0 else shown.rjust(columns)

    return _DIRECTIVE.sub(counted, str(template))


def _directed(kind: str, text: Datum) -> str:
    if kind == "s":
        return "" if text is None else str(text)
    if kind == "L":
        return "NULL" if text is None else quoted_literal(str(text))
    if text is None:
        raise SqlError("22004", "null values cannot be formatted as an SQL identifier")
    return quoted_name(str(text))


_add_of_one()
_add_parts()
_add_of_any_type()
