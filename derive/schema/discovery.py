"""Discovery: infer a JSON schema and a likely key from documents.

The schema accepts every document that was read. The key consists of the fewest fields that all documents have, and that
together have other values in each document.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import combinations

import numpy as np
import numpy.typing as npt

from derive.document.pointer import JSON, escape
from derive.schema.shape import type_of
from derive.schema.validator import Validator, compile_validator

FORMATS = ("date-time", "date", "time", "uuid", "email", "ipv4", "ipv6")
"""The formats of strings that are found; if all values have several formats, the first."""

_LEVELS = 12
"""Number of nested levels that a schema describes."""

_NAMES = 500
"""Number of names in an object, beyond which only names in all objects are described."""

_ENUM_VALUES, _ENUM_REPEATS, _ENUM_LENGTH = 10, 10, 40
"""Largest number of values of an enumeration, their least mean count, and their greatest length."""

_KEY_COLUMNS, _KEY_LEVELS, _COMBINED, _KEY_FIELDS = 64, 3, 12, 3
"""Limits for keys: fields, levels of objects, fields that are combined, and fields of a key."""

_TYPES = {
    "string": "string",
    "integer": "integer",
    "fractional": "number",
    "boolean": "boolean",
    "object": "object",
    "array": "array",
    "null": "null",
}
"""Types in schemas by the types of values, in the order of schemas."""

_SCALARS = frozenset({"boolean", "integer", "string"})
_IDENTIFIER = re.compile(r"_?(id|uuid|guid|key)", re.IGNORECASE)
_LIKE_IDENTIFIER = re.compile(r".*([_\W](id|uuid|guid|key|code|sku|number|no)|(Id|ID|Uuid|UUID|Key|Code|Number))")


def is_identifier(pointer: str) -> bool:
    """Return whether a field is named like an identifier."""
    return _IDENTIFIER.fullmatch(pointer.rpartition("/")[2]) is not None


@cache
def _format(name: str) -> Validator:
    return compile_validator({"type": "string", "format": name}, name=name)


class _Location:
    """The values at a location of documents."""

    __slots__ = ("count", "counts", "formats", "is_closed", "items", "level", "objects", "properties", "types")

    def __init__(self, level: int) -> None:
        self.level = level
        self.count = 0
        self.types: set[str] = set()
        self.formats: Sequence[str] = FORMATS
        self.counts: dict[str, int] | None = {}  # of strings; None if there are too many
        self.objects = 0
        self.properties: dict[str, _Location] = {}
        self.is_closed = False  # whether there are too many names to add others
        self.items: _Location | None = None

    def add(self, value: JSON) -> None:
        """Add a value."""
        kind = type_of(value)
        self.count += 1
        self.types.add(kind)
        if kind == "string":
            self._add_text(value)
        elif kind == "object":
            self.objects += 1
            if self.level < _LEVELS:
                self._add_object(value)
        elif kind == "array" and self.level < _LEVELS:
            for item in value:
                self.items = self.items or _Location(self.level + 1)
                self.items.add(item)

    def _add_text(self, text: str) -> None:
        if self.formats:
            self.formats = [name for name in self.formats if _format(name).is_valid(text)]
        if self.counts is not None:
            self.counts[text] = self.counts.get(text, 0) + 1
            if len(self.counts) > _ENUM_VALUES or len(text) > _ENUM_LENGTH:
                self.counts = None

    def _add_object(self, value: dict[str, JSON]) -> None:
        for name, member in value.items():
            location = self.properties.get(name)
            if location is None:
                if self.is_closed:
                    continue
                location = self.properties[name] = _Location(self.level + 1)
            location.add(member)
        if len(self.properties) > _NAMES and not self.is_closed:
            self.is_closed = True
            self.properties = dict(self.required())

    def required(self) -> Iterator[tuple[str, _Location]]:
        """Yield the members that all objects at this location have."""
        return ((name, member) for name, member in self.properties.items() if member.count == self.objects)

    def schema(self) -> dict[str, JSON]:
        """Return the schema of the values; that of nothing but nulls allows any value, because it knows no type."""
        if self.types == {"null"}:
            return {}
        has_fraction = "fractional" in self.types
        types = [_TYPES[kind] for kind in _TYPES if kind in self.types and not (has_fraction and kind == "integer")]
        schema: dict[str, JSON] = {"type": types[0] if len(types) == 1 else types}
        if "string" in self.types and self.formats:
            schema["format"] = self.formats[0]
        elif values := self._enumerated():
            schema["enum"] = values
        if required := [name for name, _ in self.required()]:
            schema["required"] = required
        if self.properties:
            schema["properties"] = {name: member.schema() for name, member in self.properties.items()}
        if self.items is not None and (items := self.items.schema()):
            schema["items"] = items
        return schema

    def nulls(self, within: str) -> Iterator[str]:
        """Yield the locations, below one, that had no value other than null; `*` stands for the items of an array."""
        if self.types == {"null"}:
            yield within
        for name, member in self.properties.items():
            yield from member.nulls(f"{within}/{escape(name)}")
        if self.items is not None:
            yield from self.items.nulls(f"{within}/*")

    def _enumerated(self) -> list[JSON]:
        """Return the few strings that the values repeat; none if there are other values than strings and null."""
        counts = self.counts if self.types <= {"string", "null"} else None
        if not counts or len(counts) < 2 or sum(counts.values()) < _ENUM_REPEATS * len(counts):
            return []
        return [*sorted(counts), *([None] if "null" in self.types else [])]


@dataclass(frozen=True, slots=True)
class KeyChoice:
    """A likely key.

    Attributes:
        pointers: JSON pointers of the fields; none if no field is in all documents.
        distinct: number of different keys in the documents.
        others: other keys with as few fields, of which each is unique in all documents.
    """

    pointers: tuple[str, ...]
    distinct: int
    others: tuple[tuple[str, ...], ...] = ()


@dataclass(slots=True)
class _Field:
    """A field that all documents have so far."""

    names: tuple[str, ...]
    kind: str
    hashes: array[int]

    @property
    def pointer(self) -> str:
        return "".join(f"/{escape(name)}" for name in self.names)


class Discovery:
    """Infers the schema and the key of documents.

    Attributes:
        documents: number of documents.
    """

    def __init__(self) -> None:
        self.documents = 0
        self._root = _Location(0)
        self._fields: list[_Field] = []

    def add(self, document: dict[str, JSON]) -> None:
        """Add a document."""
        self._root.add(document)
        if not self.documents:
            scalars = list(_scalars(document, ()))[:_KEY_COLUMNS]
            self._fields = [_Field(names, type_of(value), array("q")) for names, value in scalars]
        self.documents += 1
        self._fields = [at for at in self._fields if _appended(at, document)]

    def schema(self) -> dict[str, JSON]:
        """Return a JSON schema that accepts all documents."""
        return self._root.schema()

    def key(self) -> KeyChoice:
        """Return the likely key: the fewest fields that are unique together, preferably with names of identifiers."""
        fields = sorted(self._fields, key=self._rank)
        codes: dict[str, npt.NDArray[np.int64]] = {}
        for at in fields:
            codes[at.pointer] = np.unique(np.frombuffer(at.hashes, np.int64), return_inverse=True)[1]
        unique = [at.pointer for at in fields if _distinct([codes[at.pointer]]) == self.documents]
        if unique:
            return KeyChoice((unique[0],), self.documents, tuple((other,) for other in unique[1:]))
        varying = [at.pointer for at in fields if _distinct([codes[at.pointer]]) > 1][:_COMBINED]
        for size in range(2, _KEY_FIELDS + 1):
            chosen = combinations(varying, size)
            together = [some for some in chosen if _distinct([codes[at] for at in some]) == self.documents]
            if together:
                return KeyChoice(together[0], self.documents, tuple(together[1:]))
        best = max((at.pointer for at in fields), key=lambda at: _distinct([codes[at]]), default=None)
        return KeyChoice((best,), _distinct([codes[best]])) if best is not None else KeyChoice((), 0)

    def nulls(self) -> list[str]:
        """Return the locations that had no value other than null, and that the schema gives no type."""
        return list(self._root.nulls(""))

    def mixed(self) -> dict[str, list[str]]:
        """Return the types of each field that is in all documents and in no key, because it has several types."""
        return dict(_mixed(self._root, ()))

    def _rank(self, at: _Field) -> tuple[int, int, int]:
        """Return the rank of a field as a part of a key, least first."""
        name = at.names[-1]
        alike = 0 if _IDENTIFIER.fullmatch(name) else 1 if _LIKE_IDENTIFIER.fullmatch(name) else 2
        location = self._root
        for step in at.names:
            location = location.properties[step]
        is_time = at.kind == "string" and any(known in location.formats for known in ("date-time", "date", "time"))
        return alike, 2 if at.kind == "boolean" else int(is_time), len(at.names)


def _mixed(location: _Location, within: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    """Yield the pointers of required fields with several types, of which one may be a part of a key, with the types."""
    for name, member in location.required():
        types = member.schema().get("type")
        if name and isinstance(types, list) and not _SCALARS.isdisjoint(member.types):
            yield "".join(f"/{escape(step)}" for step in (*within, name)), types
        elif name and types == "object" and len(within) + 1 < _KEY_LEVELS:
            yield from _mixed(member, (*within, name))


def _scalars(value: dict[str, JSON], within: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], JSON]]:
    """Yield the paths of members that may be a part of a key, with their values."""
    for name, member in value.items():
        if not name:
            continue  # no pointer of a key has an empty name
        if type_of(member) in _SCALARS:
            yield (*within, name), member
        elif isinstance(member, dict) and len(within) + 1 < _KEY_LEVELS:
            yield from _scalars(member, (*within, name))


def _appended(at: _Field, document: JSON) -> bool:
    """Append the value of a field; return false if a document lacks it, or has another type."""
    value = document
    for name in at.names:
        if not isinstance(value, dict) or name not in value:
            return False
        value = value[name]
    if type_of(value) != at.kind:
        return False
    at.hashes.append(hash(str(int(value)) if at.kind == "integer" else value))  # Python hashes -1 like -2
    return True


def _distinct(codes: Sequence[npt.NDArray[np.int64]]) -> int:
    """Return the number of different tuples in columns of small numbers."""
    combined = reduce(lambda left, right: np.unique(left * (right.max() + 1) + right, return_inverse=True)[1], codes)
    return int(combined.max()) + 1
