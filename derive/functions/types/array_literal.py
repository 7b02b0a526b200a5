"""Texts of arrays, such as `{1,"a b",NULL}` and `{{1,2},{3,4}}`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NoReturn, TypeAlias

from derive.errors import SqlError
from derive.functions.types.array import MOST_DIMENSIONS, Nested, Sizes, nested

# Repetitions of spaces give nothing back: else the time for a literal would grow with the square of their number.
_ELEMENT = re.compile(r'\s*+(?:"((?:[^"\\]|\\.)*)"\s*+|((?:[^"\\{},]|\\.)+))([,}])', re.DOTALL | re.ASCII)
_QUOTED = re.compile(r'(?i:null)\Z|\Z|.*[{},"\\\s]', re.DOTALL | re.ASCII)
_PLAIN = re.compile(r"\s*+((?:\\.|[^\\\s]|\s++(?!\Z))*)\s*+\Z", re.DOTALL | re.ASCII)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_BOUNDS = re.compile(r"\s*(?:\[\s*[+-]?\d+\s*(?::\s*[+-]?\d+\s*)?\]\s*)+=", re.ASCII)


_BOUND = re.compile(r"\[\s*([+-]?\d+)\s*(?::\s*([+-]?\d+)\s*)?\]", re.ASCII)
_TOKEN = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|((?:[^"\\{},]|\\.)+)|([{},]))?', re.DOTALL | re.ASCII)
_SPACE = " \t\n\r\v\f"

ArrayTexts: TypeAlias = tuple[tuple[str | None, ...], Sizes]
"""The texts of elements, None for NULL; and the sizes of several dimensions, no sizes for one."""


@lru_cache(maxsize=256)
def texts_of_literal(text: str) -> ArrayTexts:
    """Parse an array literal such as `{1,"a b",NULL}` or `{{1,2},{3,4}}` into the texts of its elements.

    Raises:
        SqlError: 22P02, the literal is malformed; 54000, it has too many dimensions; 2202E, an upper bound is below
            its lower bound; 0A000, a lower bound is not 1.
    """
    body = text.strip(_SPACE)
    bounds: Sizes = ()
    if (match := _BOUNDS.match(body)) is not None:
        body, bounds = body[match.end() :].strip(_SPACE), _sizes_of_bounds(match[0], text)
    if not body.startswith("{"):
        _fail(text, 'Array value must start with "{" or dimension information.')
    is_nested = re.match(r"\{\s*\{", body, re.ASCII) is not None
    texts, sizes = _Nesting(text, body).parsed() if is_nested else (_listed(text, body), ())
    if bounds and bounds != (sizes or (len(texts),)):
        _fail(text, "Specified array dimensions do not match array contents.")
    return texts, sizes


def _fail(text: str, detail: str | None = None) -> NoReturn:
    raise SqlError("22P02", f'malformed array literal: "{text}"', detail=detail)


def _sizes_of_bounds(bounds: str, text: str) -> Sizes:
    pairs = [(int(low), int(high)) if high else (1, int(low)) for low, high in _BOUND.findall(bounds)]
    if len(pairs) > MOST_DIMENSIONS:
        raise too_many_dimensions(len(pairs))
    if any(high < low for low, high in pairs):
        raise SqlError("2202E", "upper bound cannot be less than lower bound")
    if any(low != 1 for low, _ in pairs):
        raise SqlError("0A000", f'lower bounds other than 1 are not supported: "{text}"', hint="Arrays begin with 1.")
    return tuple(high for _, high in pairs)


def too_many_dimensions(count: int) -> SqlError:
    """Return the error for an array with more dimensions than are allowed."""
    message = f"number of array dimensions ({count}) exceeds the maximum allowed ({MOST_DIMENSIONS})"
    return SqlError("54000", message)


def _listed(text: str, body: str) -> tuple[str | None, ...]:
    """Return the texts of the elements of one dimension."""
    if re.fullmatch(r"\{\s*\}", body, re.ASCII):
        return ()
    at, texts = 1, list[str | None]()
    while True:
        match = _ELEMENT.match(body, at)
        if match is None:
            _fail(text)
        quoted, plain, end = match.groups()
        texts.append(_unquoted(plain, text) if quoted is None else _ESCAPE.sub(r"\1", quoted))
        at = match.end()
        if end == "}":
            break
    if at != len(body):
        _fail(text, "Junk after closing right brace.")
    return tuple(texts)


class _Nesting:
    """The state of a parser of several dimensions.

    Args:
        text: the literal, for messages.
        body: the literal from its first brace on.
    """

    def __init__(self, text: str, body: str) -> None:
        self._text, self._body = text, body
        self._texts: list[str | None] = []
        self._sizes: dict[int, int] = {}
        self._counts: list[int] = []
        """The number of parts read so far, in each open brace."""
        self._depth = 0
        """The number of dimensions; 0 if it is not known yet."""
        self._is_ready = True
        """True where a part may follow: at the begin, after a brace, and after a comma."""

    def parsed(self) -> ArrayTexts:
        """Return the texts of the elements, and the sizes of the dimensions."""
        at, last = 0, ""
        while not last or self._counts:
            match = _TOKEN.match(self._body, at)
            assert match is not None
            at, (quoted, plain, mark) = match.end(), match.groups()
            if quoted is None and plain is None and mark is None:
                end = "Unexpected end of input." if at == len(self._body) else None
                _fail(self._text, end)
            if mark is None:
                self._read_element(_unquoted(plain, self._text) if quoted is None else _ESCAPE.sub(r"\1", quoted))
            elif mark == "{":
                self._open()
            elif mark == "}":
                self._close(is_empty=last == "{")
            else:
                self._separate()
            last = mark or "element"
        if at != len(self._body):
            _fail(self._text, "Junk after closing right brace.")
        sizes = tuple(self._sizes[depth] for depth in sorted(self._sizes))
        return tuple(self._texts), sizes if math.prod(sizes) and len(sizes) > 1 else ()

    def _read_element(self, element: str | None) -> None:
        if not self._is_ready:
            _fail(self._text, "Unexpected array element.")
        self._settle()
        self._texts.append(element)
        self._counts[-1] += 1
        self._is_ready = False

    def _open(self) -> None:
        if not self._is_ready:
            _fail(self._text, 'Unexpected "{" character.')
        if self._depth and len(self._counts) >= self._depth:
            self._fail_mismatch()
        if len(self._counts) == MOST_DIMENSIONS:
            raise too_many_dimensions(MOST_DIMENSIONS + 1)
        self._counts.append(0)

    def _close(self, *, is_empty: bool) -> None:
        if self._is_ready and not is_empty:
            _fail(self._text, 'Unexpected "}" character.')
        depth = len(self._counts)
        self._depth = self._depth or depth
        size = self._counts.pop()
        if self._sizes.setdefault(depth, size) != size:
            self._fail_mismatch()
        if self._counts:
            self._counts[-1] += 1
        self._is_ready = False

    def _separate(self) -> None:
        if self._is_ready:
            _fail(self._text, 'Unexpected "," character.')
        self._is_ready = True

    def _settle(self) -> None:
        """Check that elements stand in the innermost braces only."""
        self._depth = self._depth or len(self._counts)
        if self._depth != len(self._counts):
            self._fail_mismatch()

    def _fail_mismatch(self) -> NoReturn:
        _fail(self._text, "Multidimensional arrays must have sub-arrays with matching dimensions.")


def _unquoted(plain: str, text: str) -> str | None:
    # An escaped space belongs to the element, wherever it stands.
    word = _PLAIN.match(plain)
    if word is None or not word[1]:
        _fail(text)
    return None if word[1].upper() == "NULL" else _ESCAPE.sub(r"\1", word[1])


def literal_of_texts(texts: Sequence[str | None], sizes: Sizes = ()) -> str:
    """Format an array literal, as `texts_of_literal` reads it and PostgreSQL writes it."""
    if sizes:
        return literal_of_nested(nested(texts, sizes))
    return "{" + ",".join("NULL" if text is None else _quoted(text) for text in texts) + "}"


def literal_of_nested(texts: Nested) -> str:
    """Format lists of lists of texts as an array literal.

    >>> literal_of_nested([["1", None], ["a b", ""]])
    '{{1,NULL},{"a b",""}}'
    """
    if isinstance(texts, list):
        return "{" + ",".join(map(literal_of_nested, texts)) + "}"
    return "NULL" if texts is None else _quoted(texts)


def _quoted(text: str) -> str:
    if not _QUOTED.match(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
