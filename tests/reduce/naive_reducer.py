"""The oracle of reductions: the definition, with nothing prepared and nothing shared with `derive.reduce`.

It walks the raw JSON Schema for every value it meets, validates with `jsonschema`, and reduces whole histories only.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

from jsonschema import Draft202012Validator

GONE: Any = object()
"""What is not there: before the first document, or where the last one deleted."""


class Misfit(Exception):
    """A strategy does not fit its values, or two apply."""


def fold(schema: Any, documents: list[Any]) -> Any:
    value = GONE
    for document in documents:
        value = Naive(schema).reduce([schema], value, document)
    return value


def at(value: Any, pointer: str) -> Any:
    for token in pointer.split("/")[1:]:
        if isinstance(value, dict):
            value = value.get(token, GONE)
        elif isinstance(value, list) and token.isdigit() and int(token) < len(value):
            value = value[int(token)]
        else:
            return GONE
    return value


def rank(value: Any) -> tuple[Any, ...]:  # noqa: PLR0911
    """Sorts as document order does."""
    if value is GONE:
        return (0,)
    if value is None:
        return (1,)
    if isinstance(value, bool):
        return (2, value)
    if isinstance(value, int | float):
        return (3, value)
    if isinstance(value, str):
        return (4, value)
    if isinstance(value, list):
        return (5, [rank(each) for each in value])
    return (6, [(name, rank(each)) for name, each in sorted(value.items())])


class Naive:
    def __init__(self, root: Any) -> None:
        self.root = root
        self.validator = Draft202012Validator(root)

    def applying(self, schema: Any, value: Any) -> list[dict[str, Any]]:
        """The subschemas that apply in place, and under which the value is valid."""

        def below(each: Any) -> list[dict[str, Any]]:
            return self.applying(each, value) if self.validator.evolve(schema=each).is_valid(value) else []

        if not isinstance(schema, dict):
            return []
        found = [schema]
        if "$ref" in schema:
            target = self.applying(at(self.root, schema["$ref"].removeprefix("#")), value)
            if "reduce" in schema:
                target = [{name: each[name] for name in each if name != "reduce"} for each in target]
            found += target
        for each in schema.get("allOf", []):
            found += self.applying(each, value)
        for each in [*schema.get("oneOf", []), *schema.get("anyOf", [])]:
            found += below(each)
        if "if" in schema:
            holds = self.validator.evolve(schema=schema["if"]).is_valid(value)
            found += below(schema["if"])
            found += self.applying(schema.get("then" if holds else "else", True), value)
        for name, each in schema.get("dependentSchemas", {}).items():
            if isinstance(value, dict) and name in value:
                found += self.applying(each, value)
        return found

    def reduce(self, schemas: list[Any], left: Any, right: Any) -> Any:
        parts = [part for schema in schemas for part in self.applying(schema, right)]
        options: dict[str, Any] = {"key": [], "delete": False, "associative": True}
        annotations = [options | part["reduce"] for part in parts if "reduce" in part]
        if any(each != annotations[0] for each in annotations):
            raise Misfit
        annotation: dict[str, Any] = annotations[0] if annotations else {"strategy": "lastWriteWins", "delete": False}
        if annotation["strategy"] == "lastWriteWins":
            return GONE if annotation["delete"] else right
        return getattr(self, annotation["strategy"])(parts, annotation, left, right)

    def append(self, parts: list[Any], annotation: Any, left: Any, right: Any) -> Any:
        if left is GONE:
            return right
        if not isinstance(right, list) or not isinstance(left, list | None):
            raise Misfit
        return None if left is None else [*left, *right]

    def firstWriteWins(self, parts: list[Any], annotation: Any, left: Any, right: Any) -> Any:  # noqa: N802
        return right if left is GONE else left

    def jsonSchemaMerge(self, parts: list[Any], annotation: Any, left: Any, right: Any) -> Any:  # noqa: N802
        """Of schemas that have no keyword but `type`."""
        if not isinstance(right, dict) or (left is not GONE and not isinstance(left, dict)):
            raise Misfit
        if left is GONE:
            return right
        if "type" not in left or "type" not in right:
            return {}
        types = set()
        for each in (left["type"], right["type"]):
            types |= set(each if isinstance(each, list) else [each])
        return {"type": sorted(types) if len(types) > 1 else types.pop()}

    def maximize(self, parts: list[Any], annotation: Any, left: Any, right: Any) -> Any:
        return self.extreme(parts, annotation["key"], left, right, keep=lambda one, other: one > other)

    def minimize(self, parts: list[Any], annotation: Any, left: Any, right: Any) -> Any:
        return self.extreme(parts, annotation["key"], left, right, keep=lambda one, other: one < other)

    def extreme(self, parts: list[Any], key: list[str], left: Any, right: Any, *, keep: Any) -> Any:
        ranks = [[rank(at(side, each)) for each in key or [""]] if side is not GONE else None for side in (left, right)]
        if ranks[0] is not None and keep(ranks[0], ranks[1]):
            return left
        if not key or not isinstance(right, dict | list):
            return right
        return self.merge(parts, {"key": [], "delete": False}, left if ranks[0] == ranks[1] else GONE, right)

    def merge(self, parts: list[Any], annotation: Any, left: Any, right: Any) -> Any:
        if not isinstance(right, dict | list):
            raise Misfit
        if annotation["delete"]:
            return GONE
        if not isinstance(left, type(right)):
            left = type(right)()
        if isinstance(right, dict):
            merged: Any = dict(left)
            for name, value in right.items():
                merged[name] = self.reduce(self.of_property(parts, name), left.get(name, GONE), value)
            merged = {name: value for name, value in merged.items() if value is not GONE}
        elif annotation["key"]:
            merged = self.merge_by_key(parts, annotation["key"], left, right)
        else:
            merged = [
                self.reduce(self.of_item(parts, place), left[place] if place < len(left) else GONE, value)
                for place, value in enumerate(right)
            ]
            merged = [each for each in merged + left[len(right) :] if each is not GONE]
        return merged

    def merge_by_key(self, parts: list[Any], key: list[str], left: list[Any], right: list[Any]) -> list[Any]:
        befores, afters = self.by_key(key, left), self.by_key(key, right)
        merged = [(each, value) for each, value in befores if each not in [other for other, _ in afters]]
        for place, (each, value) in enumerate(afters):
            before = [other for found, other in befores if found == each]
            merged.append((each, self.reduce(self.of_item(parts, place), before[0] if before else GONE, value)))
        return [value for _, value in sorted(merged, key=lambda pair: pair[0]) if value is not GONE]

    def by_key(self, key: list[str], values: list[Any]) -> list[tuple[Any, Any]]:
        keyed = [([rank(at(value, each)) for each in key], value) for value in values]
        if any(before[0] >= after[0] for before, after in pairwise(keyed)):
            raise Misfit
        return keyed

    def set(self, parts: list[Any], annotation: Any, left: Any, right: Any) -> Any:
        left = {} if left is GONE else left
        key = annotation["key"]
        for side in (left, right):
            if (
                not isinstance(side, dict)
                or set(side) - {"add", "remove", "intersect"}
                or {"remove", "intersect"} <= set(side)
            ):
                raise Misfit
        terms = [*left.values(), *right.values()]
        if not all(isinstance(each, list) for each in terms) and not all(isinstance(each, dict) for each in terms):
            raise Misfit
        for each in terms:
            if isinstance(each, list):
                self.by_key(key, each)
        if "add" not in left and "add" not in right:
            return {}
        kept = left.get("add", GONE)
        if kept is not GONE and "intersect" in right:
            kept = self.choose(key, kept, right["intersect"], inside=True)
        if kept is not GONE and "remove" in right:
            kept = self.choose(key, kept, right["remove"], inside=False)
        if "add" not in right:
            return {"add": kept}
        below = [part for schema in self.of_property(parts, "add") for part in self.applying(schema, right["add"])]
        return {"add": self.merge(below, {"key": key, "delete": False}, kept, right["add"])}

    def choose(self, key: list[str], values: Any, others: Any, *, inside: bool) -> Any:
        if isinstance(values, dict):
            return {name: value for name, value in values.items() if (name in others) is inside}
        names = [name for name, _ in self.by_key(key, others)]
        return [value for name, value in self.by_key(key, values) if (name in names) is inside]

    def sum(self, parts: list[Any], annotation: Any, left: Any, right: Any) -> Any:
        left = 0 if left is GONE else left
        for side in (left, right):
            if isinstance(side, str) and not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", side):
                raise Misfit
            if isinstance(side, bool) or not isinstance(side, int | float | str):
                raise Misfit
        if not isinstance(left, str) and not isinstance(right, str):
            return left + right
        digits = max(-int(Decimal(each).as_tuple().exponent) for each in (left, right))
        units = (Fraction(left) + Fraction(right)) * 10**digits
        text = f"{abs(int(units)):0{digits + 1}d}"
        return ("-" if units < 0 else "") + (f"{text[:-digits]}.{text[-digits:]}" if digits else text)

    def of_property(self, parts: list[Any], name: str) -> list[Any]:
        found = []
        for part in parts:
            own = [part["properties"][name]] if name in part.get("properties", {}) else []
            own += [each for pattern, each in part.get("patternProperties", {}).items() if re.search(pattern, name)]
            found += own or ([part["additionalProperties"]] if "additionalProperties" in part else [])
        return found

    def of_item(self, parts: list[Any], place: int) -> list[Any]:
        found = []
        for part in parts:
            prefix = part.get("prefixItems", [])
            if place < len(prefix):
                found.append(prefix[place])
            elif "items" in part:
                found.append(part["items"])
        return found
