"""Examines the schemas of collections: plausibility, unintended constraints, and reductions that cannot work.

A rule must report a position, but a shape does not record its subschemas. So this module walks the schema files
themselves, and follows references between files.

Each rule checks one subschema against the shape of the whole schema at its location.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias
from urllib.parse import urlsplit

from derive.catalog.definitions import Report
from derive.catalog.language.structure import is_pointer
from derive.catalog.language.yaml import Located
from derive.catalog.loading import Resources
from derive.document.pointer import JSON, escape, parse_pointer, unescape
from derive.errors import CatalogError, FlowError, Issue, SchemaError, suggest
from derive.position import resolve
from derive.reduce.combiner import Combiner
from derive.reduce.reduce_keyword import STRATEGIES, Annotation, parse_annotation
from derive.schema.bundle import bundle
from derive.schema.dialect import KEYWORDS
from derive.schema.projection import project
from derive.schema.shape import ALL, ANYTHING, Shape, infer, intersect, locate
from derive.schema.validator import ASSERTED, compile_part, compile_validator

Location: TypeAlias = tuple[str, ...]
"""Property names and indices (as text) from the root of a document, or `OTHERS`, `ITEMS` and `MATCHING`."""

OTHERS, ITEMS, MATCHING = "\0*", "\0-", "\0~"
"""Tokens for the locations of `additionalProperties`, `items` and `patternProperties`."""

_IN_PLACE = ("oneOf", "anyOf")
_BRANCHES = ("then", "else")
_REST = {"additionalProperties": OTHERS, "unevaluatedProperties": OTHERS, "unevaluatedItems": ITEMS}


@dataclass(frozen=True, slots=True)
class Subschema:
    """A subschema that applies to one location.

    Attributes:
        location: the location.
        at: place of the subschema.
        root: root of its schema document, the base of references.
        conditional: true if it applies to some documents only.
        overridden: true if its `reduce` has no effect, because another `reduce` is beside the reference to it.
    """

    location: Location
    at: Located
    root: Located
    conditional: bool
    overridden: bool = False

    @property
    def reduction(self) -> Located | None:
        """Return its `reduce` annotation; None if there is none, or it has no effect."""
        schema = self.at.value
        return self.at["reduce"] if isinstance(schema, dict) and "reduce" in schema and not self.overridden else None


def show_location(location: Location) -> str:
    """Return a location as a JSON pointer; `*` stands for all other properties or items."""
    return "".join(f"/{'*' if token.startswith(chr(0)) else escape(token)}" for token in location)


def subschemas_of(at: Located, resources: Resources, report: Report) -> list[Subschema]:
    """Return a schema and all its subschemas.

    Args:
        at: the schema, or the string that names its file.
        resources: loader with its files.
        report: report for issues of dangling references.
    """
    walk = _Walk(resources, report)
    if isinstance(at.value, str):
        target = walk.follow(at, at, at.value)
        return list(walk.subschemas(*target, (), frozenset([_identity(target[0])]))) if target else []
    return list(walk.subschemas(at, at, (), frozenset([_identity(at)])))


class _Walk:
    def __init__(self, resources: Resources, report: Report) -> None:
        self._resources = resources
        self._report = report

    def subschemas(
        self,
        at: Located,
        root: Located,
        location: Location,
        followed: frozenset[object],
        *,
        conditional: bool = False,
        overridden: bool = False,
    ) -> Iterator[Subschema]:
        """Yield a subschema and its descendants; `followed` are the targets of references on the path."""
        yield Subschema(location, at, root, conditional, overridden)
        schema = at.value
        if not isinstance(schema, dict):
            return
        reference = schema.get("$ref")
        if isinstance(reference, str):
            target = self.follow(at["$ref"], root, reference)
            if target and _identity(target[0]) not in followed:
                yield from self.subschemas(
                    *target,
                    location,
                    followed | {_identity(target[0])},
                    conditional=conditional,
                    overridden=overridden or "reduce" in schema,
                )
        for child, child_location, child_conditional in _children(at, location):
            yield from self.subschemas(
                child,
                root,
                child_location,
                followed,
                conditional=conditional or child_conditional,
                overridden=overridden and child_location == location,
            )

    def follow(self, at: Located, root: Located, reference: str) -> tuple[Located, Located] | None:
        """Return the target of a reference and the root of its document.

        For a dangling reference, add an issue and return None.
        """
        name, _, fragment = reference.partition("#")
        if name:
            try:
                file = self._resources.document(resolve(url_of(at), name))
            except (OSError, CatalogError):
                return None  # the loader has reported it
            root = Located(file, (), file.value)
        target = _anchor(root, fragment) if fragment and fragment[0] != "/" else _step(root, fragment)
        if target is None:
            self._report.add("E404", f"'$ref: {reference}' has no target", at, _guess(root, fragment))
            return None
        return target, root


def _children(at: Located, location: Location) -> Iterator[tuple[Located, Location, bool]]:
    """Yield the direct subschemas: each with its location, and true if it applies to some documents only."""
    schema = at.value
    if isinstance(schema.get("allOf"), list):
        yield from ((child, location, False) for child in at["allOf"].elements())
    for keyword in _IN_PLACE:
        if isinstance(schema.get(keyword), list):
            yield from ((child, location, True) for child in at[keyword].elements())
    yield from ((at[keyword], location, True) for keyword in _BRANCHES if keyword in schema)
    if isinstance(schema.get("dependentSchemas"), dict):
        yield from ((child, location, True) for _, child in at["dependentSchemas"].items())
    if isinstance(schema.get("properties"), dict):
        yield from ((child, (*location, name), False) for name, child in at["properties"].items())
    if isinstance(schema.get("patternProperties"), dict):
        yield from ((child, (*location, f"{MATCHING}{name}"), False) for name, child in at["patternProperties"].items())
    for keyword in ("prefixItems", "items"):
        if isinstance(schema.get(keyword), list):
            yield from ((child, (*location, str(index)), False) for index, child in enumerate(at[keyword].elements()))
        elif keyword == "items" and keyword in schema:
            yield at[keyword], (*location, ITEMS), False
    if "additionalItems" in schema and isinstance(schema.get("items"), list):
        yield at["additionalItems"], (*location, ITEMS), False
    yield from ((at[keyword], (*location, token), False) for keyword, token in _REST.items() if keyword in schema)


def _identity(at: Located) -> object:
    return at.file.name, at.path


def url_of(at: Located) -> str:
    """Return the URL of a value's file."""
    name = at.file.name
    return name if urlsplit(name).scheme in ("http", "https") else os.path.abspath(name)


