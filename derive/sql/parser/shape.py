"""The shape of a statement: its text with parameters in place of constants, so that its plan serves other constants.

A program that writes numbers and texts into its statements sends another text each time. Such statements have one
plan, like a prepared statement. Only constants at which a parameter means the same are replaced: the right side of a
comparison or assignment, and a value of `INSERT … VALUES`. All other constants stay in the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_INTEGER, _BIGINT, _NUMERIC, _UNKNOWN = 23, 20, 1700, 0
_MOST_CONSTANTS = 100

_HEAD = re.compile(r"\s*(?:(SELECT|UPDATE|DELETE|WITH)|(INSERT))\b", re.I)
_VALUES = re.compile(r"\bVALUES\s*(?=\()", re.I)
_CONSTANT = r"-?(?:\d+\.)?\d+(?![\w.])|'(?:[^']|'')*'"
_OPERATOR = r"+\-*/<>=~!@#%^&|`?"
_WHOLE = rf"(?!\s*(?:['.\[:{_OPERATOR}]|AT\b|COLLATE\b))"
"""A constant is the whole right side: nothing of an expression follows."""
_TOKENS = re.compile(
    # Comments, parameters, and texts with escapes or a prefix are not analyzed.
    r"(?P<refused>--|/\*|\$|(?<=[\w&])')"
    rf"|(?<![{_OPERATOR}])(?P<operator>[<>=]|<=|>=|<>|!=)\s*(?P<constant>{_CONSTANT}){_WHOLE}"
    r"""|'(?:[^']|'')*'|"(?:[^"]|"")*"|(?P<lone>['"])"""
)
_ROWS = re.compile(
    r"(?P<refused>--|/\*|\$|(?<=[\w&])')"
    r"|(?P<open>[(\[])|(?P<close>[)\]])|(?P<comma>,)"
    rf"|(?P<constant>(?<![\w.]){_CONSTANT})(?=\s*[,)])"
    r"""|'(?:[^']|'')*'|"(?:[^"]|"")*"|(?P<lone>['"])|(?P<other>[^\s'"()\[\],$/-]+|[/-])"""
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A statement with parameters in place of constants.

    Attributes:
        text: text of the statement.
        oids: type of each parameter; 0 for a text, whose type its place determines.
        arguments: the constants, as texts.
    """

    text: str
    oids: tuple[int, ...]
    arguments: tuple[bytes, ...]


def shape_of(text: str) -> Shape | None:
    """Return the shape of a statement; None if nothing is replaced, or for another kind of statement.

    >>> shape_of("SELECT * FROM rides WHERE id = 7 AND note = 'it''s' LIMIT 1")
    Shape(text='SELECT * FROM rides WHERE id = $1 AND note = $2 LIMIT 1', oids=(23, 0), arguments=(b'7', b"it's"))
    >>> shape_of("INSERT INTO rides VALUES (-7, lower('A'), 'b')").text
    "INSERT INTO rides VALUES ($1, lower('A'), $2)"
    """
    head = _HEAD.match(text)
    if head is None or "\0" in text:
        return None
    constants = _constants(text) if head[1] else _constants_of_rows(text)
    if not constants or len(constants) > _MOST_CONSTANTS:
        return None
    parts, oids, arguments = list[str](), list[int](), list[bytes]()
    end = 0
    for number, (begin, stop) in enumerate(constants, 1):
        constant = text[begin:stop]
        parts += text[end:begin], f"${number}"
        oids.append(_oid(constant))
        arguments.append((constant[1:-1].replace("''", "'") if constant[0] == "'" else constant).encode())
        end = stop
    return Shape("".join(parts) + text[end:], tuple(oids), tuple(arguments))


def _oid(constant: str) -> int:
    """Return the type that PostgreSQL gives to a constant; of a negative number, the type of the number without it."""
    if constant[0] == "'":
        return _UNKNOWN
    if "." in constant:
        return _NUMERIC
    size = int(constant.lstrip("-"))
    return _INTEGER if size < 1 << 31 else _BIGINT if size < 1 << 63 else _NUMERIC


def _constants(text: str, begin: int = 0) -> list[tuple[int, int]]:
    """Return the places of constants after comparisons and assignments; empty if the text is not analyzed."""
    spans = []
    for match in _TOKENS.finditer(text, begin):
        if match["refused"] or match["lone"]:
            return []
        if match["constant"]:
            spans.append(match.span("constant"))
    return spans


def _constants_of_rows(text: str) -> list[tuple[int, int]]:
    """Return the places of the values of `INSERT … VALUES (…), (…)`, and of constants behind the rows."""
    head = _VALUES.search(text)
    if head is None or re.search(r"""['"$]|--|/\*|\bSELECT\b""", text[: head.start()].replace('"', ""), re.I):
        return []
    spans: list[tuple[int, int]] = []
    depth, may_begin = 0, False
    for match in _ROWS.finditer(text, head.end()):
        kind = match.lastgroup
        if kind in {"refused", "lone"}:
            return []
        if kind == "constant" and depth == 1 and may_begin:
            spans.append(match.span("constant"))
        if kind == "other" and depth == 0:
            rest = match.start()
            behind = _constants(text, rest)
            return spans + behind if behind or not _TOKENS.search(text, rest) else []
        depth += {"open": 1, "close": -1}.get(kind or "", 0)
        may_begin = kind in {"open", "comma"}
    return spans
