"""JSON pointers (RFC 6901), compiled to functions for use on every document of a collection."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from typing import Any, Final, TypeAlias

JSON: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, list or dict with string keys."""


class _Missing(Enum):
    MISSING = "MISSING"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing.MISSING
"""Marker for a location that a document does not have; neither a JSON value nor null."""


def unescape(token: str) -> str:
    """Return the property name of a pointer token."""
    return token.replace("~1", "/").replace("~0", "~")


def escape(name: str) -> str:
    """Return the pointer token of a property name."""
    return name.replace("~", "~0").replace("/", "~1")


@lru_cache(maxsize=65_536)
def parse_pointer(pointer: str) -> tuple[str, ...]:
    """Return the tokens of a pointer: property names or indices, as text; empty for the root.

    >>> parse_pointer("/a~1b/0")
    ('a/b', '0')

    Raises:
        ValueError: the pointer is neither empty nor begins with a slash.
    """
    if not pointer:
        return ()
    if not pointer.startswith("/"):
        raise ValueError(f"a JSON pointer begins with a slash: {pointer!r}")
    return tuple(map(unescape, pointer[1:].split("/")))


def compile_pointer(pointer: str) -> Callable[[JSON], JSON]:
    """Return a function from a document to the value at a location, or `MISSING`."""
    tokens = parse_pointer(pointer)
    if not tokens:
        return lambda document: document
    if len(tokens) == 1:
        name = tokens[0]

        def get_property(document: JSON) -> JSON:
            if type(document) is dict:
                return document.get(name, MISSING)
            return _step(document, name)

        return get_property

    def get(document: JSON) -> JSON:
        value = document
        for token in tokens:
            value = value.get(token, MISSING) if type(value) is dict else _step(value, token)
            if value is MISSING:
                return MISSING
        return value

    return get


def _step(value: JSON, token: str) -> JSON:
    if type(value) is list and token.isascii() and token.isdigit() and (token == "0" or token[0] != "0"):
        index = int(token)
        return value[index] if index < len(value) else MISSING
    return MISSING