def _step(root: Located, fragment: str) -> Located | None:
    located = root
    for token in map(unescape, fragment.split("/")[1:]):
        value = located.value
        if isinstance(value, dict) and token in value:
            located = located[token]
        elif isinstance(value, list) and token.isascii() and token.isdigit() and int(token) < len(value):
            located = located[int(token)]
        else:
            return None
    return located


def _anchor(root: Located, name: str) -> Located | None:
    pending = [root]
    while pending:
        value_at = pending.pop()
        if isinstance(value_at.value, dict):
            if value_at.value.get("$anchor") == name:
                return value_at
            pending += [child for _, child in value_at.items()]
        elif isinstance(value_at.value, list):
            pending += value_at.elements()
    return None


def _guess(root: Located, fragment: str) -> str | None:
    defined = root.value.get("$defs") if isinstance(root.value, dict) else None
    known = [f"/$defs/{escape(name)}" for name in defined] if isinstance(defined, dict) else []
    guess = suggest(fragment, known)
    return f"did you mean '#{guess}'?" if guess else None


_TERMS = ("add", "intersect", "remove")
_DECIMALS = ("integer", "number")
_NUMBERS = frozenset({"integer", "fractional"})
_CONTAINERS = frozenset({"array", "object"})
_FAR_ITEM = "999999999"
_ITSELF = "an empty pointer, as in 'key: [\"\"]', is the value itself"
_NEEDED = {
    # by strategy: the types that it can reduce, their name in messages, the issue code, and whether the schema must
    # name types
    "sum": (_NUMBERS, "a number", "E412", True),
    "merge": (_CONTAINERS, "an object or an array", "E413", True),
    "set": (frozenset({"object"}), "an object", "E414", True),
    "append": (frozenset({"array", "null"}), "an array", "E418", False),
    "jsonSchemaMerge": (frozenset({"object"}), "an object", "E418", False),
}


