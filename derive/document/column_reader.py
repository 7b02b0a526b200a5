"""From JSON arrays to columns: texts and numbers are told apart by commas, and no Python object is made of them.

Values of other kinds, texts with commas or escapes, and numbers that can be written in another way are parsed. So what
a column holds is what `parse_exact` gives, and what is written of it what `dump_exact` writes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from derive.document.exact import parse_exact
from derive.document.pointer import JSON
from derive.document.without_pandas import spare_pandas
from derive.document.written_column import WrittenColumn

spare_pandas()  # before the first array

_COMMA, _QUOTE, _MINUS, _POINT, _ZERO, _SPACE = b',"-.0 '
_MOST_CHARACTERS = 15
"""An integer of so many is a double."""

_MOST_BYTES = (1 << 31) - 1
_SMALL = b"0.0000"
"""Is in numbers that may be written with an exponent as well."""


def read_column(texts: Sequence[bytes], count: int) -> Sequence[JSON]:
    """The values of several JSON arrays, behind one another.

    Args:
        texts: the arrays, without spaces, none of them empty; numbers are written as JavaScript does, the shortest way.
        count: of all values, at least one.

    Raises:
        ValueError: a text is no JSON array, or there are not so many values.
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
        raise ValueError("it is no array")
    return values


def _read_texts(joined: bytes, count: int) -> WrittenColumn | None:
    """Texts between quotes, with commas between them; None if that is not all there is."""
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
    # Each text has two quotes around it, and all but the first a comma in front of these.
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
    """Numbers without exponents, with commas between them; None if that is not all there is."""
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
    """Whether numbers are valid, integers are doubles, and no zero could be left away."""
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
    """Texts that follow one another, of which it is known where all but the first begin."""
    offsets = np.empty(len(borders) + 2, dtype=np.int32)
    offsets[0], offsets[1:-1], offsets[-1] = 0, borders, len(content)
    return pa.StringArray.from_buffers(len(borders) + 1, pa.py_buffer(offsets), pa.py_buffer(content))
