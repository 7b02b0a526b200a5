"""Random schemas together with documents that are valid under them, and ones that are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from derive.document.pointer import JSON

# Not 'constructor', for one: TypeScript says that every object has one.
NAMES = st.sampled_from(["a", "b", "c", "a b", "_under", "1st", "new", "größe"])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(-9, 9), st.text('ab"\\é\n', max_size=3))
DEFINITIONS: dict[str, JSON] = {
    "point": {
        "$anchor": "Point",
        "type": "object",
        "required": ["x"],
        "properties": {"x": {"type": "number"}, "label": {"type": ["string", "null"]}},
    },
    "tree": {
        "type": "object",
        "required": ["value"],
        "properties": {
            "value": {"type": "integer"},
            "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
            "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
        },
    },
}
POINTS = st.fixed_dictionaries({"x": st.floats(-9, 9)}, optional={"label": st.none() | st.text(max_size=2)})
TREES = st.recursive(
    st.fixed_dictionaries({"value": st.integers(-9, 9)}),
    lambda inner: st.fixed_dictionaries(
        {"value": st.integers(-9, 9)}, optional={"children": st.lists(inner, max_size=2), "next": st.none() | inner}
    ),
    max_leaves=3,
)


@dataclass(frozen=True)
class Typed:
    """A schema, and values that are valid under it: no others are promised to be."""

    schema: JSON
    values: SearchStrategy[JSON]


LEAVES: SearchStrategy[Typed] = st.one_of(
    st.just(Typed({"type": "string"}, st.text(max_size=3))),
    st.just(Typed({"type": "string", "title": "A */ title"}, st.text(max_size=3))),
    st.just(Typed({"type": ["integer", "null"]}, st.none() | st.integers(-9, 9))),
    st.just(Typed({"type": "number"}, st.floats(-9, 9))),
    st.just(Typed({"type": "boolean"}, st.booleans())),
    st.just(Typed({}, SCALARS)),
    st.lists(SCALARS, min_size=1, max_size=3).map(lambda found: Typed({"enum": found}, st.sampled_from(found))),
    st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2)).map(
        lambda value: Typed({"const": value}, st.just(value))
    ),
    st.just(Typed({"$ref": "#/$defs/point"}, POINTS)),
    st.just(Typed({"$ref": "#/$defs/tree", "description": "a tree"}, TREES)),
)


@st.composite
def objects(draw: DrawFn, inner: SearchStrategy[Typed]) -> Typed:
    """An object with named properties, some required, and perhaps others."""
    properties = draw(st.dictionaries(NAMES, inner, max_size=3))
    required = draw(st.sets(st.sampled_from(sorted(properties)))) if properties else set()
    schema: dict[str, JSON] = {"type": "object", "properties": {name: each.schema for name, each in properties.items()}}
    if required:
        schema["required"] = sorted(required)
    named = st.fixed_dictionaries(
        {name: properties[name].values for name in required},
        optional={name: each.values for name, each in properties.items() if name not in required},
    )
    rest = draw(st.none() | st.just(Typed(False, st.nothing())) | inner)
    if rest is None:
        return Typed(schema, named)
    key = draw(st.sampled_from(["additionalProperties", "patternProperties"])) if rest.schema is not False else ""
    schema |= (
        {"patternProperties": {"^z": rest.schema}}
        if key == "patternProperties"
        else {"additionalProperties": rest.schema}
    )
    if not key:
        return Typed(schema, named)
    others = st.dictionaries(st.sampled_from(["z1", "z2"]), rest.values, max_size=2)
    return Typed(schema, st.builds(lambda one, other: {**one, **other}, named, others))


@st.composite
def arrays(draw: DrawFn, inner: SearchStrategy[Typed]) -> Typed:
    """An array or a tuple."""
    prefix = draw(st.lists(inner, max_size=2))
    items = draw(inner)
    schema: dict[str, JSON] = {"type": "array", "items": items.schema}
    least = draw(st.integers(0, 3))
    if prefix:
        schema["prefixItems"] = [each.schema for each in prefix]
    if least:
        schema["minItems"] = least
    most = least + draw(st.integers(0, 2))
    if draw(st.booleans()):
        schema["maxItems"] = most
    sizes = st.integers(least, most)
    places = [*prefix, *([items] * (most - len(prefix)))]
    return Typed(schema, sizes.flatmap(lambda size: st.tuples(*(each.values for each in places[:size])).map(list)))


@st.composite
def alternatives(draw: DrawFn, inner: SearchStrategy[Typed]) -> Typed:
    """One of several, with or without more to be said of all of them."""
    branches = draw(st.lists(inner, min_size=1, max_size=3))
    schema: dict[str, JSON] = {"anyOf": [each.schema for each in branches]}
    return Typed(schema, st.one_of(*(each.values for each in branches)))


@st.composite
def tagged(draw: DrawFn, inner: SearchStrategy[Typed]) -> Typed:
    """Objects of several kinds, told apart by a constant, that have a property in common."""
    kinds = draw(st.lists(st.tuples(st.sampled_from(["size", "a b"]), inner), min_size=1, max_size=3))
    branches = [
        {"required": ["kind"], "properties": {"kind": {"const": place}, name: each.schema}}
        for place, (name, each) in enumerate(kinds)
    ]
    schema = {"type": "object", "properties": {"common": {"type": "string"}}, "oneOf": branches}
    values = [
        st.fixed_dictionaries({"kind": st.just(place)}, optional={name: each.values, "common": st.text(max_size=2)})
        for place, (name, each) in enumerate(kinds)
    ]
    return Typed(schema, st.one_of(*values))


@st.composite
def extended(draw: DrawFn, inner: SearchStrategy[Typed]) -> Typed:
    """A named schema, extended."""
    added = draw(inner)
    schema = {"allOf": [{"$ref": "#/$defs/point"}, {"type": "object", "properties": {"more": added.schema}}]}
    more = st.fixed_dictionaries({}, optional={"more": added.values})
    return Typed(schema, st.builds(lambda one, other: {**one, **other}, POINTS, more))


ANY: SearchStrategy[Typed] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(objects(inner), arrays(inner), alternatives(inner), tagged(inner), extended(inner)),
    max_leaves=6,
)

_WRONG: Mapping[str, JSON] = {"string": 1, "integer": "x", "number": "x", "boolean": "x", "array": {}, "object": "x"}


@dataclass(frozen=True)
class Case:
    """A collection's schema, some documents under it, and one that is wrong."""

    schema: dict[str, JSON]
    documents: list[Any]
    wrong: Any


@st.composite
def cases(draw: DrawFn) -> Case:
    """A schema of documents that have a property `must` of one known type."""
    kind = draw(st.sampled_from(sorted(_WRONG)))
    inner = draw(objects(ANY))
    must = {"string": st.just("s"), "boolean": st.just(True), "array": st.just([]), "object": st.just({})}
    schema = {**inner.schema, "$defs": DEFINITIONS, "required": [*inner.schema.get("required", ()), "must"]}
    schema["properties"] = {**inner.schema["properties"], "must": {"type": kind}}
    values = st.builds(lambda one, value: {**one, "must": value}, inner.values, must.get(kind, st.just(1)))
    documents = draw(st.lists(values, min_size=1, max_size=3))
    return Case(schema, documents, {**documents[0], "must": _WRONG[kind]})


class Batch:
    """Many cases, which Hypothesis does not print: whoever looks at them names the one that fails."""

    def __init__(self, found: list[Case]) -> None:
        self.cases = found

    def __repr__(self) -> str:
        return f"Batch of {len(self.cases)}"


@st.composite
def batches(draw: DrawFn, size: int) -> Batch:
    """Cases, as many as one run of Deno is worth."""
    return Batch([draw(cases()) for _ in range(size)])
