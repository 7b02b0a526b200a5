"""Rows in COPY's text format and keys as arrays, converted column by column for speed."""

from __future__ import annotations

from collections.abc import Sequence

_SPECIAL = ("\\", "\t", "\n", "\r")
_ESCAPED = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))


def copy_text(columns: Sequence[Sequence[str | None]]) -> bytes:
    """Return rows in the text format of COPY.

    Args:
        columns: the texts of each column's values, and None.
    """
    lines = map("\t".join, zip(*map(_escaped, columns), strict=True))
    return ("\n".join(lines) + "\n").encode()


def _escaped(texts: Sequence[str | None]) -> Sequence[str]:
    try:
        joined = "".join(texts)  # type: ignore[arg-type]
    except TypeError:
        return ["\\N" if text is None else _escape(text) for text in texts]
    if any(special in joined for special in _SPECIAL):
        return [_escape(text) for text in texts if text is not None]
    return texts  # type: ignore[return-value]


def _escape(text: str) -> str:
    for special, escape in _ESCAPED:
        if special in text:
            text = text.replace(special, escape)
    return text


def array_text(texts: Sequence[str]) -> str:
    """Return the text of an array of texts.

    Args:
        texts: texts of the elements, without None.
    """
    joined = '","'.join(texts)
    if "\\" in joined or joined.count('"') != 2 * max(len(texts) - 1, 0):
        joined = '","'.join([text.replace("\\", "\\\\").replace('"', '\\"') for text in texts])
    return f'{{"{joined}"}}' if texts else "{}"
