"""Names: what they may look like, and when two are too much alike."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

_TOKEN = r"(?:[^\W_]|[-_.])+"
_NAME = re.compile(rf"{_TOKEN}(/{_TOKEN})*")
_TRANSFORM = re.compile(_TOKEN)
_POINTER = re.compile(r"(/([^/~]|~[01])+)*")


def is_name(text: str) -> bool:
    """Whether a text can name a collection or a test: tokens of letters, numbers, `-`, `_`, `.`, between slashes."""
    return _NAME.fullmatch(text) is not None


def is_token(text: str) -> bool:
    """Whether a text can name a transform."""
    return _TRANSFORM.fullmatch(text) is not None


def is_pointer(text: str) -> bool:
    """Whether a text is a JSON pointer without empty tokens."""
    return _POINTER.fullmatch(text) is not None


def fold(name: str) -> str:
    """A name as it is compared: without regard to case or to how its characters are composed."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFD", name).casefold())


def collisions(names: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Pairs of names that may not stand side by side: `(name, other, how)`.

    Two are equal once folded ("collides with"), or one is a folder of the other ("is a prohibited prefix of").
    """
    ordered = sorted((fold(name), name) for name in names)
    folded: dict[str, str] = {}
    for form, name in ordered:
        if form in folded:
            yield name, folded[form], "collides with"
        folded.setdefault(form, name)
    for form, name in ordered:
        parts = form.split("/")
        for length in range(1, len(parts)):
            prefix = folded.get("/".join(parts[:length]))
            if prefix is not None:
                yield prefix, name, "is a prohibited prefix of"