def annotations_by_location(subschemas: Iterable[Subschema]) -> Mapping[Location, list[Located]]:
    """Return the `reduce` annotations by location."""
    by_location: dict[Location, list[Located]] = {}
    for subschema in subschemas:
        if subschema.reduction is not None:
            by_location.setdefault(subschema.location, []).append(subschema.reduction)
    return by_location


def check_reductions(subschemas: Sequence[Subschema], shape: Shape, report: Report) -> None:
    """Report annotations that are invalid, never apply, or contradict their schema.

    Args:
        subschemas: subschemas of the schema.
        shape: shape of the schema.
        report: report for issues.
    """
    annotations = annotations_by_location(subschemas)
    for subschema in subschemas:
        if subschema.reduction is not None:
            _AnnotationCheck(subschema, subschema.reduction, report).check(shape, annotations)


class _AnnotationCheck:
    """The checks of one annotation."""

    def __init__(self, subschema: Subschema, at: Located, report: Report) -> None:
        self._part = subschema
        self._at = at
        self._where = show_location(subschema.location)
        self._report = report

    def check(self, shape: Shape, annotations: Mapping[Location, list[Located]]) -> None:
        annotation = self._parse()
        if annotation is None:
            return
        location = self._part.location
        if location and location[:-1] not in annotations:
            parent = f"'{show_location(location[:-1])}'" if location[1:] else "the root"
            message = (
                f"'{self._where}' has the strategy '{annotation.strategy}', but {parent} above it"
                " has no strategy, so the annotation would never apply"
            )
            self._report.add("E411", message, self._at, "add 'reduce: {strategy: merge}' there")
        pointers = self._pointers(annotation) if annotation.key else []
        allowed, certain = _allowed(self._part, shape)
        if not allowed.types:
            return
        self._check_types(annotation.strategy, allowed, certain=certain)
        if annotation.strategy == "set" and certain:
            self._check_terms(annotation, allowed)
        for values in _keyed(annotation.strategy, allowed):
            for at in pointers:
                self._check_key(at, annotation.strategy, values)

    def _parse(self) -> Annotation | None:
        value = self._at.value
        strategy = value.get("strategy") if isinstance(value, dict) else None
        if not isinstance(strategy, str):
            message = f"'reduce' needs a strategy, but is {value!r}"
            meant = suggest(value, STRATEGIES) if isinstance(value, str) else None
            self._report.add("E406", message, self._at, f"write 'reduce: {{strategy: {meant or 'sum'}}}'")
            return None
        if strategy not in STRATEGIES:
            guess = suggest(strategy, STRATEGIES)
            hint = f"did you mean '{guess}'?" if guess else f"strategies: {', '.join(sorted(STRATEGIES))}"
            self._report.add("E406", f"there is no strategy '{strategy}'", self._at["strategy"], hint)
            return None
        try:
            return parse_annotation(value, f"the reduction of '{self._where}'")
        except SchemaError as exc:
            self._report.add("E406", exc.message, self._at, exc.hint)
            return None

    def _check_types(self, strategy: str, allowed: Shape, *, certain: bool) -> None:
        if strategy not in _NEEDED:
            return
        types, needed, code, always = _NEEDED[strategy]
        if strategy == "sum" and allowed.format in _DECIMALS:
            types |= {"string"}
        unfit = allowed.types - types
        wrong = bool(unfit) and (always or allowed.types != ALL) if certain else unfit == allowed.types
        if wrong:
            where = f"at '{self._where}'" if self._where else "at the root of the document"
            message = f"'{strategy}' needs {needed} {where}, but the schema allows {_show_types(allowed)}"
            hint = "'merge' reduces objects" if strategy == "sum" and "object" in allowed.types else None
            self._report.add(code, message, self._at["strategy"], hint)

    def _check_terms(self, annotation: Annotation, allowed: Shape) -> None:
        at = self._at["strategy"]
        for name in sorted(set(allowed.properties) - set(_TERMS)):
            message = f"'set' at '{self._where}' has the properties 'add', 'intersect' and 'remove', and not '{name}'"
            self._report.add("E415", message, at)
        for name in _TERMS:
            term = allowed.member(name)
            if term is None or term.types == ALL:
                continue
            where = f"{self._where}/{name}"
            if term.types - _CONTAINERS:
                message = f"'set' needs an array or an object at '{where}', but the schema allows {_show_types(term)}"
                self._report.add("E414", message, at)
                return  # terms that share one schema also share one type
            if term.types == {"array"} and not annotation.key:
                message = f"'set' at '{self._where}' needs a key, because '{where}' is an array"
                self._report.add("E419", message, at, f"{_ITSELF}: use it for strings and numbers")
                return

    def _pointers(self, annotation: Annotation) -> list[Located]:
        """Return the pointers of the annotation's key; report invalid pointers."""
        pointers = []
        for at in self._at["key"].elements():
            if is_pointer(at.value):
                pointers.append(at)
                continue
            subject = f"the key '{at.value}' of '{annotation.strategy}' at '{self._where}'"
            hint = _ITSELF if at.value == "/" else None
            self._report.add("E419", f"{subject} is no JSON pointer without empty names", at, hint)
        return pointers

    def _check_key(self, at: Located, strategy: str, values: Shape) -> None:
        if locate(values, parse_pointer(at.value))[1] != "cannot":
            return
        guess = suggest(at.value, [projection.pointer for projection in project(values, (), {}) if projection.pointer])
        hint = f"did you mean '{guess}'?" if guess else None if values.types & _CONTAINERS else _ITSELF
        subject = f"the key '{at.value}' of '{strategy}' at '{self._where}'"
        self._report.add("E419", f"{subject} cannot exist there: the schema allows {_show_types(values)}", at, hint)


