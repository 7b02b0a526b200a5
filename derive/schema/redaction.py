"""Redaction: remove or hash the values that a schema annotates with `redact`, before they are stored or shown.

An annotation counts at every location to which it may apply, in any alternative: in doubt, the value is redacted.
Stored documents match the schema that `redacted_schema` returns. Readers, columns and endpoints therefore see the type
of a hash, or no value at all for a removed value.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeAlias

from derive.document.exact import dump_exact
from derive.document.pointer import JSON, MISSING
from derive.errors import SchemaError
from derive.schema.dialect import subschemas
from derive.schema.shape import Inference, matches

STRATEGIES = ("block", "sha256")
"""`block` removes a property or an item (an item of `prefixItems` becomes null); `sha256` hashes values except null."""

_HASH = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_KEPT = ("title", "description", "reduce", "redact", "deprecated", "readOnly", "writeOnly")
_Slot: TypeAlias = "tuple[dict[str, JSON] | list[JSON], Any]"
"""The container of a schema, and the schema's name or index in it."""


@dataclass(frozen=True, slots=True)
class Redaction:
    """The redaction of documents of a collection.

    Attributes:
        schema: the self-contained JSON Schema with the annotations.
        salt: salt of hashes; None for the salt of the data folder.
    """

    schema: JSON
    salt: bytes | None = None


