"""Names: which texts can be names, and which names may not stand side by side."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

from derive.catalog.language.vocabulary import LINE

_TOKEN = r"(?:[^\W_]|[-_.])+"
_NAME = re.compile(rf"{_TOKEN}(/{_TOKEN})*")
_TRANSFORM = re.compile(_TOKEN)
_LINE = re.compile(LINE)
_POINTER = re.compile(r"(/([^/~]|~[01])+)*")


def is_name(text: str) -> bool:
    """Whether a text can name a collection: tokens of letters, numbers, `-`, `_`, `.`, between slashes."""
    return _NAME.fullmatch(text) is not None


def is_line(text: str) -> bool:
    """Whether a text can name a test: one line, that neither begins nor ends with a space."""
    return _LINE.fullmatch(text) is not None


def is_token(text: str) -> bool:
    """Whether a text can name a transform."""
    return _TRANSFORM.fullmatch(text) is not None


def is_field(text: str) -> bool:
    """Whether a text can name a projection: a JSON pointer without its first slash."""
    return bool(text) and is_pointer(f"/{text}")


def is_pointer(text: str) -> bool:
    """Whether a text is a JSON pointer without empty tokens."""
    return _POINTER.fullmatch(text) is not None


def fold(name: str) -> str:
    """A name in the form in which names are compared: case and composition of characters are folded."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFD", name).casefold())


def collisions(names: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Pairs of names that may not stand side by side: `(index, index of the other, relation)`, by indexes of `names`.

    Either both are equal once folded ("collides with"), or one is a folder of the other ("is a prohibited prefix of").
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
