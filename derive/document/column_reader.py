"""Read JSON arrays into columns: split texts and numbers at commas without creating Python objects.

Values of other types, texts with commas or escapes, and numbers with another possible spelling are parsed. A column
therefore has the values of `parse_exact`, and is written like `dump_exact`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from derive.document.columns import WrittenColumn
from derive.document.exact import parse_exact
from derive.document.pointer import JSON
from derive.document.without_pandas import spare_pandas

spare_pandas()  # must precede the first array

_COMMA, _QUOTE, _MINUS, _POINT, _ZERO, _SPACE = b',"-.0 '
_MOST_CHARACTERS = 15
"""Number of characters up to which every integer is a double."""

_MOST_BYTES = (1 << 31) - 1
_SMALL = b"0.0000"
"""Part of numbers that may also be spelled with an exponent."""


def read_column(texts: Sequence[bytes], count: int) -> Sequence[JSON]:
    """Return the values of several JSON arrays, concatenated.

    Args:
        texts: non-empty arrays without spaces; numbers have JavaScript's shortest spelling.
        count: number of values in all arrays, at least one.

    Raises:
        ValueError: a text is not a JSON array, or the number of values differs from `count`.
    """
    if all(text[:1] == b"[" and text[-1:] == b"]" for text in texts):
        joined = b",".join([text[1:-1] for text in texts])
        column = _read_texts(joined, count) if joined[:1] == b'"' else _read_numbers(joined, count)
        if column is not None:
            return column
    values = [value for text in texts for value in _parsed(text)]
    if len(values) != count:
        raise ValueError(f"there are {len(values)} values, and not {count}")
    return values


def _parsed(text: bytes) -> list[JSON]:
    values = parse_exact(text)
    if not isinstance(values, list):
        raise ValueError("the value is not an array")
    return values


def _read_texts(joined: bytes, count: int) -> WrittenColumn | None:
    """Return texts between quotes, separated by commas; None if `joined` has anything else."""
    characters = np.frombuffer(joined, np.uint8)
    commas = np.flatnonzero(characters == _COMMA)
    content = joined.translate(None, b'",')
    is_simple = (
        len(commas) == count - 1
        and len(joined) - len(content) == 3 * count - 1
        and len(joined) <= _MOST_BYTES
        and b"\\" not in joined
        and characters.min() >= _SPACE
        and characters[-1] == _QUOTE
        and bool((characters[commas - 1] == _QUOTE).all() and (characters[commas + 1] == _QUOTE).all())
        and _is_unicode(content)
    )
    if not is_simple:
        return None
    # Each text has two quotes around it, and all but the first have a comma before them.
    borders = commas + 1 - 3 * np.arange(1, count)
    are_lengths = bool((np.diff(borders, prepend=0, append=len(content)) >= 0).all())
    return WrittenColumn(_strings(content, borders)) if are_lengths else None


def _is_unicode(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read_numbers(joined: bytes, count: int) -> WrittenColumn | None:
    """Return numbers without exponents, separated by commas; None if `joined` has anything else."""
    if joined.translate(None, b"0123456789-.,") or _SMALL in joined or len(joined) > _MOST_BYTES:
        return None
    characters = np.frombuffer(joined + b",", np.uint8)
    ends = np.flatnonzero(characters == _COMMA)
    if len(ends) != count:
        return None
    is_integer = np.ones(count, dtype=bool)
    is_integer[np.searchsorted(ends, np.flatnonzero(characters == _POINT))] = False
    if not _are_plain(characters, ends, is_integer):
        return None
    numbers = _strings(joined.translate(None, b","), ends[:-1] - np.arange(count - 1))
    try:
        array = numbers.cast(pa.float64())
    except pa.ArrowInvalid:
        return None
    return WrittenColumn(array, numbers, is_integer if is_integer.any() else None)


def _are_plain(characters: np.ndarray, ends: np.ndarray, is_integer: np.ndarray) -> bool:
    """Return true if all numbers are valid, integers are exact doubles, and zeros are significant."""
    starts = np.append(0, ends[:-1] + 1)
    is_negative = characters[starts] == _MINUS
    digits = starts + is_negative
    first, last = characters[digits], characters[ends - 1]
    is_zero = (first == _ZERO) & (characters[np.minimum(digits + 1, len(characters) - 1)] != _POINT)
    return bool(
        np.count_nonzero(characters == _MINUS) == np.count_nonzero(is_negative)
        and (first >= _ZERO).all()
        and (last >= _ZERO + ~is_integer).all()
        and (ends - starts <= np.where(is_zero, 1, np.where(is_integer, _MOST_CHARACTERS, len(characters)))).all()
    )


def _strings(content: bytes, borders: np.ndarray) -> pa.StringArray:
    """Split concatenated texts at the given borders, the beginnings of all but the first."""
    offsets = np.empty(len(borders) + 2, dtype=np.int32)
    offsets[0], offsets[1:-1], offsets[-1] = 0, borders, len(content)
    return pa.StringArray.from_buffers(len(borders) + 1, pa.py_buffer(offsets), pa.py_buffer(content))