def _keyed(strategy: str, allowed: Shape) -> Iterator[Shape]:
    """Yield the shapes of the values to which a strategy's key pointers apply."""
    if strategy in ("maximize", "minimize"):
        yield allowed
        return
    for values in [allowed.member(name) for name in _TERMS] if strategy == "set" else [allowed]:
        if values is not None and "array" in values.types:
            yield values.items or ANYTHING


def _allowed(subschema: Subschema, shape: Shape) -> tuple[Shape, bool]:
    """Return the shape at a subschema's location, and true if its annotation applies to all values of that shape."""
    typed = "type" in subschema.at.value
    if any(token.startswith(MATCHING) for token in subschema.location):
        return infer(subschema.at.value), typed
    tokens = tuple(_FAR_ITEM if token == ITEMS else token for token in subschema.location)
    located = locate(shape, tokens)[0]
    return (intersect(infer(subschema.at.value), located), typed) if subschema.conditional else (located, True)


def _show_types(shape: Shape) -> str:
    return ", ".join(sorted(shape.types)) if shape.types != ALL else "anything"


def check_plausibility(subschemas: Sequence[Subschema], shape: Shape, resources: Resources, report: Report) -> None:
    """Report defaults and reductions that contradict a schema, and required locations that cannot exist.

    Args:
        subschemas: subschemas of the schema.
        shape: shape of the schema.
        resources: loader with its files.
        report: report for issues.
    """
    check_reductions(subschemas, shape, report)
    for subschema in subschemas:
        if isinstance(subschema.at.value, dict) and "default" in subschema.at.value:
            _check_default(subschema, resources, report)
    _check_existence(subschemas, shape, report)


def check_keywords(subschemas: Sequence[Subschema], report: Report) -> None:
    """Report keywords that JSON Schema does not have, also in an invalid schema."""
    for subschema in subschemas:
        for name in subschema.at.value if isinstance(subschema.at.value, dict) else ():
            if name not in KEYWORDS and name[:2] not in ("x-", "X-"):
                guess = suggest(name, KEYWORDS)
                hint = f"did you mean '{guess}'?" if guess else "keywords of your own begin with 'x-'"
                report.add("E405", f"JSON Schema has no keyword '{name}'", subschema.at[name].key_position, hint)


def unchecked_formats(subschemas: Sequence[Subschema]) -> list[Issue]:
    """Return notes for formats that validation does not check."""
    notes = []
    for subschema in subschemas:
        schema = subschema.at.value
        name = schema.get("format") if isinstance(schema, dict) else None
        if isinstance(name, str) and name not in ASSERTED:
            guess = suggest(name, ASSERTED)
            hint = f"did you mean '{guess}'?" if guess else None
            notes.append(
                Issue("N009", f"values are not checked for the format '{name}'", subschema.at["format"].position, hint)
            )
    return notes


def _check_default(subschema: Subschema, resources: Resources, report: Report) -> None:
    at = subschema.at["default"]
    try:
        valid = _validity(subschema, resources)(at.value)
    except (FlowError, OSError):
        return  # other rules report an invalid or incomplete schema
    if not valid:
        where = show_location(subschema.location) or "the root"
        report.add("E416", f"the default of '{where}' is {at.value!r}, which its own schema does not allow", at)


