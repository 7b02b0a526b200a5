"""Subschemas with their positions and the locations that they describe.

A shape does not record its subschemas. A rule must report a position, so this module walks the files themselves, and
follows references between files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

from derive.catalog.language.yaml import Located
from derive.catalog.loading.resources import Resources
from derive.catalog.report import Report
from derive.document.pointer import escape, unescape
from derive.errors import CatalogError
from derive.protocol.resource import resolve
from derive.suggest import suggest

Location: TypeAlias = tuple[str, ...]
"""Property names and indices (as text) from the root of a document; `OTHERS`, `ITEMS` and `MATCHING` stand for many."""

OTHERS, ITEMS, MATCHING = "\0*", "\0-", "\0~"
"""Tokens for the locations of `additionalProperties`, `items` and `patternProperties`."""

_IN_PLACE = ("oneOf", "anyOf")
_BRANCHES = ("then", "else")
_REST = {"additionalProperties": OTHERS, "unevaluatedProperties": OTHERS, "unevaluatedItems": ITEMS}


@dataclass(frozen=True, slots=True)
class Subschema:
    """A subschema that applies to one location.

    Attributes:
        location: the location.
        at: place of the subschema.
        root: root of its schema document, the base of references.
        conditional: true if it applies to some documents only.
        overridden: true if its `reduce` has no effect because of another one beside the reference to it.
    """

    location: Location
    at: Located
    root: Located
    conditional: bool
    overridden: bool = False

    @property
    def reduction(self) -> Located | None:
        """Return its `reduce` annotation; None if there is none, or it has no effect."""
        schema = self.at.value
        return self.at["reduce"] if isinstance(schema, dict) and "reduce" in schema and not self.overridden else None


def show_location(location: Location) -> str:
    """Return a location as a JSON pointer; `*` stands for all other properties or items."""
    return "".join(f"/{'*' if token.startswith(chr(0)) else escape(token)}" for token in location)


def subschemas_of(at: Located, resources: Resources, report: Report) -> list[Subschema]:
    """Return a schema and all its subschemas.

    Args:
        at: the schema, or the string that names its file.
        resources: loader with its files.
        report: report for issues of dangling references.
    """
    walk = _Walk(resources, report)
    if isinstance(at.value, str):
        target = walk.follow(at, at, at.value)
        return list(walk.subschemas(*target, (), frozenset([_identity(target[0])]))) if target else []
    return list(walk.subschemas(at, at, (), frozenset([_identity(at)])))


class _Walk:
    def __init__(self, resources: Resources, report: Report) -> None:
        self._resources = resources
        self._report = report

    def subschemas(
        self,
        at: Located,
        root: Located,
        location: Location,
        followed: frozenset[object],
        *,
        conditional: bool = False,
        overridden: bool = False,
    ) -> Iterator[Subschema]:
        """Yield a subschema and its descendants; `followed` are the targets of references on the path."""
        yield Subschema(location, at, root, conditional, overridden)
        schema = at.value
        if not isinstance(schema, dict):
            return
        reference = schema.get("$ref")
        if isinstance(reference, str):
            target = self.follow(at["$ref"], root, reference)
            if target and _identity(target[0]) not in followed:
                yield from self.subschemas(
                    *target,
                    location,
                    followed | {_identity(target[0])},
                    conditional=conditional,
                    overridden=overridden or "reduce" in schema,
                )
        for child, child_location, child_conditional in _children(at, location):
            yield from self.subschemas(
                child,
                root,
                child_location,
                followed,
                conditional=conditional or child_conditional,
                overridden=overridden and child_location == location,
            )

    def follow(self, at: Located, root: Located, reference: str) -> tuple[Located, Located] | None:
        """Return the target of a reference and the root of its document; None, and an issue, for a dangling one."""
        name, _, fragment = reference.partition("#")
        if name:
            try:
                file = self._resources.document(resolve(url_of(at), name))
            except (OSError, CatalogError):
                return None  # the loader has reported it
            root = Located(file, (), file.value)
        target = _anchor(root, fragment) if fragment and fragment[0] != "/" else _step(root, fragment)
        if target is None:
            self._report.add("E404", f"'$ref: {reference}' names nothing", at, _guess(root, fragment))
            return None
        return target, root


def _children(at: Located, location: Location) -> Iterator[tuple[Located, Location, bool]]:
    """Yield the direct subschemas: each with its location, and true if it applies to some documents only."""
    schema = at.value
    if isinstance(schema.get("allOf"), list):
        yield from ((child, location, False) for child in at["allOf"].elements())
    for keyword in _IN_PLACE:
        if isinstance(schema.get(keyword), list):
            yield from ((child, location, True) for child in at[keyword].elements())
    yield from ((at[keyword], location, True) for keyword in _BRANCHES if keyword in schema)
    if isinstance(schema.get("dependentSchemas"), dict):
        yield from ((child, location, True) for _, child in at["dependentSchemas"].items())
    if isinstance(schema.get("properties"), dict):
        yield from ((child, (*location, name), False) for name, child in at["properties"].items())
    if isinstance(schema.get("patternProperties"), dict):
        yield from ((child, (*location, f"{MATCHING}{name}"), False) for name, child in at["patternProperties"].items())
    for keyword in ("prefixItems", "items"):
        if isinstance(schema.get(keyword), list):
            yield from ((child, (*location, str(index)), False) for index, child in enumerate(at[keyword].elements()))
        elif keyword == "items" and keyword in schema:
            yield at[keyword], (*location, ITEMS), False
    if "additionalItems" in schema and isinstance(schema.get("items"), list):
        yield at["additionalItems"], (*location, ITEMS), False
    yield from ((at[keyword], (*location, token), False) for keyword, token in _REST.items() if keyword in schema)


def _identity(at: Located) -> object:
    return at.file.name, at.path


def url_of(at: Located) -> str:
    """Return the URL of a value's file."""
    name = at.file.name
    return name if urlsplit(name).scheme in ("http", "https") else os.path.abspath(name)


def _step(root: Located, fragment: str) -> Located | None:
    located = root
    for token in map(unescape, fragment.split("/")[1:]):
        value = located.value
        if isinstance(value, dict) and token in value:
            located = located[token]
        elif isinstance(value, list) and token.isascii() and token.isdigit() and int(token) < len(value):
            located = located[int(token)]
        else:
            return None
    return located


def _anchor(root: Located, name: str) -> Located | None:
    pending = [root]
    while pending:
        value_at = pending.pop()
        if isinstance(value_at.value, dict):
            if value_at.value.get("$anchor") == name:
                return value_at
            pending += [child for _, child in value_at.items()]
        elif isinstance(value_at.value, list):
            pending += value_at.elements()
    return None


def _guess(root: Located, fragment: str) -> str | None:
    defined = root.value.get("$defs") if isinstance(root.value, dict) else None
    known = [f"/$defs/{escape(name)}" for name in defined] if isinstance(defined, dict) else []
    guess = suggest(fragment, known)
    return f"did you mean '#{guess}'?" if guess else None
