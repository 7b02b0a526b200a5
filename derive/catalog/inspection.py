"""Inspections: schemas that are JSON Schema, and yet cannot be meant.

Each rule looks at one part of a schema and at what the whole of it allows there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from derive.catalog.parts import ITEMS, MATCHING, Location, Part, show_location, url_of
from derive.catalog.report import Report
from derive.catalog.resource import Resources
from derive.catalog.yaml import Located
from derive.document.pointer import JSON, escape
from derive.errors import FlowError
from derive.reduce.annotation import STRATEGIES
from derive.schema.dialect import KEYWORDS
from derive.schema.index import bundle
from derive.schema.infer import infer
from derive.schema.shape import Shape, locate
from derive.schema.validator import compile_part
from derive.suggest import suggest

_MEMBERS = ("add", "intersect", "remove")
_DECIMALS = ("integer", "number")
_FAR_ITEM = "999999999"


def inspect(parts: Sequence[Part], shape: Shape, resources: Resources, report: Report) -> None:
    """Report what is odd about a schema.

    Args:
        parts: of the schema.
        shape: what the schema allows.
        resources: has loaded its files.
        report: told of what is found.
    """
    strategies = reductions(parts)
    for part in parts:
        if not isinstance(part.at.value, dict):
            continue
        if "reduce" in part.at.value:
            _inspect_reduction(part, shape, strategies, report)
        if "default" in part.at.value:
            _inspect_default(part, resources, report)
    _inspect_existence(parts, shape, report)


def inspect_keywords(parts: Sequence[Part], report: Report) -> None:
    """Report keywords that JSON Schema does not have; this asks nothing of the schema."""
    for part in parts:
        for name in part.at.value if isinstance(part.at.value, dict) else ():
            if name not in KEYWORDS and name[:2] not in ("x-", "X-"):
                guess = suggest(name, KEYWORDS)
                hint = f"did you mean '{guess}'?" if guess else "keywords of your own begin with 'x-'"
                report.add("E405", f"JSON Schema has no keyword '{name}'", part.at[name].key_position, hint)


def reductions(parts: Iterable[Part]) -> Mapping[Location, list[Located]]:
    """The `reduce` annotations of each location."""
    found: dict[Location, list[Located]] = {}
    for part in parts:
        if isinstance(part.at.value, dict) and "reduce" in part.at.value:
            found.setdefault(part.location, []).append(part.at["reduce"])
    return found


def _inspect_reduction(part: Part, shape: Shape, strategies: Mapping[Location, list[Located]], report: Report) -> None:
    at = part.at["reduce"]
    strategy = at.value.get("strategy") if isinstance(at.value, dict) else None
    if not isinstance(strategy, str):
        report.add("E406", f"'reduce' needs a strategy, and is {at.value!r}", at, "write 'reduce: {strategy: sum}'")
        return
    if strategy not in STRATEGIES:
        guess = suggest(strategy, STRATEGIES)
        hint = f"did you mean '{guess}'?" if guess else f"strategies: {', '.join(sorted(STRATEGIES))}"
        report.add("E406", f"there is no strategy '{strategy}'", at["strategy"], hint)
        return
    where = show_location(part.location)
    if part.location and part.location[:-1] not in strategies:
        parent = f"'{show_location(part.location[:-1])}'" if part.location[1:] else "the root"
        message = f"'{where}' has the strategy '{strategy}', and {parent} above it has none, so it would never apply"
        report.add("E411", message, at, "add 'reduce: {strategy: merge}' there")
    found = _allowed(part, shape)
    if found is None or not found.types:
        return
    _inspect_types(strategy, found, where, at["strategy"], report)


def _inspect_types(strategy: str, found: Shape, where: str, at: Located, report: Report) -> None:
    types = ", ".join(sorted(found.types)) if len(found.types) < 7 else "anything"
    if strategy == "sum":
        numeric = found.types - {"integer", "fractional"} - ({"string"} if found.format in _DECIMALS else set())
        if numeric:
            report.add("E412", f"'sum' needs a number at '{where}', and the schema allows {types}", at)
    elif strategy == "merge":
        if found.types - {"object", "array"}:
            report.add("E413", f"'merge' needs an object or an array at '{where}', and the schema allows {types}", at)
    elif strategy == "set":
        if found.types != {"object"}:
            report.add("E414", f"'set' needs an object at '{where}', and the schema allows {types}", at)
        for name in sorted(set(found.properties) - set(_MEMBERS)):
            message = f"'set' at '{where}' knows the properties 'add', 'intersect' and 'remove', and not '{name}'"
            report.add("E415", message, at)


def _allowed(part: Part, shape: Shape) -> Shape | None:
    """What may be where a part applies; None if that cannot be said."""
    if any(token.startswith(MATCHING) for token in part.location):
        return None
    if part.conditional:
        # What its branch says, without what other branches allow: only its own type is certain.
        return infer(part.at.value) if "type" in part.at.value else None
    tokens = tuple(_FAR_ITEM if token == ITEMS else token for token in part.location)
    found, exists = locate(shape, tokens)
    return None if exists == "cannot" else found


def _inspect_default(part: Part, resources: Resources, report: Report) -> None:
    at = part.at["default"]
    try:
        valid = _validity(part, resources)(at.value)
    except (FlowError, OSError):
        return  # no JSON Schema, or not all there, which is said elsewhere
    if not valid:
        where = show_location(part.location) or "the root"
        report.add("E416", f"the default of '{where}' is {at.value!r}, which its own schema does not allow", at)


def _validity(part: Part, resources: Resources) -> Callable[[JSON], bool]:
    """Whether a value is valid under one part of a schema."""
    root = part.root
    schema = bundle(root.value, url_of(root), resources.value)
    pointer = "".join(f"/{escape(str(each))}" for each in part.at.path[len(root.path) :])
    return compile_part(schema, pointer, name=root.file.name)


def _inspect_existence(parts: Sequence[Part], shape: Shape, report: Report) -> None:
    places: dict[Location, Located] = {}
    for part in parts:
        places[part.location] = part.at
    for location in _impossible(shape, ()):
        at = next(places[location[:end]] for end in range(len(location), -1, -1) if location[:end] in places)
        where = show_location(location)
        report.add("E417", f"'{where}' must exist, and its schema allows no value there", at)


def _impossible(shape: Shape, location: Location) -> Iterable[Location]:
    """Locations that every document must have, and that none can."""
    children: list[tuple[str, Shape]] = []
    if shape.types == {"object"}:
        children += [(name, shape.properties[name]) for name in sorted(shape.required) if name in shape.properties]
    if shape.types == {"array"}:
        children += [(str(place), each) for place, each in enumerate(shape.prefix[: shape.min_items])]
    for token, child in children:
        if not child.types:
            yield (*location, token)
        yield from _impossible(child, (*location, token))
