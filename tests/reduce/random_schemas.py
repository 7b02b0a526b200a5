"""Random schemas with reduction annotations, together with documents that fit them.

Every strategy, nested in every way: below properties, patterns, items, set members, and on conditions. A location is
drawn as its schema and a strategy of its values. Keys are never themselves reduced: an array would not stay sorted.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, -2.0]) | st.sampled_from("ab")
VALUES = st.recursive(
    SCALARS,
    lambda below: st.lists(below, max_size=2) | st.dictionaries(st.sampled_from("abkx"), below, max_size=2),
    max_leaves=4,
)
QUARTERS = st.integers(-8, 8).map(lambda each: each / 4)  # so that sums are exact
DECIMALS = st.tuples(st.integers(-2, 2), st.sampled_from(["", ".5", ".50", ".125"])).map(
    lambda pair: f"{pair[0]}{pair[1]}"
)
TYPES = st.sets(st.sampled_from(["boolean", "integer", "null", "string"]), min_size=1).map(
    lambda types: {"type": sorted(types) if len(types) > 1 else next(iter(types))}
)


@dataclass(frozen=True)
class Drawn:
    schema: Any
    values: st.SearchStrategy[Any]


def annotated(strategy: str, **options: Any) -> dict[str, Any]:
    return {"reduce": {"strategy": strategy, **options}}


def sorted_by(values: st.SearchStrategy[Any], key: Any) -> st.SearchStrategy[Any]:
    return st.lists(values, max_size=3, unique_by=key).map(lambda items: sorted(items, key=key))


LEAVES: st.SearchStrategy[Drawn] = st.sampled_from(
    [
        Drawn({}, VALUES),
        Drawn(annotated("append"), st.lists(st.integers(0, 3), max_size=2)),
        Drawn(annotated("firstWriteWins"), VALUES),
        Drawn(annotated("jsonSchemaMerge"), TYPES),
        Drawn(annotated("lastWriteWins"), VALUES),
        Drawn(annotated("lastWriteWins", associative=False), st.integers(0, 1)),
        Drawn(annotated("lastWriteWins", delete=True), VALUES),
        Drawn(annotated("maximize"), VALUES),
        Drawn(annotated("minimize"), VALUES),
        Drawn(annotated("sum"), st.integers(-(10**20), 10**20)),
        Drawn(annotated("sum"), st.integers(-3, 3) | QUARTERS),
        Drawn(annotated("sum"), st.integers(-3, 3) | DECIMALS),
        Drawn({"$ref": "#/$defs/patch"}, VALUES),
        Drawn({"$ref": "#/$defs/patch", **annotated("maximize")}, VALUES),
        Drawn({"$ref": "#/$defs/patch", **annotated("firstWriteWins")}, VALUES),
        Drawn({"$ref": "#/$defs/patch", **annotated("merge")}, st.dictionaries(st.sampled_from("ab"), VALUES)),
    ]
)
NUMBERS: st.SearchStrategy[Drawn] = st.sampled_from(
    ["firstWriteWins", "lastWriteWins", "maximize", "minimize", "sum"]
).map(lambda strategy: Drawn(annotated(strategy), st.integers(0, 3)))
"""So that what one condition asks for fits what another does."""

PATCH = {
    "oneOf": [
        {"type": "object", **annotated("merge"), "additionalProperties": {"$ref": "#/$defs/patch"}},
        {"type": "null", **annotated("lastWriteWins", delete=True)},
        {"type": ["array", "boolean", "number", "string"]},
    ]
}


@st.composite
def objects(draw: st.DrawFn, below: st.SearchStrategy[Drawn]) -> Drawn:
    """Merged, or the one of the greatest key, with named, matching and other properties."""
    named, matching, other = draw(below), draw(below), draw(below)
    annotation = draw(
        st.sampled_from(
            [annotated("merge")] * 4
            + [annotated("merge", delete=True), annotated("maximize", key=["/k"]), annotated("minimize", key=["/k"])]
        )
    )
    schema = {
        **annotation,
        "properties": {"a": named.schema, "k": {}},
        "patternProperties": {"^x": matching.schema},
        "additionalProperties": other.schema,
    }
    optional = {
        "a": named.values,
        "x": matching.values,
        "xy": matching.values,
        "o": other.values,
        "k": st.integers(0, 1),
    }
    return Drawn(schema, st.fixed_dictionaries({}, optional=optional))


@st.composite
def arrays(draw: st.DrawFn, below: st.SearchStrategy[Drawn]) -> Drawn:
    """Merged by place or by key."""
    first, item = draw(below), draw(below)
    if draw(st.booleans()):
        schema = {**annotated("merge"), "prefixItems": [first.schema], "items": item.schema}
        rest = st.lists(item.values, max_size=2)
        return Drawn(schema, st.just([]) | st.tuples(first.values, rest).map(lambda pair: [pair[0], *pair[1]]))
    member = {**annotated("merge"), "properties": {"k": {}, "v": item.schema}}
    values = st.fixed_dictionaries({"k": st.integers(0, 2)}, optional={"v": item.values})
    schema = {**annotated("merge", key=["/k"]), "items": member}
    if draw(st.booleans()):
        schema["prefixItems"] = [{**member, "properties": {"k": {}}}]
    return Drawn(schema, sorted_by(values, lambda each: each["k"]))


@st.composite
def mixed(draw: st.DrawFn, below: st.SearchStrategy[Drawn]) -> Drawn:
    """Merged, sometimes an object and sometimes an array."""
    property_, item = draw(below), draw(below)
    schema = {**annotated("merge"), "properties": {"a": property_.schema}, "items": item.schema}
    values = st.fixed_dictionaries({}, optional={"a": property_.values, "b": VALUES})
    return Drawn(schema, values | st.lists(item.values, max_size=2))


@st.composite
def sets(draw: st.DrawFn, below: st.SearchStrategy[Drawn]) -> Drawn:
    """Of scalars, of keyed items, or of properties."""
    member = draw(below)
    form = draw(st.sampled_from(["scalars", "items", "properties"]))
    if form == "scalars":
        schema: dict[str, Any] = annotated("set", key=[""])
        terms: st.SearchStrategy[Any] = sorted_by(st.integers(0, 3), lambda each: each)
    elif form == "items":
        item = {**annotated("merge"), "prefixItems": [{}, member.schema]}
        schema = {**annotated("set", key=["/0"]), "properties": {"add": {"items": item}}}
        terms = sorted_by(st.tuples(st.integers(0, 2), member.values).map(list), lambda each: each[0])
    else:
        schema = {**annotated("set"), "additionalProperties": {"additionalProperties": member.schema}}
        terms = st.dictionaries(st.sampled_from("abc"), member.values, max_size=3)
    values = [st.fixed_dictionaries({}, optional={"add": terms, term: terms}) for term in ("remove", "intersect")]
    return Drawn(schema, values[0] | values[1])


@st.composite
def conditional(draw: st.DrawFn, below: st.SearchStrategy[Drawn]) -> Drawn:
    """Annotations that depend on the value, by each keyword that can do so."""
    branches = draw(st.sampled_from([NUMBERS, below]))
    one, two = draw(branches), draw(branches)
    strategies = st.sampled_from(
        [
            annotated("merge"),
            annotated("merge"),
            annotated("lastWriteWins"),
            annotated("firstWriteWins"),
            {},
            annotated("merge", delete=True),
        ]
    )
    form = draw(st.sampled_from(["oneOf", "if", "anyOf", "dependentSchemas", "kinds", "nested"]))
    then = {**draw(strategies), "properties": {"a": one.schema}}
    otherwise = {**draw(strategies), "properties": {"a": two.schema}}
    is_one, is_two = ({"properties": {"op": {"const": name}}, "required": ["op"]} for name in ("one", "two"))
    tagged = st.fixed_dictionaries(
        {"op": st.just("one")}, optional={"a": one.values, "b": VALUES}
    ) | st.fixed_dictionaries({"op": st.just("two")}, optional={"a": two.values, "b": VALUES})
    if form == "oneOf":
        return Drawn({"oneOf": [{"allOf": [is_one, then]}, {"allOf": [is_two, otherwise]}]}, tagged)
    if form == "if":
        return Drawn({"type": "object", "if": is_one, "then": then, "else": otherwise}, tagged)
    if form == "anyOf":
        bounds = [
            {"maximum": 2, **annotated("sum")},
            {"minimum": 2, **annotated(draw(st.sampled_from(["sum", "maximize"])))},
        ]
        return Drawn({"anyOf": bounds}, st.sampled_from([-1, 1, 3]))
    if form == "dependentSchemas":
        values = st.fixed_dictionaries({}, optional={"op": st.just("one"), "a": one.values})
        return Drawn({"dependentSchemas": {"op": then}}, values)
    if form == "nested":
        inner = {"if": {"required": ["b"]}, "then": draw(strategies), "else": draw(strategies)}
        schema = {"if": is_one, "then": inner, "else": otherwise, "properties": {"op": annotated("firstWriteWins")}}
        return Drawn(schema, tagged)
    kinds = [
        {"type": "integer", **annotated("sum")},
        {"type": "object", **then},
        {"type": "null", **annotated("lastWriteWins", delete=True)},
    ]
    return Drawn(
        {"oneOf": kinds}, st.integers(-2, 2) | st.fixed_dictionaries({}, optional={"a": one.values}) | st.none()
    )


def nested(leaves: st.SearchStrategy[Drawn], *kinds: Any) -> st.SearchStrategy[Drawn]:
    """Locations of these kinds, up to three deep; more often deep than not."""
    below = leaves
    for _ in range(2):
        below = leaves | st.one_of([kind(below) for kind in kinds])
    return st.one_of([kind(below) for kind in kinds])


LOCATIONS = LEAVES | nested(LEAVES, objects, arrays, mixed, sets, conditional, conditional)
# What is deleted from a place of an array would move what comes after it, so such values stay apart.
_DELETED_BY_PLACE = {"delete", "prefixItems"}
ASSOCIATIVE = nested(
    LEAVES.filter(
        lambda drawn: "$ref" not in drawn.schema and drawn.schema != annotated("lastWriteWins", associative=False)
    ),
    objects,
    sets,
).filter(lambda drawn: not set(re.findall(r"\w+", json.dumps(drawn.schema))) >= _DELETED_BY_PLACE)


@st.composite
def associative_histories(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    """A schema of which any two values can become one, and the documents of one key."""
    drawn = draw(ASSOCIATIVE)
    return drawn.schema, draw(st.lists(drawn.values, min_size=1, max_size=5))


@st.composite
def histories(draw: st.DrawFn, *, fitting: bool) -> tuple[Any, list[Any]]:
    """A schema and the documents of one key; all fit, or some do not."""
    drawn = draw(LOCATIONS)
    values = drawn.values if fitting else drawn.values | VALUES
    return {**drawn.schema, "$defs": {"patch": PATCH}}, draw(st.lists(values, min_size=2, max_size=4))
