"""The reduction plan of a schema: at each location what to do, found out once and not once per document.

A location without an annotation is replaced by the later document's value, with everything below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from derive.document.pointer import JSON
from derive.errors import SchemaError
from derive.reduce.annotation import Annotation
from derive.reduce.applied import Condition, Part, SchemaParts
from derive.schema.validator import compile_validator


@dataclass(slots=True, eq=False)
class Plan:
    """What to do at one location, and below it.

    Built once and then only read. It may refer to itself, as a recursive schema does.

    Attributes:
        annotation: of the location; None for none.
        conflict: what is wrong, if annotations that differ apply.
        properties: plans of named properties.
        patterns: for each pattern of `patternProperties`, whether a name matches it.
        others: the plan of all other properties, by which of `patterns` their name matches.
        prefix: plans of an array's first items.
        items: the plan of all other items.
    """

    annotation: Annotation | None = None
    conflict: str | None = None
    properties: dict[str, Location] = field(default_factory=dict)
    patterns: tuple[Callable[[str], bool], ...] = ()
    others: Callable[[tuple[bool, ...]], Location] = field(init=False)
    prefix: list[Location] = field(default_factory=list)
    items: Location = field(init=False)


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """A location whose plan depends on the value.

    Attributes:
        conditions: what it depends on.
        decide: the plan where these parts apply by the conditions, besides those that always do.
    """

    conditions: tuple[Condition, ...]
    decide: Callable[[Iterable[Part]], Plan]


Location: TypeAlias = Plan | Choice
"""What is known of a location from its schemas alone."""


class PlanBuilder:
    """Reads the plan out of a self-contained schema.

    Args:
        schema: JSON Schema whose `$ref`s resolve inside it.
        name: of the collection, for messages.

    Raises:
        SchemaError: its annotations make no sense.
    """

    def __init__(self, schema: JSON, name: str) -> None:
        self._parts = SchemaParts(schema, name)
        self._choices: dict[frozenset[int], Choice] = {}
        self._plans: dict[frozenset[int], Plan] = {}
        self._built = False

    @property
    def full_differs(self) -> bool:
        """Whether some value means something else in a whole history than in a part of one; known when it is built."""
        return self._parts.full_differs

    def build(self) -> Location:
        """What to do at the root.

        Raises:
            SchemaError: annotations conflict wherever they apply. Some do only for values that meet several conditions,
                which are found as such values are.
        """
        root = self._location([self._parts.root])
        self._built = True
        return root

    def _location(self, schemas: list[JSON]) -> Location:
        """What is known of a location to which all these schemas apply."""
        identity = frozenset(map(id, schemas))
        if identity in self._choices:
            return self._choices[identity]
        applied = self._parts.apply(schemas)
        if not applied.conditions:
            return self._plan(applied.parts)
        choice = Choice(applied.conditions, lambda more: self._plan((*applied.parts, *more)))
        self._choices[identity] = choice
        for condition in applied.conditions:  # what cannot go together is known before there are documents
            for outcome in (condition.then, condition.otherwise):
                choice.decide(outcome.parts)
        return choice

    def _plan(self, parts: Iterable[Part]) -> Plan:
        """The plan of a location to which exactly these parts apply."""
        unique = list({id(part): part for part in parts}.values())
        identity = frozenset(map(id, unique))
        if identity in self._plans:
            return self._plans[identity]
        plan = self._plans[identity] = Plan()
        self._annotate(plan, unique)
        self._add_properties(plan, unique)
        self._add_items(plan, unique)
        return plan

    def _annotate(self, plan: Plan, parts: list[Part]) -> None:
        first: Part | None = None
        for part in parts:
            annotation = self._parts.annotation(part)
            if annotation is None:
                continue
            if first and plan.annotation and annotation != plan.annotation:
                plan.conflict = (
                    f"the schema of '{self._parts.name}' has conflicting reductions at one location:"
                    f" '{plan.annotation.strategy}' at '{self._parts.where(first)}' and"
                    f" '{annotation.strategy}' at '{self._parts.where(part)}'"
                )
                if not self._built:
                    raise SchemaError(plan.conflict)
            first, plan.annotation = part, annotation

    def _add_properties(self, plan: Plan, parts: list[Part]) -> None:
        patterns = sorted({pattern for part in parts for pattern in part.get("patternProperties", {})})
        # Rust's own, so that a pattern means here what it means where documents are validated.
        plan.patterns = tuple(compile_validator({"pattern": each}, name=self._parts.name).is_valid for each in patterns)

        def other(matches: tuple[bool, ...], name: str | None = None) -> Location:
            matched = {pattern for pattern, match in zip(patterns, matches, strict=True) if match}
            return self._location([schema for part in parts for schema in _property_schemas(part, name, matched)])

        plan.others = other
        for name in sorted({name for part in parts for name in part.get("properties", {})}):
            plan.properties[name] = other(tuple([match(name) for match in plan.patterns]), name)
        for place in range(len(patterns)):
            other(tuple([place == each for each in range(len(patterns))]))
        other((False,) * len(patterns))

    def _add_items(self, plan: Plan, parts: list[Part]) -> None:
        longest = max((len(part.get("prefixItems", ())) for part in parts), default=0)
        plan.prefix = [self._location(_item_schemas(parts, place)) for place in range(longest)]
        plan.items = self._location(_item_schemas(parts, longest))


def _property_schemas(part: Part, name: str | None, matched: set[str]) -> list[JSON]:
    """What a part says of a property, by its name and the patterns that match it."""
    properties = part.get("properties", {})
    found = [properties[name]] if name in properties else []
    found += [schema for pattern, schema in part.get("patternProperties", {}).items() if pattern in matched]
    return found or ([part["additionalProperties"]] if "additionalProperties" in part else [])


def _item_schemas(parts: list[Part], place: int) -> list[JSON]:
    """What the parts say of the item at a place."""
    found = []
    for part in parts:
        prefix = part.get("prefixItems", ())
        if place < len(prefix):
            found.append(prefix[place])
        elif "items" in part:
            found.append(part["items"])
    return found
