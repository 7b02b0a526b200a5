"""Inspections: schemas that are JSON Schema, and yet cannot be meant.

Each rule looks at one part of a schema and at what the whole of it allows there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from derive.catalog.language.yaml import Located
from derive.catalog.loading.resources import Resources
from derive.catalog.report import Report
from derive.catalog.schemas.reduction_rules import inspect_reductions
from derive.catalog.schemas.subschemas import Location, Part, show_location, url_of
from derive.document.pointer import JSON, escape
from derive.errors import FlowError
from derive.schema.dialect import KEYWORDS
from derive.schema.index import bundle
from derive.schema.shape import Shape
from derive.schema.validator import compile_part
from derive.suggest import suggest


def inspect(parts: Sequence[Part], shape: Shape, resources: Resources, report: Report) -> None:
    """Report what is odd about a schema.

    Args:
        parts: of the schema.
        shape: what the schema allows.
        resources: has loaded its files.
        report: told of what is found.
    """
    inspect_reductions(parts, shape, report)
    for part in parts:
        if isinstance(part.at.value, dict) and "default" in part.at.value:
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
    pointer = "".join(f"/{escape(str(step))}" for step in part.at.path[len(root.path) :])
    return compile_part(schema, pointer, name=root.file.name)


def _inspect_existence(parts: Sequence[Part], shape: Shape, report: Report) -> None:
    written_at: dict[Location, Located] = {}
    for part in parts:
        written_at[part.location] = part.at
    for location in _impossible(shape, ()):
        at = next(written_at[location[:end]] for end in range(len(location), -1, -1) if location[:end] in written_at)
        where = show_location(location)
        report.add("E417", f"'{where}' must exist, and its schema allows no value there", at)


def _impossible(shape: Shape, location: Location) -> Iterable[Location]:
    """Locations that every document must have, and that none can."""
    children: list[tuple[str, Shape]] = []
    if shape.types == {"object"}:
        children += [(name, shape.properties[name]) for name in sorted(shape.required) if name in shape.properties]
    if shape.types == {"array"}:
        children += [(str(index), item) for index, item in enumerate(shape.prefix[: shape.min_items])]
    for token, child in children:
        if not child.types:
            yield (*location, token)
        yield from _impossible(child, (*location, token))
