"""Published documents of a session, collected from its answers; values that the runtime does not accept.

The search for such values runs only if an answer does not parse, so valid documents take no extra time.

JSON arrays are read into columns: texts and numbers are split at commas without creating Python objects. Values of
other types, texts with commas or escapes, and numbers with another possible spelling are parsed. A column therefore has
the values of `parse_exact`, and is written like `dump_exact`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from derive.document.columns import Columns, WrittenColumn, spare_pandas
from derive.document.exact import parse_exact
from derive.document.pointer import JSON
from derive.plural import counted
from derive.protocol.derive import PublishedColumns, PublishedDocuments
from derive.protocol.specs import Document

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
        raise ValueError(f"the answer has {counted(len(values), 'value')}, and not {count}")
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


_MOST_DIGITS = 4_300
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Fault:
    """A value that does not parse.

    Attributes:
        path: property names and indexes on the way to the value.
        reason: the end of a sentence that begins with the name of the value, such as "is not a number".
    """

    path: tuple[str | int, ...]
    reason: str

    @property
    def row(self) -> int:
        """Return the value's index in the outermost array; 0 if the value is in no array."""
        first = self.path[0] if self.path else 0
        return first if isinstance(first, int) else 0

    def at(self, skipped: int) -> str:
        """Return the value's place as a JSON pointer, without `skipped` outermost steps."""
        steps = [str(step).encode("utf-8", "replace").decode() for step in self.path[skipped:]]
        return "".join(f"/{step}" for step in steps)[:_SHOWN] or "a value"


@dataclass(frozen=True, slots=True)
class _Wide:
    digits: int


def fault_in(text: bytes) -> Fault | None:
    r"""Return the first fault of a JSON text; None if the text has no fault, or another kind of fault.

    >>> fault_in(rb'[[{"a": ["\ud83d"]}]]').at(2)
    '/a/0'
    """
    try:
        value = json.loads(text, parse_int=_integer)
    except (ValueError, RecursionError):
        return None
    return next(_faults(value, ()), None)


def _integer(digits: str) -> int | _Wide:
    return int(digits) if len(digits) <= _MOST_DIGITS else _Wide(len(digits))


def _faults(value: Any, path: tuple[str | int, ...]) -> Iterator[Fault]:
    if isinstance(value, str) and _is_broken(value):
        yield Fault(path, f"holds {_half(value)}, which UTF-8 text cannot hold")
    elif isinstance(value, float) and value - value != 0:
        yield Fault(path, "is a number beyond a double's range")
    elif isinstance(value, _Wide):
        yield Fault(path, f"is an integer of {value.digits} digits; {_MOST_DIGITS} at most")
    elif isinstance(value, list):
        for place, member in enumerate(value):
            yield from _faults(member, (*path, place))
    elif isinstance(value, dict):
        for name, member in value.items():
            if _is_broken(name):
                yield Fault((*path, name), f"is a name with {_half(name)}, which UTF-8 text cannot hold")
            yield from _faults(member, (*path, name))


def _is_broken(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _half(text: str) -> str:
    half = next(character for character in text if "\ud800" <= character <= "\udfff")
    return f"half of a character (\\u{ord(half):04x})"


PART = 10_000
"""Number of published documents in one batch."""


@dataclass(frozen=True, slots=True)
class AnsweredDocuments:
    """Documents that were published one by one.

    Attributes:
        causes: for each document, the index of the document that caused it.
        documents: the documents; may be empty.
    """

    causes: list[int]
    documents: list[Document]


@dataclass(frozen=True, slots=True)
class AnsweredColumns:
    """Documents that have the same properties; none if there are no properties.

    Attributes:
        causes: for each document, the index of the document that caused it.
        names: names of the properties.
        texts: for each property, the values as a JSON array.
    """

    causes: np.ndarray
    names: tuple[str, ...]
    texts: tuple[bytes, ...]


class Broken(ValueError):
    """A published value that is not valid JSON for the runtime.

    Args:
        cause: the index of the document that caused it.
        fault: its place in the published document, and the reason.
    """

    def __init__(self, cause: int, fault: Fault) -> None:
        super().__init__(fault.reason)
        self.cause, self.fault = cause, fault


def gathered(
    answers: Iterator[AnsweredDocuments | AnsweredColumns],
) -> Iterator[PublishedColumns | PublishedDocuments]:
    """Yield the published documents, some thousand at a time.

    Raises:
        ValueError: the columns are malformed.
    """
    held: list[AnsweredColumns] = []
    count = 0
    for answer in answers:
        is_other = isinstance(answer, AnsweredDocuments) or (answer.names and held and answer.names != held[0].names)
        if held and (is_other or count >= PART):
            yield _columns(held, count)
            held, count = [], 0
        if isinstance(answer, AnsweredDocuments):
            yield from _listed(answer, answers)
        elif answer.names:
            held.append(answer)
            count += len(answer.causes)
    if held:
        yield _columns(held, count)


def _columns(answers: list[AnsweredColumns], count: int) -> PublishedColumns:
    """Return the columns of several answers whose documents have the same properties."""
    try:
        values = [read_column(texts, count) for texts in zip(*(answer.texts for answer in answers), strict=True)]
    except ValueError:
        for answer in answers:
            _find_fault(answer)
        raise
    return PublishedColumns(np.concatenate([answer.causes for answer in answers]), Columns.of(answers[0].names, values))


def _find_fault(answer: AnsweredColumns) -> None:
    """Raise `Broken` for the first value of an answer that does not parse."""
    for name, text in zip(answer.names, answer.texts, strict=True):
        fault = fault_in(text)
        if fault is not None and fault.row < len(answer.causes):
            raise Broken(int(answer.causes[fault.row]), Fault((name, *fault.path[1:]), fault.reason))


def _listed(
    first: AnsweredDocuments, answers: Iterator[AnsweredDocuments | AnsweredColumns]
) -> Iterator[PublishedDocuments]:
    """Yield documents that were published one by one, and all documents after them."""
    causes, documents = first.causes, first.documents
    for answer in answers:
        if isinstance(answer, AnsweredColumns):
            raise ValueError("columns come after documents")
        if len(causes) >= PART:
            yield PublishedDocuments(causes, documents)
            causes, documents = [], []
        causes += answer.causes
        documents += answer.documents
    if causes:
        yield PublishedDocuments(causes, documents)
