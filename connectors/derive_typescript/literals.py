"""Values that a schema lists for a location.

A `Shape` knows types and not values, which is all that storage and projections ask for. TypeScript's unions of
literals say more, so that a misspelt constant does not compile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from derive.document.pointer import JSON, unescape
from derive.schema.infer import type_of as json_type_of
from derive.schema.shape import Types


@dataclass(frozen=True, slots=True)
class Schemas:
    """The schemas that all apply at one location; alternatives (`anyOf`, `if`, …) are left out.

    Attributes:
        root: the document that `$ref`s point into.
        nodes: the schemas.
    """

    root: JSON = True
    nodes: tuple[dict[str, Any], ...] = ()

    @staticmethod
    def of(schema: JSON) -> Schemas:
        """The schemas of a document's root."""
        return Schemas(schema, tuple(_all_of(schema, schema, ())))

    def property(self, name: str) -> Schemas:
        """Those of a named property."""
        found = [each["properties"][name] for each in self.nodes if name in each.get("properties", {})]
        return self._below(found)

    def item(self) -> Schemas:
        """Those of an array's items, where no tuple comes before them."""
        return self._below([each["items"] for each in self.nodes if isinstance(each.get("items"), dict)])

    def _below(self, found: list[JSON]) -> Schemas:
        return Schemas(self.root, tuple(node for each in found for node in _all_of(self.root, each, ())))

    def values(self, types: Types) -> list[JSON] | None:
        """The scalars of these types that all schemas list; None if no schema lists any, or one lists an object."""
        lists = [[each["const"]] if "const" in each else each["enum"] for each in self.nodes if _lists(each)]
        if not lists or any(isinstance(value, list | dict) for each in lists for value in each):
            return None
        # JSON's booleans are not its numbers, though Python says True == 1.
        others = [{(json_type_of(value), value) for value in each} for each in lists[1:]]
        return [
            value
            for value in lists[0]
            if json_type_of(value) in types and all((json_type_of(value), value) in each for each in others)
        ]


def _lists(schema: dict[str, Any]) -> bool:
    return "const" in schema or isinstance(schema.get("enum"), list)


def _all_of(root: JSON, schema: JSON, references: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    if not isinstance(schema, dict):
        return
    yield schema
    for part in schema.get("allOf", ()):
        yield from _all_of(root, part, references)
    reference = schema.get("$ref")
    # An anchor is looked up by the shape alone: here it lists no values, which is never wrong.
    if isinstance(reference, str) and reference.startswith("#") and reference not in references:
        yield from _all_of(root, _resolve(root, reference), (*references, reference))


def _resolve(root: JSON, reference: str) -> JSON:
    if not reference.startswith("#/"):
        return root if reference == "#" else True
    target = root
    for token in reference.split("/")[1:]:
        name = unescape(token)
        try:
            target = target[int(name)] if isinstance(target, list) else target[name]
        except (KeyError, IndexError, ValueError, TypeError):
            return True
    return target
