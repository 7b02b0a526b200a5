"""What is found out about a statement from nothing but its text is remembered: clients send the same ones again."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

T = TypeVar("T")

MOST_CHARACTERS = 4096
"""Longer texts are not remembered, as there may be much of them, and they seldom come again."""
_MOST_TEXTS = 1024


def remembering(function: Callable[[str], T]) -> Callable[[str], T]:
    """A function of a text that is carried out once for one that is short; its results are never changed."""
    remembered = lru_cache(maxsize=_MOST_TEXTS)(function)

    @wraps(function)
    def of_text(text: str) -> T:
        return remembered(text) if len(text) <= MOST_CHARACTERS else function(text)

    return of_text
