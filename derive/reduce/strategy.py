"""The reduction annotations of a schema, read once.

`Annotation` says what to do at one location; `Plan` is the tree of them. A location without an annotation is replaced
by the later document's value, with everything below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from derive.document.pointer import JSON, unescape
from derive.errors import SchemaError

STRATEGIES: Mapping[str, frozenset[str]] = {
    "append": frozenset(),
    "firstWriteWins": frozenset(),
    "lastWriteWins": frozenset({"delete", "associative"}),
    "maximize": frozenset({"key"}),
    "merge": frozenset({"key", "delete"}),
    "minimize": frozenset({"key"}),
    "sum": frozenset(),
}
"""Each strategy and the options it takes."""

_CONDITIONAL = ("oneOf", "anyOf", "if", "then", "else", "dependentSchemas", "not")


@dataclass(slots=True, eq=False)
class Plan:
    """What to do at one location, and below it.

    Built once and then only read. It may refer to itself, as a recursive schema does.

    Attributes:
        strategy: name of the strategy; None for none.
        key: pointers of `key`, if the strategy has one.
        delete: the `delete` option.
        associative: the `associative` option.
        properties: plans of named properties.
        patterns: plans of properties whose name matches a regular expression.
        additional: plan of all other properties.
        prefix: plans of an array's first items.
        items: plan of all other items.
    """

    strategy: str | None = None
    key: tuple[str, ...] = ()
    delete: bool = False
    associative: bool = True
    properties: dict[str, Plan] = field(default_factory=dict)
    patterns: dict[str, Plan] = field(default_factory=dict)
    additional: Plan | None = None
    prefix: list[Plan] = field(default_factory=list)
    items: Plan | None = None


class PlanBuilder:
    """Reads the plan out of a self-contained schema.

    Args:
        schema: JSON Schema whose `$ref`s resolve inside it.
        name: of the collection, for messages.
    """

    def __init__(self, schema: JSON, name: str) -> None:
        self._root = schema
        self._name = name
        self._plans: dict[tuple[int, ...], Plan] = {}
        self._anchors = {each["$anchor"]: each for each in _subschemas(schema) if isinstance(each.get("$anchor"), str)}
        self._ids = {each["$id"]: each for each in _subschemas(schema) if isinstance(each.get("$id"), str)}

    def build(self) -> Plan:
        """The plan of the root."""
        return self._plan([self._root])

    def _plan(self, schemas: list[JSON]) -> Plan:
        """The plan of a location to which all these schemas apply."""
        applied = [part for schema in schemas for part in self._applied(schema, set())]
        identity = tuple(sorted({id(part) for part in applied}))
        if identity in self._plans:
            return self._plans[identity]
        plan = self._plans[identity] = Plan()
        for part in applied:
            self._annotate(plan, part)
        self._children(plan, applied)
        return plan

    def _applied(self, schema: JSON, seen: set[int]) -> Iterator[dict[str, Any]]:
        """The schema with everything that applies in place: `$ref` and `allOf`."""
        if not isinstance(schema, dict) or id(schema) in seen:
            return
        seen.add(id(schema))
        yield schema
        if "$ref" in schema:
            yield from self._applied(self._resolve(schema["$ref"]), seen)
        for part in schema.get("allOf", ()):
            yield from self._applied(part, seen)
        for keyword in _CONDITIONAL:
            branches = schema.get(keyword, ())
            for branch in branches if isinstance(branches, list) else [branches]:
                if any("reduce" in each for each in _subschemas(branch)):
                    raise SchemaError(
                        f"the schema of '{self._name}' has a reduction annotation under '{keyword}': conditional"
                        " reductions are not supported yet"
                    )

    def _resolve(self, reference: str) -> JSON:
        if reference in self._ids:
            return self._ids[reference]
        base, _, fragment = reference.partition("#")
        target: JSON = self._ids.get(base, self._root) if base else self._root
        if fragment and not fragment.startswith("/"):
            if fragment not in self._anchors:
                raise SchemaError(f"the schema of '{self._name}' refers to '{reference}', which it does not define")
            return self._anchors[fragment]
        for token in fragment.split("/")[1:]:
            name = unescape(token)
            try:
                target = target[int(name)] if isinstance(target, list) else target[name]
            except (KeyError, IndexError, ValueError, TypeError):
                raise SchemaError(
                    f"the schema of '{self._name}' refers to '{reference}', which it does not define"
                ) from None
        return target

    def _annotate(self, plan: Plan, schema: dict[str, Any]) -> None:
        annotation = schema.get("reduce")
        if annotation is None:
            return
        strategy = annotation.get("strategy") if isinstance(annotation, dict) else None
        if not isinstance(strategy, str) or strategy not in STRATEGIES:
            known = ", ".join(sorted(STRATEGIES))
            raise SchemaError(
                f"the schema of '{self._name}' has the reduction {annotation!r}, which is not supported",
                hint=f"strategies: {known}",
            )
        unknown = sorted(set(annotation) - STRATEGIES[strategy] - {"strategy"})
        if unknown:
            raise SchemaError(f"the schema of '{self._name}': the strategy '{strategy}' has no option '{unknown[0]}'")
        if plan.strategy not in (None, strategy):
            raise SchemaError(
                f"the schema of '{self._name}' has conflicting strategies '{plan.strategy}' and '{strategy}' at one"
                " location"
            )
        plan.strategy = strategy
        plan.key = tuple(annotation.get("key", ()))
        plan.delete = bool(annotation.get("delete", False))
        plan.associative = bool(annotation.get("associative", True))

    def _children(self, plan: Plan, applied: list[dict[str, Any]]) -> None:
        names = {name for part in applied for name in part.get("properties", {})}
        for name in sorted(names):
            plan.properties[name] = self._plan(
                [p["properties"][name] for p in applied if name in p.get("properties", {})]
            )
        patterns = {name for part in applied for name in part.get("patternProperties", {})}
        for name in sorted(patterns):
            found = [p["patternProperties"][name] for p in applied if name in p.get("patternProperties", {})]
            plan.patterns[name] = self._plan(found)
        additional = [p["additionalProperties"] for p in applied if isinstance(p.get("additionalProperties"), dict)]
        plan.additional = self._plan(additional) if additional else None
        longest = max((len(part.get("prefixItems", ())) for part in applied), default=0)
        for place in range(longest):
            found = [p["prefixItems"][place] for p in applied if place < len(p.get("prefixItems", ()))]
            plan.prefix.append(self._plan(found))
        items = [p["items"] for p in applied if isinstance(p.get("items"), dict)]
        plan.items = self._plan(items) if items else None


def _subschemas(value: JSON) -> Iterator[dict[str, Any]]:
    """Every object in a schema, whether it is a subschema or not."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            yield each
            pending += [child for name, child in each.items() if name not in ("enum", "const", "default", "examples")]
        elif isinstance(each, list):
            pending += each
