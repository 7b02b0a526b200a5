"""Arrays, which only PostgreSQL's catalogs have: their data are texts such as `{1,2}`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from derive.errors import SqlError

_PLAIN = re.compile(r"(?!(?i:null)$)[\w.+-]+")


def elements_of(literal: str) -> list[str | None]:
    """The elements of an array of one dimension, written as `{1,"a b",NULL}`, or of a vector, as `1 2`.

    Raises:
        SqlError: it is not written so.
    """
    text = literal.strip()
    if not text or text[0].isdigit():
        return list(text.split())
    if not (text.startswith("{") and text.endswith("}")):
        raise SqlError("22P02", f'malformed array literal: "{literal}"')
    return list(_elements(text[1:-1], literal)) if text[1:-1].strip() else []


def _elements(text: str, literal: str) -> Iterator[str | None]:
    at = 0
    while True:
        is_quoted = text[at : at + 1] == '"'
        at += is_quoted
        chars: list[str] = []
        while at < len(text) and (text[at] != '"' if is_quoted else text[at] != ","):
            at += text[at] == "\\"
            chars.append(text[at : at + 1])
            at += 1
        at += is_quoted
        element = "".join(chars)
        yield None if not is_quoted and element.strip().upper() == "NULL" else element
        if at >= len(text):
            return
        if text[at] != ",":
            raise SqlError("22P02", f'malformed array literal: "{literal}"')
        at += 1


def literal_of(elements: Sequence[str | None]) -> str:
    """An array, as `elements_of` reads it."""
    return "{" + ",".join("NULL" if text is None else _written(text) for text in elements) + "}"


def _written(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