def _validity(subschema: Subschema, resources: Resources) -> Callable[[JSON], bool]:
    """Return a function that validates a value against one subschema."""
    root = subschema.root
    schema = bundle(root.value, url_of(root), resources.value)
    pointer = "".join(f"/{escape(str(step))}" for step in subschema.at.path[len(root.path) :])
    return compile_part(schema, pointer, name=root.file.name)


def _check_existence(subschemas: Sequence[Subschema], shape: Shape, report: Report) -> None:
    written_at: dict[Location, Located] = {}
    for subschema in subschemas:
        written_at[subschema.location] = subschema.at
    for location in _impossible(shape, ()):
        at = next(written_at[location[:end]] for end in range(len(location), -1, -1) if location[:end] in written_at)
        where = show_location(location)
        report.add("E417", f"'{where}' must exist, but its schema allows no value there", at)


def _impossible(shape: Shape, location: Location) -> Iterable[Location]:
    """Yield the locations that every document must have and no document can have."""
    children: list[tuple[str, Shape]] = []
    if shape.types == {"object"}:
        children += [(name, shape.properties[name]) for name in sorted(shape.required) if name in shape.properties]
    if shape.types == {"array"}:
        children += [(str(index), item) for index, item in enumerate(shape.prefix[: shape.min_items])]
    for token, child in children:
        if not child.types:
            yield (*location, token)
        yield from _impossible(child, (*location, token))


@dataclass(frozen=True)  # no slots, because of the cached property
class ExaminedSchema:
    """The result of examining a schema.

    Attributes:
        shape: shape of the schema.
        annotations: `reduce` annotations by location.
    """

    shape: Shape
    annotations: Mapping[Location, Sequence[Located]]

    @cached_property
    def fields(self) -> Mapping[str, str]:
        """Return the pointer of each inferred field, by field."""
        return {projection.field: projection.pointer for projection in project(self.shape, (), {})}


class SchemaExaminer:
    """Examines schemas.

    Args:
        resources: loader with the files of schemas.
        report: report for issues.
        notes: list for remarks that are no errors.
    """

    def __init__(self, resources: Resources, report: Report, notes: list[Issue]) -> None:
        self._resources = resources
        self._report = report
        self._notes = notes
        self._good: dict[str, ExaminedSchema] = {}

    def examine(self, at: Located, schema: JSON, name: str) -> ExaminedSchema | None:
        """Return the result for a schema; for an invalid schema, add an issue and return None.

        Args:
            at: place of the schema: an object, or the name of its file.
            schema: the self-contained schema.
            name: name of its collection.
        """
        shared = resolve(url_of(at), at.value) if isinstance(at.value, str) else None
        if shared in self._good:
            return self._good[shared]
        before = self._report.count
        examined = self._examine(at, schema, name)
        if examined is not None and shared is not None and self._report.count == before:
            self._good[shared] = examined
        return examined

    def _examine(self, at: Located, schema: JSON, name: str) -> ExaminedSchema | None:
        before = self._report.count
        subschemas = subschemas_of(at, self._resources, self._report)
        if self._report.count > before:
            return None
        check_keywords(subschemas, self._report)
        self._notes += [note for note in dict.fromkeys(unchecked_formats(subschemas)) if note not in self._notes]
        if not self._compiles(lambda: compile_validator(schema, name=name), at, before):
            return None
        shape = infer(schema)
        if shape.types != {"object"}:
            allowed = ", ".join(sorted(shape.types)) if len(shape.types) < 7 else "anything"
            message = f"the schema of '{name}' must be of type object, but allows {allowed or 'nothing'}"
            self._report.add("E402", message, at, "add 'type: object'")
        check_plausibility(subschemas, shape, self._resources, self._report)
        if not self._compiles(lambda: Combiner(schema, name=name), at, before):
            return None
        return ExaminedSchema(shape, annotations_by_location(subschemas))

    def _compiles(self, compiled: Callable[[], object], at: Located, before: int) -> bool:
        """Return true if a schema compiles; add an issue otherwise, unless another rule has reported the cause."""
        try:
            compiled()
        except FlowError as exc:
            if self._report.count == before:
                self._report.add("E403", exc.message, at, exc.hint)
            return False
        return True
