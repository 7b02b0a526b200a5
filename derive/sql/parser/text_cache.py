"""Caches of functions of a statement's text: clients often send the same text again."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

T = TypeVar("T")

MOST_CHARACTERS = 4096
"""Greatest length of a cached text, in characters; longer texts seldom repeat."""
_MOST_TEXTS = 1024


def cached_by_text(function: Callable[[str], T]) -> Callable[[str], T]:
    """Cache a function of a text. The function's results must be immutable."""
    remembered = lru_cache(maxsize=_MOST_TEXTS)(function)

    @wraps(function)
    def of_text(text: str) -> T:
        return remembered(text) if len(text) <= MOST_CHARACTERS else function(text)

    return of_text