class RedactionError(SchemaError):
    """An invalid `redact` annotation.

    Attributes:
        pointer: JSON pointer of the annotation in its schema.
    """

    def __init__(self, message: str, pointer: str, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.pointer = pointer


def redacted_schema(schema: JSON) -> JSON:
    """Return the schema of redacted documents; `schema` must be self-contained.

    Raises:
        RedactionError: an annotation names no strategy, is at the root or has no location, or two annotations differ.
    """
    copied = deepcopy(schema)
    annotated = {id(part): (pointer, part) for pointer, part in subschemas(copied) if "redact" in part}
    for pointer, part in annotated.values():
        _check(part["redact"], f"{pointer}/redact")
    places = _places(copied)
    for place in places:
        if len(place.strategies) > 1:
            pointer = next(pointer for identity, (pointer, _) in annotated.items() if identity in place.identities)
            what = "one location is redacted by 'block' and by 'sha256'"
            raise RedactionError(what, f"{pointer}/redact", "remove one of the two annotations")
        for identity in place.identities:
            annotated.pop(identity, None)
    if places[0].strategy:
        raise RedactionError(
            "'redact' is at the root of the schema", "/redact", "write it at the properties with personal data"
        )
    for pointer, _ in annotated.values():
        what = "'redact' is at a place that describes no location of a document"
        raise RedactionError(
            what, f"{pointer}/redact", "write it below 'properties' or 'items' of the collection's schema"
        )
    for place in places:
        place.adjust()
    _undecide(copied, schema)
    return copied


def _undecide(stored: JSON, annotated: JSON) -> None:
    """Remove conditions of a schema that depend on redacted values.

    After redaction several alternatives of `oneOf` may match, and the condition of an `if` is lost: any alternative is
    accepted.
    """
    before = dict(subschemas(annotated))
    places = _Places(annotated)
    for pointer, part in list(subschemas(stored)):
        origin = before.get(pointer, part)

        def differs(keyword: str, holder: Any, key: Any, part: Any = part, origin: Any = origin) -> bool:
            return part[keyword] != origin[keyword] or places.place([(holder, key)]).leads

        if "oneOf" in part and any(differs("oneOf", origin["oneOf"], index) for index in range(len(part["oneOf"]))):
            _require_any(part, part.pop("oneOf"))
        if "if" in part and differs("if", origin, "if"):
            del part["if"]
            _require_any(part, [part.pop(keyword, True) for keyword in ("then", "else")])


def _require_any(schema: dict[str, JSON], alternatives: Sequence[JSON]) -> None:
    schema["allOf"] = [*schema.get("allOf", ()), {"anyOf": list(alternatives)}]


def _check(annotation: JSON, pointer: str) -> None:
    strategy = annotation.get("strategy") if isinstance(annotation, dict) and len(annotation) == 1 else None
    if strategy not in STRATEGIES:
        hint = "write {strategy: block} or {strategy: sha256}"
        raise RedactionError("'redact' needs a strategy: block or sha256", pointer, hint)


def _places(schema: JSON) -> list[_Place]:
    """Return all locations that a schema describes, the root first, without locations below a redacted location."""
    root = _Places(schema).root
    places, seen = [root], {root}
    for place in places:  # the list grows
        if not place.strategy:
            children = [child for child in place.children() if child not in seen]
            seen.update(children)
            places += list(dict.fromkeys(children))
    return places


class Redactor:
    """Redacts documents.

    Args:
        redaction: the redaction.
        salt: salt of hashes.
    """

    def __init__(self, redaction: Redaction, salt: bytes) -> None:
        self._salt = salt
        self._root = _Places(redaction.schema).root

    def redact(self, document: JSON) -> JSON:
        """Return a redacted copy of a document."""
        return self._value(document, self._root)

    def redact_column(self, name: str, values: Sequence[JSON]) -> Sequence[JSON] | None:
        """Return the redacted values of one property of many documents; None if the property is removed."""
        place = self._root.member(name)
        if place is None:
            return values
        return None if place.strategy == "block" else [self._value(value, place) for value in values]

    def hides(self, name: str) -> bool:
        """Return true if a property of documents, or a value within it, is redacted."""
        return self._root.member(name) is not None

    def _value(self, value: JSON, place: _Place) -> JSON:
        """Return the redacted value; `MISSING` if it is removed."""
        if place.strategy == "block":
            return MISSING
        if place.strategy:
            return value if value is None else self._hash(value)
        if isinstance(value, dict):
            return {
                name: redacted
                for name, child in value.items()
                if (redacted := self._child(child, place.member(name))) is not MISSING
            }
        if isinstance(value, list):
            items = [self._child(child, place.item(index)) for index, child in enumerate(value)]
            first = place.prefix  # items with their own schemas keep their index
            return [None if item is MISSING else item for item in items[:first]] + [
                item for item in items[first:] if item is not MISSING
            ]
        return value

    def _child(self, value: JSON, place: _Place | None) -> JSON:
        return value if place is None else self._value(value, place)

    def _hash(self, value: JSON) -> str:
        """Return the hash of a value; a hash is returned unchanged, so that repeated redaction has no effect."""
        if isinstance(value, str) and _HASH.fullmatch(value):
            return value
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else dump_exact(_normal(value))
        return f"sha256:{hashlib.sha256(self._salt + data).hexdigest()}"


def _normal(value: JSON) -> JSON:
    """Return a value in a canonical form, equal for equal values."""
    if isinstance(value, dict):
        return {name: _normal(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_normal(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


class _Places:
    """The locations of documents that a schema describes, with their redactions."""

    def __init__(self, schema: JSON) -> None:
        self._inference = Inference(schema)
        self._places: dict[frozenset[int], _Place] = {}
        self.root = self.place([({"": schema}, "")])

    def place(self, slots: Sequence[_Slot]) -> _Place:
        """Return the location that the schemas in some slots describe together."""
        schemas = [schema for holder, key in slots for schema in self._expand(holder[key])]
        identity = frozenset(map(id, schemas))
        if identity not in self._places:
            self._places[identity] = _Place(self, identity, schemas)
        place = self._places[identity]
        place.slots += [slot for slot in slots if slot not in place.slots]
        return place

    def _expand(self, schema: JSON) -> Iterator[dict[str, JSON]]:
        """Yield a schema and all schemas that may apply together with it."""
        pending, seen = [schema], set()
        while pending:
            part = pending.pop()
            if not isinstance(part, dict) or id(part) in seen:
                continue
            seen.add(id(part))
            yield part
            for keyword in ("allOf", "anyOf", "oneOf"):
                pending += part.get(keyword, ())
            pending += [part[keyword] for keyword in ("if", "then", "else") if keyword in part]
            for keyword in ("dependentSchemas", "dependencies"):
                pending += part.get(keyword, {}).values()
            for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
                if isinstance(part.get(keyword), str):
                    pending.append(self._inference.resolve(part[keyword]))


class _Place:
    """A location of documents.

    Attributes:
        identities: identities of the schemas that may apply there.
        slots: containers of these schemas.
        prefix: number of items with their own schemas.
        strategies: redaction strategies of all schemas.
        strategy: the first of `strategies`; None if there is none, although values within may be redacted.
    """

    def __init__(self, places: _Places, identities: frozenset[int], schemas: Sequence[dict[str, JSON]]) -> None:
        self._places = places
        self._schemas = schemas
        self._members: dict[str, _Place | None] = {}
        self._leads: bool | None = None
        self._named = frozenset(name for schema in schemas for name in schema.get("properties", {}))
        self.identities = identities
        self.prefix = max((len(_prefix(schema)) for schema in schemas), default=0)
        self.slots: list[_Slot] = []
        self.strategies = sorted({schema["redact"]["strategy"] for schema in schemas if "redact" in schema})
        self.strategy = self.strategies[0] if self.strategies else None

    def member(self, name: str) -> _Place | None:
        """Return the location of a property; None without redaction at or below it."""
        known = name in self._named
        if known and name in self._members:
            return self._members[name]
        slots = [slot for schema in self._schemas for slot in _member_slots(schema, name)]
        place = self._redacting(slots)
        if known:
            self._members[name] = place
        return place

    def item(self, index: int) -> _Place | None:
        """Return the location of an item; None without redaction at or below it."""
        return self._redacting([slot for schema in self._schemas for slot in _item_slots(schema, index)])

    def children(self) -> Iterator[_Place]:
        """Yield all child locations, including the locations of all other names and indices."""
        for name in self._named:
            yield self._places.place([slot for schema in self._schemas for slot in _member_slots(schema, name)])
        for schema in self._schemas:
            others = [(schema.get("patternProperties", {}), name) for name in schema.get("patternProperties", {})]
            others += [(schema, keyword) for keyword in _OTHERS if isinstance(schema.get(keyword), dict)]
            for slot in others:
                yield self._places.place([slot])
            for index in range(len(_prefix(schema)) + 1):
                for slot in _item_slots(schema, index):
                    yield self._places.place([slot])

    def adjust(self) -> None:
        """Rewrite the schemas for stored values: redacted values are hashes or absent."""
        if not self.strategy:
            self._loosen()
            return
        kept = {keyword: schema[keyword] for keyword in _KEPT for schema in self._schemas if keyword in schema}
        is_nullable = all("null" in _types(schema) for schema in self._schemas)
        kind = ["string", "null"] if is_nullable else "string"
        for holder, key in self.slots:
            # A blocked location keeps its annotation, which marks values that must not be shown.
            stored: JSON = {"type": "null"} if isinstance(holder, list) else {"allOf": [False]}
            holder[key] = {**kept, **({"type": kind} if self.strategy == "sha256" else stored)}

    def _loosen(self) -> None:
        """Remove assertions that redaction may violate."""
        if not self.leads:
            return
        has_less = any(child.strategy == "block" for child in self.children())
        for schema in self._schemas:
            if "required" in schema:
                schema["required"] = [name for name in schema["required"] if not self._is_blocked(name)]
            for keyword in {"dependentRequired", "dependencies"} & set(schema):
                schema[keyword] = {
                    name: [other for other in needed if not self._is_blocked(other)]
                    if isinstance(needed, list)
                    else needed
                    for name, needed in schema[keyword].items()
                }
            for keyword in (*_COMPARED, *(_COUNTED if has_less else ())):
                schema.pop(keyword, None)

    def _is_blocked(self, name: str) -> bool:
        place = self.member(name)
        return place is not None and place.strategy == "block"

    def _redacting(self, slots: Sequence[_Slot]) -> _Place | None:
        place = self._places.place(slots) if slots else None
        return place if place is not None and place.leads else None

    @property
    def leads(self) -> bool:
        """Return true if a value at this location or below it is redacted."""
        if self._leads is None:
            reached = [self]
            for place in reached:  # the list grows
                if place.strategy:
                    break
                reached += [child for child in dict.fromkeys(place.children()) if child not in reached]
            self._leads = any(place.strategy for place in reached)
        return self._leads


_COMPARED = ("const", "enum", "contains", "minContains", "maxContains")
"""Keywords that compare values, which may be partly redacted."""

_COUNTED = ("minProperties", "minItems", "uniqueItems")
"""Keywords that count values, which may be removed or become null."""

_OTHERS = ("additionalProperties", "unevaluatedProperties")


def _types(schema: Mapping[str, JSON]) -> Sequence[JSON]:
    named = schema.get("type", "null")
    return named if isinstance(named, list) else [named]


def _member_slots(schema: dict[str, JSON], name: str) -> list[_Slot]:
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    slots: list[_Slot] = [(named, name)] if name in named else []
    slots += [(patterns, pattern) for pattern in patterns if matches(pattern, name)]
    if not slots and isinstance(schema.get("additionalProperties"), dict):
        slots.append((schema, "additionalProperties"))
    if name not in named and isinstance(schema.get("unevaluatedProperties"), dict):
        slots.append((schema, "unevaluatedProperties"))
    return slots


def _prefix(schema: Mapping[str, JSON]) -> Sequence[JSON]:
    listed: Sequence[JSON] = schema.get("prefixItems", schema["items"] if isinstance(schema.get("items"), list) else [])
    return listed


def _item_slots(schema: dict[str, JSON], index: int) -> list[_Slot]:
    prefix: Any = _prefix(schema)
    slots: list[_Slot] = []
    if index < len(prefix):
        slots.append((prefix, index))
    else:
        slots += [(schema, name) for name in ("items", "additionalItems") if isinstance(schema.get(name), dict)]
    slots += [(schema, name) for name in ("unevaluatedItems",) if isinstance(schema.get(name), dict)]
    return slots
