"""The `reduce` keyword: the reduction of values at one location, and the annotated locations of a schema.

Equivalent schemas, such as two schemas of which one has a part in `$defs`, have the same annotated locations. If a
reduction depends on the value (`oneOf`, `anyOf`, `if`), the text of its annotation includes the condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import unquote

import orjson

from derive.document.pointer import JSON, compile_pointer, escape
from derive.errors import SchemaError, suggest

STRATEGIES: Mapping[str, frozenset[str]] = {
    "append": frozenset(),
    "firstWriteWins": frozenset(),
    "jsonSchemaMerge": frozenset(),
    "lastWriteWins": frozenset({"delete", "associative"}),
    "maximize": frozenset({"key"}),
    "merge": frozenset({"key", "delete"}),
    "minimize": frozenset({"key"}),
    "set": frozenset({"key"}),
    "sum": frozenset(),
}
"""Options of each strategy, by its name."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """One `reduce` annotation.

    Attributes:
        strategy: one of `STRATEGIES`.
        key: JSON pointers, relative to the compared values; empty for the whole values.
        delete: true if a full reduction removes the location.
        associative: true if a partial reduction may combine unequal values.
    """

    strategy: str
    key: tuple[str, ...] = ()
    delete: bool = False
    associative: bool = True


def parse_annotation(value: JSON, where: str) -> Annotation:
    """Parse a `reduce` keyword.

    Args:
        value: value of the keyword.
        where: name of the schema and location, for messages.

    Raises:
        SchemaError: the value is not an annotation.
    """
    strategy = value.get("strategy") if isinstance(value, dict) else None
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        meant = suggest(strategy, STRATEGIES) if isinstance(strategy, str) else None
        known = ", ".join(sorted(STRATEGIES))
        hint = f"did you mean '{meant}'?" if meant else f"strategies: {known}"
        raise SchemaError(f"{where} is {value!r}, which is not supported", hint=hint)
    options = STRATEGIES[strategy]
    for option, given in value.items():
        if option == "strategy":
            continue
        if option not in options:
            known = f"its options: {', '.join(sorted(options))}" if options else "it has none"
            raise SchemaError(f"{where}: the strategy '{strategy}' has no option '{option}'", hint=known)
        if option == "key" and not _is_key(given):
            raise SchemaError(f"{where}: 'key' is {given!r}, and must be a list of JSON pointers")
        if option != "key" and not isinstance(given, bool):
            raise SchemaError(f"{where}: '{option}' is {given!r}, and must be true or false")
    return Annotation(strategy, tuple(value.get("key", ())), value.get("delete", False), value.get("associative", True))


def _is_key(value: JSON) -> bool:
    return isinstance(value, list) and all(isinstance(pointer, str) and pointer[:1] in ("", "/") for pointer in value)


_NAMED = ("properties", "patternProperties")
_EACH = ("additionalProperties", "unevaluatedProperties", "items", "unevaluatedItems", "contains")
_CONDITIONS = ("oneOf", "anyOf")
_BRANCHES = ("if", "then", "else")

_MOST = 20_000
"""Limit for the number of schema parts that are followed to their locations.

Mutual references can create so many parts in a short schema. Above the limit, the place of an annotation in the schema
identifies the annotation.
"""


def annotated_locations(schema: JSON) -> dict[str, str]:
    """Return a text of the annotations by location; it is empty for a location without annotations.

    >>> annotated_locations({"reduce": {"strategy": "merge"}, "properties": {"n": {}}})
    {'': 'merge', '/n': ''}

    Args:
        schema: self-contained schema.
    """
    walked = list(islice(_walk(schema, schema, "", frozenset()), _MOST + 1))
    annotations: dict[str, list[str]] = {}
    for location, annotation in walked if len(walked) <= _MOST else _keywords(schema, ""):
        texts = annotations.setdefault(location, [])
        if annotation:
            texts.append(annotation)
    return {location: " and ".join(texts) for location, texts in sorted(annotations.items())}


def _walk(root: JSON, schema: JSON, location: str, above: frozenset[str]) -> Iterator[tuple[str, str]]:
    if not isinstance(schema, dict):
        return
    yield location, _text(schema["reduce"]) if "reduce" in schema else ""
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#") and reference not in above:
        target = compile_pointer(unquote(reference[1:]))(root) if reference[1:2] in ("", "/") else None
        yield from _walk(root, target, location, above | {reference})
    for part in schema.get("allOf", ()):
        yield from _walk(root, part, location, above)
    for name in _NAMED:
        for member, part in schema.get(name, {}).items():
            yield from _walk(root, part, f"{location}/{escape(member)}", above)
    for index, part in enumerate(schema.get("prefixItems", ())):
        yield from _walk(root, part, f"{location}/{index}", above)
    for name in _EACH:
        yield from _walk(root, schema.get(name), f"{location}/*", above)
    yield from _conditional(root, schema, location, above)


def _conditional(
    root: JSON, schema: Mapping[str, Any], location: str, above: frozenset[str]
) -> Iterator[tuple[str, str]]:
    """Yield the location and text of each annotation that depends on a value, with the whole condition."""
    groups = [{name: schema[name]} for name in _CONDITIONS if name in schema]
    groups.append({name: schema[name] for name in _BRANCHES if name in schema})
    for group in groups:
        parts = [part for value in group.values() for part in (value if isinstance(value, list) else [value])]
        located = [pair for part in parts for pair in _walk(root, part, location, above)]
        condition = (
            orjson.dumps(group, option=orjson.OPT_SORT_KEYS).decode() if any(text for _, text in located) else ""
        )
        for place, annotation in located:
            yield place, f"{annotation} if {condition}" if annotation else ""


def _keywords(schema: JSON, pointer: str) -> Iterator[tuple[str, str]]:
    """Yield all annotations by their place in the schema."""
    members = schema.items() if isinstance(schema, dict) else enumerate(schema) if isinstance(schema, list) else ()
    for name, part in members:
        if name == "reduce" and isinstance(part, dict) and isinstance(part.get("strategy"), str):
            yield pointer, _text(part)
        else:
            yield from _keywords(part, f"{pointer}/{escape(str(name))}")


def _text(annotation: JSON) -> str:
    if not isinstance(annotation, dict):
        return str(annotation)
    options = {name: value for name, value in annotation.items() if name != "strategy"}
    rest = f" {orjson.dumps(options, option=orjson.OPT_SORT_KEYS).decode()}" if options else ""
    return f"{annotation.get('strategy')}{rest}"
