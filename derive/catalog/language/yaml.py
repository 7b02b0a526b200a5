"""Parses YAML, with the position of every value.

This module composes values from libyaml's events, because catalogs are YAML 1.2: anchors may be repeated (the latest
anchor is used), and `yes`, `on` and times are strings. Merge keys are applied.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

from derive.document.exact import parse_exact
from derive.document.pointer import JSON, escape
from derive.errors import CatalogError, Issue
from derive.position import Position, Script

Path: TypeAlias = tuple[str | int, ...]
"""Property names and indexes from the root of a document."""

_HALVES = re.compile(r"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_TAG = "tag:yaml.org,2002:"
_DEEPEST = 200
_MOST_VALUES = 1_000_000
_INDENTATION = "check the indentation: lines of one level begin in one column"
_HINTS = {
    "did not find expected key": _INDENTATION,
    "did not find expected '-' indicator": _INDENTATION,
    "mapping values are not allowed in this context": "check the indentation; a text with ': ' needs quotes",
}
"""Remedies by the parser's message."""
"""Largest number of values in a file after its aliases are replaced; a few lines of aliases can stand for billions."""

_CONSTANTS: dict[str, JSON] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@dataclass(frozen=True, slots=True)
class Span:
    """Position of a value: line and column from 0, and its range in the text."""

    line: int
    column: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class YamlFile:
    """A parsed file.

    Attributes:
        name: path for messages.
        text: complete text.
        value: content, as JSON.
        spans: position of each value, by path.
        keys: position of each property name, by the path of its value.
    """

    name: str
    text: str
    value: JSON
    spans: dict[Path, Span]
    keys: dict[Path, Span]


@dataclass(frozen=True, slots=True)
class Located:
    """A value in a YAML file.

    Attributes:
        file: the file.
        path: path of the value in the file.
        value: the value.
    """

    file: YamlFile
    path: Path
    value: JSON

    @property
    def position(self) -> Position:
        """Return the position of the value."""
        return _position(self.file, self.file.spans.get(self.path, Span(0, 0, 0, 0)))

    @property
    def key_position(self) -> Position:
        """Return the position of the value's property name."""
        span = self.file.keys.get(self.path)
        return _position(self.file, span) if span else self.position

    def __getitem__(self, name: str | int) -> Located:
        return Located(self.file, (*self.path, name), self.value[name])

    def items(self) -> Iterator[tuple[str, Located]]:
        """Yield the properties of an object."""
        for name in self.value:
            yield name, self[name]

    def elements(self) -> Iterator[Located]:
        """Yield the items of an array."""
        for index in range(len(self.value)):
            yield self[index]

    def positions(self) -> dict[str, Position]:
        """Return the positions of this value and of all values within it, by JSON pointer."""
        return dict(_positions(self, ""))

    def script(self) -> Script:
        """Return a string as code that can locate each of its characters."""
        span = self.file.spans[self.path]
        return Script(self.value, self.file.text[span.begin : span.end], self.position)


def _positions(at: Located, pointer: str) -> Iterator[tuple[str, Position]]:
    yield pointer, at.position
    if isinstance(at.value, dict):
        for name, member in at.items():
            yield from _positions(member, f"{pointer}/{escape(name)}")
    elif isinstance(at.value, list):
        for index, item in enumerate(at.elements()):
            yield from _positions(item, f"{pointer}/{index}")


def _position(file: YamlFile, span: Span) -> Position:
    first = file.text[span.begin : span.end].split("\n", 1)[0].rstrip()
    return Position(file.name, span.line + 1, span.column + 1, len(first))


def parse_yaml(text: str, name: str) -> YamlFile:
    """Parse a YAML (or JSON) document.

    Raises:
        CatalogError: the text is not YAML, repeats a property name, or refers to an unknown anchor.
    """
    plain = _as_yaml(text) if name.lower().endswith(".json") else text
    composer = _Composer(plain, name)
    try:
        value = composer.document()
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        if mark and mark.index >= len(text):  # the text ends within a construct: report its beginning
            mark = exc.context_mark or mark
        where = Position(name, mark.line + 1, mark.column + 1) if mark else Position(name)
        if mark and plain[mark.index : mark.index + 1] == "\t":
            issue = Issue(
                "E001",
                ("not YAML: a tab indents this line, but only spaces may indent"),
                where,
                "replace the tab with spaces",
            )
            raise CatalogError([issue]) from exc
        hint = _HINTS.get(exc.problem or "")
        raise CatalogError([Issue("E001", f"not YAML: {exc.problem or exc.context}", where, hint)]) from exc
    except yaml.YAMLError as exc:
        raise CatalogError([Issue("E001", f"not YAML: {exc}", Position(name))]) from exc
    return YamlFile(name, plain, value, composer.spans, composer.keys)


def parse_json_lines(text: str, name: str) -> YamlFile:
    """Parse JSON Lines as an array, whose items have the positions of their lines.

    Raises:
        CatalogError: a line is not JSON.
    """
    values: list[JSON] = []
    spans: dict[Path, Span] = {}
    issues: list[Issue] = []
    begin = 0
    for number, line in enumerate(text.split("\n")):
        end = begin + len(line)
        if line.strip():
            spans[len(values),] = Span(number, 0, begin, end)
            try:
                values.append(parse_exact(line.encode()))
            except ValueError as exc:
                issues.append(Issue("E001", f"not JSON: {exc}", Position(name, number + 1, 1, len(line))))
        begin = end + 1
    if issues:
        raise CatalogError(issues)
    return YamlFile(name, text, values, spans, {})


