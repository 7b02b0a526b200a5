"""Report settings of a catalog that have no effect."""

from __future__ import annotations

from collections.abc import Iterator

from derive.catalog.language.json_schema import catalog_schema
from derive.catalog.language.vocabulary import NO_EFFECT, Schema
from derive.catalog.language.yaml import Located, YamlFile
from derive.errors import Issue

_NOT_RUN = "captures"
"""Section that is reported as a whole."""


def settings_without_effect(file: YamlFile) -> list[Issue]:
    """Return notes for the settings of a file without effect, except those that equal the default."""
    notes = _notes(Located(file, (), file.value), catalog_schema())
    return list(dict.fromkeys(notes))


def _notes(at: Located, schema: Schema) -> Iterator[Issue]:
    if "$ref" in schema:
        schema = catalog_schema()["$defs"][schema["$ref"].rpartition("/")[2]]
    for keyword in ("allOf", "anyOf", "oneOf"):
        for part in schema.get(keyword, ()):
            yield from _notes(at, part)
    if isinstance(at.value, dict):
        others = schema.get("additionalProperties")
        for name, member in at.items():
            known = schema.get("properties", {}).get(name, others)
            if member.path[0] != _NOT_RUN and isinstance(known, dict):
                yield from _note(name, member, known) if NO_EFFECT in known else _notes(member, known)
    elif isinstance(at.value, list) and isinstance(schema.get("items"), dict):
        for element in at.elements():
            yield from _notes(element, schema["items"])


def _note(name: str, at: Located, schema: Schema) -> Iterator[Issue]:
    if "default" not in schema or at.value != schema["default"]:
        message = f"'{name}' of '{at.path[1]}' has no effect here"
        yield Issue("N008", message, at.key_position, schema[NO_EFFECT] or None)
