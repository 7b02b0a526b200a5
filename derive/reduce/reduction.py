"""The reduction of each location of a schema, which is computed once for all documents; and reducers.

At a location without an annotation, the value of the later document replaces the earlier value.

A reducer is the compiled form of a strategy. It takes the earlier value (or `MISSING`), the later value, and `full`:
true if the earlier value is the whole history, false if it is only a part. A reducer returns a new value, and does not
change its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from derive.document.pointer import JSON, escape
from derive.errors import SchemaError
from derive.reduce.applicable_schemas import Condition, Part, SchemaParts
from derive.reduce.reduce_keyword import Annotation
from derive.schema.validator import compile_validator

Reduce: TypeAlias = Callable[[JSON, JSON, bool], JSON]
"""Function from (earlier value or MISSING, later value, full) to the reduced value; MISSING for a deletion."""


class NotAssociative(Exception):
    """Two partial values cannot be reduced to one value, so their documents stay separate."""


class ReductionFailed(Exception):
    """A strategy does not accept its values.

    Attributes:
        reason: requirement of the strategy.
        left: the earlier value.
        right: the later value.
        pointer: JSON pointer of the location; each level adds its token on the way up.
    """

    def __init__(self, reason: str, left: JSON, right: JSON) -> None:
        super().__init__(reason)
        self.reason = reason
        self.left = left
        self.right = right
        self.pointer = ""


def reduce_at(token: str | int, reduce: Reduce, left: JSON, right: JSON, full: bool) -> JSON:
    """Reduce the values of a property or an item, and add its token to the location of a failure."""
    try:
        return reduce(left, right, full)
    except ReductionFailed as exc:
        exc.pointer = f"/{escape(str(token))}{exc.pointer}"
        raise


def take_right(left: JSON, right: JSON, full: bool) -> JSON:
    """Return the later value unchanged: the reducer of a location without an annotation."""
    return right


@dataclass(slots=True, eq=False)
class Reduction:
    """The reduction of values at one location and all locations below it.

    A reduction is built once and then only read. It may refer to itself, like a recursive schema.

    Attributes:
        annotation: annotation of the location; None for none.
        conflict: message if several different annotations apply; None for none.
        properties: reductions of named properties.
        patterns: functions that match a name with each pattern of `patternProperties`.
        others: returns the reduction of a property that `properties` lacks, for the matches of its name with
            `patterns`.
        prefix: reductions of an array's first items.
        items: reduction of all other items.
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
    """A location whose reduction depends on the value.

    Attributes:
        conditions: conditions of the reduction.
        decide: returns the reduction for the parts that apply, in addition to the parts that always apply.
    """

    conditions: tuple[Condition, ...]
    decide: Callable[[Iterable[Part]], Reduction]


Location: TypeAlias = Reduction | Choice
"""Reduction of a location, or the choice of a reduction that depends on the value."""


