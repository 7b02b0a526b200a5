"""The parts of a schema that apply to a value: always, or under a condition.

A location has the annotations of every subschema that applies to the location and accepts the value. The schema alone
determines the targets of `$ref` and `allOf`; an annotation beside a `$ref` replaces the annotations of the same
location in the target. Parts of `oneOf`, `anyOf`, `if` and `dependentSchemas` apply to some values only, so each value
must be validated. Therefore only schemas with annotations are validated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote

from derive.document.pointer import JSON, escape, parse_pointer
from derive.errors import SchemaError
from derive.reduce.reduce_keyword import Annotation, parse_annotation
from derive.schema.validator import compile_part

Part: TypeAlias = dict[str, Any]
"""A subschema that is an object, compared by identity: equal subschemas at different places are different parts."""

_ONE = ("additionalProperties", "else", "if", "items", "then", "unevaluatedItems", "unevaluatedProperties")
_MANY = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
_WITHOUT_EFFECT = ("contains", "contentSchema", "not", "propertyNames")


@dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """The parts that apply to a value together with a schema.

    Attributes:
        parts: parts that always apply.
        conditions: conditions of the other parts.
    """

    parts: tuple[Part, ...] = ()
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """A condition for parts of a schema.

    Attributes:
        holds: returns true if a value meets the condition.
        then: parts for values that meet the condition.
        otherwise: parts for other values.
    """

    holds: Callable[[JSON], bool]
    then: Applied
    otherwise: Applied = Applied()


class SchemaParts:
    """The parts of one self-contained schema.

    Args:
        schema: self-contained JSON Schema.
        name: name of the collection, for messages.

    Raises:
        SchemaError: an annotation is invalid, or has no effect at its place.
    """

    def __init__(self, schema: JSON, name: str) -> None:
        self.root = schema
        self.name = name
        self._pointers: dict[int, str] = {}
        self._annotations: dict[int, Annotation] = {}
        self._names: dict[str, Part] = {}
        self._tests: dict[int, Callable[[JSON], bool]] = {}
        self._silent: dict[int, Part] = {}
        self._index(schema, "", None)

    def where(self, part: Part) -> str:
        """Return the JSON pointer of a part."""
        return self._pointers[id(part)]

    def annotation(self, part: Part) -> Annotation | None:
        """Return the part's own annotation; None if missing."""
        return self._annotations.get(id(part))

    @property
    def full_differs(self) -> bool:
        """Return true if tombstones or sets make the full reduction of some value differ from the partial reduction."""
        return any(annotation.delete or annotation.strategy == "set" for annotation in self._annotations.values())

    def apply(self, schemas: Iterable[JSON]) -> Applied:
        """Return the parts that apply to a value to which all these schemas apply."""
        return _joined([self._apply(schema, frozenset()) for schema in schemas])

    def _index(self, schema: JSON, pointer: str, useless: str | None) -> None:
        if not isinstance(schema, dict) or id(schema) in self._pointers:
            return
        self._pointers[id(schema)] = pointer
        if "reduce" in schema:
            where = f"the annotation at '{pointer}/reduce' of the schema of '{self.name}'"
            if useless:
                raise SchemaError(f"{where} has no effect under '{useless}'")
            self._annotations[id(schema)] = parse_annotation(schema["reduce"], where)
        if isinstance(schema.get("$anchor"), str):
            self._names[f"#{schema['$anchor']}"] = schema
        if isinstance(schema.get("$id"), str):
            self._names[schema["$id"].removesuffix("#")] = schema
        for keyword, below, child in _children(schema):
            self._index(child, f"{pointer}{below}", useless or (keyword if keyword in _WITHOUT_EFFECT else None))

    def _apply(self, schema: JSON, path: frozenset[int]) -> Applied:
        if not isinstance(schema, dict) or id(schema) in path:
            return Applied()
        path |= {id(schema)}
        for keyword in ("unevaluatedItems", "unevaluatedProperties"):
            if self._is_annotated(schema.get(keyword)):
                raise SchemaError(
                    f"the schema of '{self.name}' has reduction annotations under '{keyword}' at"
                    f" '{self.where(schema)}', which is not supported",
                    hint="put them under 'additionalProperties' or 'items'",
                )
        inner = [self._apply(child, path) for child in schema.get("allOf", ())]
        if "$ref" in schema:
            target = self._apply(self._resolve(schema["$ref"]), path)
            inner.append(self._silenced(target) if "reduce" in schema else target)
        return _joined([Applied((schema,), tuple(self._conditions(schema, path))), *inner])

    def _conditions(self, schema: Part, path: frozenset[int]) -> Iterator[Condition]:
        for keyword in ("oneOf", "anyOf"):
            for branch in schema.get(keyword, ()):
                if self._is_annotated(branch):
                    yield Condition(self._test(branch), self._apply(branch, path))
        if "if" in schema:
            test, then, otherwise = schema["if"], schema.get("then", True), schema.get("else", True)
            if any(map(self._is_annotated, (test, then, otherwise))):
                held = _joined([self._apply(test, path), self._apply(then, path)])
                yield Condition(self._test(test), held, self._apply(otherwise, path))
        for name, dependent in schema.get("dependentSchemas", {}).items():
            if self._is_annotated(dependent):
                yield Condition(_has(name), self._apply(dependent, path))

    def _silenced(self, applied: Applied) -> Applied:
        """Return the same parts without their own annotations; annotations of their properties and items stay."""
        parts = tuple([self._without_annotation(part) for part in applied.parts])
        conditions = [
            Condition(condition.holds, self._silenced(condition.then), self._silenced(condition.otherwise))
            for condition in applied.conditions
        ]
        return Applied(
            parts, tuple([condition for condition in conditions if self._matters(condition.then, condition.otherwise)])
        )

    def _matters(self, *several: Applied) -> bool:
        """Return true if one of these schemas reaches an annotation."""
        return any(
            any(map(self._is_annotated, applied.parts))
            or any(self._matters(condition.then, condition.otherwise) for condition in applied.conditions)
            for applied in several
        )

    def _without_annotation(self, part: Part) -> Part:
        if id(part) not in self._annotations:
            return part
        if id(part) not in self._silent:
            silent = self._silent[id(part)] = {name: value for name, value in part.items() if name != "reduce"}
            self._pointers[id(silent)] = self.where(part)
        return self._silent[id(part)]

    def _test(self, schema: JSON) -> Callable[[JSON], bool]:
        if not isinstance(schema, dict):
            return _always if schema else _never
        if id(schema) not in self._tests:
            self._tests[id(schema)] = compile_part(self.root, self.where(schema), name=self.name)
        return self._tests[id(schema)]

    def _is_annotated(self, schema: JSON) -> bool:
        """Return true if a schema reaches an annotation, also through references."""
        pending, seen = [schema], set()
        while pending:
            schema = pending.pop()
            if not isinstance(schema, dict) or id(schema) in seen:
                continue
            seen.add(id(schema))
            if id(schema) in self._annotations:
                return True
            pending += [child for keyword, _, child in _children(schema) if keyword not in ("$defs", "definitions")]
            if "$ref" in schema:
                pending.append(self._resolve(schema["$ref"]))
        return False

    def _resolve(self, reference: str) -> JSON:
        if reference in self._names:
            return self._names[reference]
        base, _, fragment = reference.partition("#")
        target: JSON = self._names.get(base) if base else self.root
        try:
            for token in parse_pointer(unquote(fragment)):
                target = target[int(token)] if isinstance(target, list) else target[token]
        except (KeyError, IndexError, ValueError, TypeError):
            target = None
        if target is None:
            raise SchemaError(f"the schema of '{self.name}' refers to '{reference}', which it does not define")
        self._index(target, f"{self.where(self._names[base]) if base else ''}{unquote(fragment)}", None)
        return target


def _joined(several: list[Applied]) -> Applied:
    return Applied(
        tuple(part for applied in several for part in applied.parts),
        tuple(condition for applied in several for condition in applied.conditions),
    )


def _children(schema: Part) -> Iterator[tuple[str, str, JSON]]:
    """Yield the keyword, the pointer below `schema`, and the schema of each direct subschema."""
    for keyword in (*_ONE, *_WITHOUT_EFFECT):
        if keyword in schema:
            yield keyword, f"/{keyword}", schema[keyword]
    for keyword in _MANY:
        for index, child in enumerate(schema.get(keyword, ())):
            yield keyword, f"/{keyword}/{index}", child
    for keyword in _NAMED:
        for name, child in schema.get(keyword, {}).items():
            yield keyword, f"/{keyword}/{escape(name)}", child


def _always(_: JSON) -> bool:
    return True


def _never(_: JSON) -> bool:
    return False


def _has(name: str) -> Callable[[JSON], bool]:
    return lambda value: type(value) is dict and name in value