def _as_yaml(text: str) -> str:
    """Convert JSON to YAML: replace tabs, and surrogate pairs by their characters."""
    return _HALVES.sub(lambda match: json.loads(f'"{match[0]}"'), text.replace("\t", " "))


class _Composer:
    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._events = iter(yaml.parse(text, Loader=yaml.CSafeLoader))
        self._anchors: dict[str, tuple[JSON, dict[Path, Span], dict[Path, Span]]] = {}
        self.spans: dict[Path, Span] = {}
        self.keys: dict[Path, Span] = {}

    def document(self) -> JSON:
        next(self._events)  # stream start
        if not isinstance(next(self._events), yaml.DocumentStartEvent):
            return None
        value = self._value(next(self._events), ())
        next(self._events)  # document end
        event = next(self._events)
        if not isinstance(event, yaml.StreamEndEvent):
            self._fail("E001", "a catalog file has one YAML document, but a second one begins here", event)
        return value

    def _next(self) -> Any:
        return next(self._events)

    def _fail(self, code: str, message: str, event: Any, hint: str | None = None) -> None:
        mark = event.start_mark
        raise CatalogError([Issue(code, message, Position(self._name, mark.line + 1, mark.column + 1), hint)])

    def _value(self, event: Any, path: Path) -> JSON:
        start, end = event.start_mark, event.end_mark
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path)
        if len(path) > _DEEPEST:
            self._fail("E001", f"this value is nested in more than {_DEEPEST} others", event)
        if event.tag and event.tag != "!" and not event.tag.startswith(_TAG):
            self._fail("E001", f"the tag '{event.tag}' has no meaning in a catalog", event)
        if isinstance(event, yaml.ScalarEvent):
            self.spans[path] = Span(start.line, start.column, start.index, end.index)
            try:
                value: JSON = _scalar(event)
            except ValueError:
                self._fail("E001", "this number is too large", event)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(path)
            self.spans[path] = Span(start.line, start.column, start.index, start.index)
        else:
            value = self._mapping(path)
            self.spans[path] = Span(start.line, start.column, start.index, start.index)
        if event.anchor:
            depth = len(path)
            spans = {inner[depth:]: span for inner, span in self.spans.items() if inner[:depth] == path}
            keys = {inner[depth:]: span for inner, span in self.keys.items() if inner[:depth] == path and inner != path}
            self._anchors[event.anchor] = (value, spans, keys)
        return value

    def _alias(self, event: Any, path: Path) -> JSON:
        if event.anchor not in self._anchors:
            self._fail("E001", f"there is no anchor '&{event.anchor}' before this alias", event)
        value, spans, keys = self._anchors[event.anchor]
        if len(self.spans) + len(spans) > _MOST_VALUES:
            self._fail("E001", f"after aliases are replaced, the file has more than {_MOST_VALUES:,} values", event)
        if len(path) + max(map(len, spans)) > _DEEPEST:
            self._fail("E001", f"after aliases are replaced, values are nested in more than {_DEEPEST} others", event)
        self.spans.update({(*path, *inner): span for inner, span in spans.items()})
        self.keys.update({(*path, *inner): span for inner, span in keys.items()})
        return value

    def _sequence(self, path: Path) -> list[JSON]:
        values: list[JSON] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            values.append(self._value(event, (*path, len(values))))
        return values

    def _mapping(self, path: Path) -> dict[str, JSON]:
        values: dict[str, JSON] = {}
        merged: list[tuple[Path, JSON]] = []
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._fail("E001", "a property name must be a string", event)
            name: str = event.value
            if name == "<<" and event.implicit[0]:
                value = self._value(next(self._events), (*path, "<<"))
                if isinstance(value, list):
                    merged += [((*path, "<<", index), source) for index, source in enumerate(value)]
                else:
                    merged.append(((*path, "<<"), value))
                if not all(isinstance(source, dict) for _, source in merged):
                    self._fail("E001", "'<<' can merge only an object, or an array of objects", event)
                continue
            if name in values:
                hint = f"join it with the one in line {self.keys[(*path, name)].line + 1}"
                self._fail("E002", f"property '{name}' is defined twice", event, hint)
            start, end = event.start_mark, event.end_mark
            self.keys[(*path, name)] = Span(start.line, start.column, start.index, end.index)
            values[name] = self._value(next(self._events), (*path, name))
        for origin, source in merged:
            for name, value in source.items():
                if name not in values:
                    values[name] = value
                    self._copy_spans((*origin, name), (*path, name))
        return values

    def _copy_spans(self, origin: Path, path: Path) -> None:
        """Copy the positions of merged values from their anchor."""
        depth = len(origin)
        for spans in (self.spans, self.keys):
            spans.update({(*path, *inner[depth:]): at for inner, at in spans.items() if inner[:depth] == origin})


def _scalar(event: Any) -> JSON:
    """Return the value of a scalar.

    Raises:
        ValueError: the scalar is a number that is too large.
    """
    text: str = event.value
    if not event.implicit[0] or event.style:
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text, 0) if text[1:2] in ("o", "x") else int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if math.isinf(number):
            raise ValueError("no float is this large")
        return number
    return text