class ReductionBuilder:
    """Builds the reductions of a self-contained schema.

    Args:
        schema: self-contained JSON Schema.
        name: name of the collection, for messages.

    Raises:
        SchemaError: the annotations are invalid.
    """

    def __init__(self, schema: JSON, name: str) -> None:
        self._parts = SchemaParts(schema, name)
        self._choices: dict[frozenset[int], Choice] = {}
        self._reductions: dict[frozenset[int], Reduction] = {}
        self._built = False

    @property
    def full_differs(self) -> bool:
        """Return true if the full reduction of some value differs from its partial reduction; valid after `build`."""
        return self._parts.full_differs

    def build(self) -> Location:
        """Return the reduction of the whole document.

        Raises:
            SchemaError: annotations conflict for all values. A conflict for values that meet several conditions is
                detected when such a value occurs.
        """
        root = self._location([self._parts.root])
        self._built = True
        return root

    def _location(self, schemas: list[JSON]) -> Location:
        """Return the reduction of a location to which all these schemas apply, or a choice of reductions."""
        identity = frozenset(map(id, schemas))
        if identity in self._choices:
            return self._choices[identity]
        applied = self._parts.apply(schemas)
        if not applied.conditions:
            return self._reduction(applied.parts)
        choice = Choice(applied.conditions, lambda more: self._reduction((*applied.parts, *more)))
        self._choices[identity] = choice
        for condition in applied.conditions:  # reports contradictions before the first document
            for outcome in (condition.then, condition.otherwise):
                choice.decide(outcome.parts)
        return choice

    def _reduction(self, parts: Iterable[Part]) -> Reduction:
        """Return the reduction of a location to which exactly these parts apply."""
        unique = list({id(part): part for part in parts}.values())
        identity = frozenset(map(id, unique))
        if identity in self._reductions:
            return self._reductions[identity]
        reduction = self._reductions[identity] = Reduction()
        self._annotate(reduction, unique)
        self._add_properties(reduction, unique)
        self._add_items(reduction, unique)
        return reduction

    def _annotate(self, reduction: Reduction, parts: list[Part]) -> None:
        first: Part | None = None
        for part in parts:
            annotation = self._parts.annotation(part)
            if annotation is None:
                continue
            if first and reduction.annotation and annotation != reduction.annotation:
                reduction.conflict = (
                    f"the schema of '{self._parts.name}' has conflicting reductions at one location:"
                    f" '{reduction.annotation.strategy}' at '{self._parts.where(first)}' and"
                    f" '{annotation.strategy}' at '{self._parts.where(part)}'"
                )
                if not self._built:
                    raise SchemaError(reduction.conflict)
            first, reduction.annotation = part, annotation

    def _add_properties(self, reduction: Reduction, parts: list[Part]) -> None:
        patterns = sorted({pattern for part in parts for pattern in part.get("patternProperties", {})})
        # The engine of the validator, so that patterns match as in validation.
        reduction.patterns = tuple(
            compile_validator({"pattern": regex}, name=self._parts.name).is_valid for regex in patterns
        )

        def other(matches: tuple[bool, ...], name: str | None = None) -> Location:
            matched = {pattern for pattern, match in zip(patterns, matches, strict=True) if match}
            return self._location([schema for part in parts for schema in _property_schemas(part, name, matched)])

        reduction.others = other
        for name in sorted({name for part in parts for name in part.get("properties", {})}):
            reduction.properties[name] = other(tuple([match(name) for match in reduction.patterns]), name)
        for index in range(len(patterns)):
            other(tuple([index == other_index for other_index in range(len(patterns))]))
        other((False,) * len(patterns))

    def _add_items(self, reduction: Reduction, parts: list[Part]) -> None:
        longest = max((len(part.get("prefixItems", ())) for part in parts), default=0)
        reduction.prefix = [self._location(_item_schemas(parts, index)) for index in range(longest)]
        reduction.items = self._location(_item_schemas(parts, longest))


def _property_schemas(part: Part, name: str | None, matched: set[str]) -> list[JSON]:
    """Return the schemas that a part has for a property, by its name and the patterns that match it."""
    properties = part.get("properties", {})
    schemas = [properties[name]] if name in properties else []
    schemas += [schema for pattern, schema in part.get("patternProperties", {}).items() if pattern in matched]
    return schemas or ([part["additionalProperties"]] if "additionalProperties" in part else [])


def _item_schemas(parts: list[Part], index: int) -> list[JSON]:
    """Return the schemas that the parts have for the item at an index."""
    schemas = []
    for part in parts:
        prefix = part.get("prefixItems", ())
        if index < len(prefix):
            schemas.append(prefix[index])
        elif "items" in part:
            schemas.append(part["items"])
    return schemas


_KEEPING = ("append", "firstWriteWins", "lastWriteWins", "maximize", "minimize")
"""Strategies that keep a value unchanged if there is no earlier value."""


def takes_last(root: Location) -> bool:
    """Return true if every full reduction returns the last document unchanged."""
    if isinstance(root, Choice) or root.conflict:
        return False
    annotation = root.annotation
    return annotation is None or (annotation.strategy == "lastWriteWins" and not annotation.delete)


def keeps_single(root: Location) -> bool:
    """Return true if every full reduction of a single document, an object, returns the document unchanged.

    Return false if this depends on the values.
    """
    if isinstance(root, Choice) or root.conflict:
        return False
    if root.annotation is None or root.annotation.strategy != "merge":
        return _keeps_any(root)
    if root.annotation.delete or root.patterns:
        return False
    return all(map(_keeps_any, (*root.properties.values(), root.others(()))))


def _keeps_any(location: Location) -> bool:
    """Return true if a value of any type is kept unchanged."""
    if isinstance(location, Choice) or location.conflict:
        return False
    annotation = location.annotation
    if annotation is None:
        return True
    return annotation.strategy in _KEEPING and not annotation.key and not annotation.delete
