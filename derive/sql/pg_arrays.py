"""Arrays and vectors as texts, which are their data in PostgreSQL's catalogs where no type of ours is that of them."""

from __future__ import annotations

from collections.abc import Sequence

from derive.functions.types.array import literal_of_texts, texts_of_literal


def elements_of(literal: str) -> list[str | None]:
    """The elements of an array of one dimension, written as `{1,"a b",NULL}`, or of a vector, as `1 2`.

    Raises:
        SqlError: it is not written so.
    """
    text = literal.strip()
    return list(text.split()) if not text or text[0].isdigit() else list(texts_of_literal(literal))


def literal_of(elements: Sequence[str | None]) -> str:
    """An array, as `elements_of` reads it."""
    return literal_of_texts(elements)
