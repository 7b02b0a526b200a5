"""Upper and lower case: simple case mappings, one character for one."""

from __future__ import annotations

from collections.abc import Iterator

from derive.functions.statement_context import check_cancelled

_PIECE = 1 << 16
"""Number of characters converted at once."""


def lower(text: str) -> str:
    """Return a text in lower case, one character for one."""
    return text.lower() if text.isascii() else "".join(map(_lower_piece, _pieces(text)))


def upper(text: str) -> str:
    """Return a text in upper case, one character for one."""
    return text.upper() if text.isascii() else "".join(map(_upper_piece, _pieces(text)))


def _pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces, with a check for cancellation in between."""
    for begin in range(0, len(text), _PIECE):
        check_cancelled()
        yield text[begin : begin + _PIECE]


def _lower_piece(piece: str) -> str:
    lowered = piece.lower()
    # A final sigma has a form of its own, which single characters do not get.
    is_simple = len(lowered) == len(piece) and "\u03a3" not in piece
    return lowered if is_simple else "".join(map(lower_letter, piece))


def _upper_piece(piece: str) -> str:
    raised = piece.upper()
    return raised if len(raised) == len(piece) else "".join(map(upper_letter, piece))


def lower_letter(character: str) -> str:
    """Return a character in lower case; the character itself if lower case takes several characters."""
    lowered = character.lower()
    return lowered if len(lowered) == 1 else character


def upper_letter(character: str) -> str:
    """Return a character in upper case; the character itself if upper case takes several characters."""
    raised = character.upper()
    return raised if len(raised) == 1 else character


def title(text: str) -> str:
    """Return a text with the first letter of every word in upper case, and all other letters in lower case."""
    titled: list[str] = []
    is_inside = False
    for piece in _pieces(text):
        characters: list[str] = []
        for character in piece:
            characters.append(lower_letter(character) if is_inside else upper_letter(character))
            is_inside = character.isalnum()
        titled.append("".join(characters))
    return "".join(titled)
