"""Names: syntax, and conflicts between names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

from derive.catalog.language.json_schema import LINE

_TOKEN = r"(?:[^\W_]|[-_.])+"
_NAME = re.compile(rf"{_TOKEN}(/{_TOKEN})*")
_TRANSFORM = re.compile(_TOKEN)
_LINE = re.compile(LINE)
_POINTER = re.compile(r"(/([^/~]|~[01])+)*")


def is_name(text: str) -> bool:
    """Return true for a valid collection name: tokens of letters, numbers, `-`, `_`, `.`, separated by slashes."""
    return _NAME.fullmatch(text) is not None


def is_line(text: str) -> bool:
    """Return true for a valid test name: one line without leading or trailing spaces."""
    return _LINE.fullmatch(text) is not None


def is_token(text: str) -> bool:
    """Return true for a valid transform name."""
    return _TRANSFORM.fullmatch(text) is not None


def is_field(text: str) -> bool:
    """Return true for a valid projection name: a JSON pointer without its first slash."""
    return bool(text) and is_pointer(f"/{text}")


def is_pointer(text: str) -> bool:
    """Return true for a JSON pointer without empty tokens."""
    return _POINTER.fullmatch(text) is not None


def fold(name: str) -> str:
    """Return a name in the form for comparison, with case and composition of characters folded."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFD", name).casefold())


def collisions(names: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Yield conflicts between names: `(index, index of the other, relation)`.

    Two names conflict if they are equal once folded ("collides with"), or if one is a folder of the other ("is a
    prohibited prefix of").

    >>> list(collisions(["a/b", "A/B", "a"]))
    [(1, 0, 'collides with'), (2, 0, 'is a prohibited prefix of')]
    """
    folded: dict[str, int] = {}
    forms = [fold(name) for name in names]
    for index, form in enumerate(forms):
        if form in folded:
            yield index, folded[form], "collides with"
        folded.setdefault(form, index)
    for index, form in sorted(zip(folded.values(), folded, strict=True)):
        parts = form.split("/")
        for length in range(1, len(parts)):
            prefix = folded.get("/".join(parts[:length]))
            if prefix is not None:
                yield prefix, index, "is a prohibited prefix of"
